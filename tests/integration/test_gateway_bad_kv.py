"""KV that is damaged, of another model, or no longer leased, at every pull of every pipeline: an exact answer or an
error, never wrong tokens, and all is given back."""

import asyncio
from dataclasses import replace

import msgspec
import pytest

from tests.at_rest import configured, nothing_is_kept
from tests.fleet import prompt_of
from tests.gateways import DIRECT_ALWAYS, ONE_SHOT, OUTLIER, gateway_rig, rig_nodes

P, RELAYS, MAINS = "ams-p-01", ("ams-rld-01", "ams-rld-02"), ("fra-md-01", "fra-md-02")
LEASE_TTL_S = 1.0

# Each pull of each pipeline: the policy, which of the request's leases it reads, and the nodes that may read it.
PULLS = [
    pytest.param(DIRECT_ALWAYS, 0, MAINS, id="direct"),
    pytest.param(ONE_SHOT, 0, RELAYS, id="relay-first-pull"),
    pytest.param(ONE_SHOT, 1, MAINS, id="relay-second-pull"),
    pytest.param(OUTLIER, 0, RELAYS, id="outlier"),
]


@pytest.fixture
async def rig(tmp_path):
    async with gateway_rig(tmp_path) as rig:
        yield rig


async def ask(rig, prompt=None, max_tokens=60, first_to_fail=MAINS):
    """One answer, and the ids that it must have.

    Where a relay node is to fail, nothing crosses the link before it has: else MD might not leave it the time.
    """
    prompt = prompt or prompt_of(320)
    expected = (await rig.alone(prompt, max_tokens=max_tokens))[0]
    rig.link.reshape({"paused": first_to_fail is not MAINS})
    asking = asyncio.create_task(rig.complete(prompt, max_tokens=max_tokens))
    await rig.until(lambda: asking.done() or failed_pulls(rig) & {*first_to_fail})
    rig.link.reshape({"paused": False})
    return await asking, expected


def failed_pulls(rig):
    return {name for name, client in rig.nodes.items() if client.node.counters.failed_pulls}


def damage(rig, monkeypatch, *numbers):
    """P sends the first block of the leases of these numbers, counted from now on, with another content.

    The checksum is still the one that the block was stored with. Where no number is given, all leases are damaged.
    """
    node = rig.nodes[P].node
    grant, blocks, granted = node.leases.grant, node.kv_server._blocks, []

    def counted(*arguments):
        lease = grant(*arguments)
        granted.append(lease.id)
        return lease

    def damaged(request, lease):
        found = blocks(request, lease)
        if found and lease.id in granted and (not numbers or granted.index(lease.id) in numbers):
            block, wanted = found[0]
            payload = bytes(block.payload)
            found[0] = replace(block, payload=bytes([payload[0] ^ 1]) + payload[1:]), wanted
        return found

    monkeypatch.setattr(node.leases, "grant", counted)
    monkeypatch.setattr(node.kv_server, "_blocks", damaged)


@pytest.mark.parametrize(("changes", "lease", "readers"), PULLS)
async def test_a_block_with_a_wrong_checksum_is_fetched_again(rig, monkeypatch, changes, lease, readers):
    await configured(rig, changes)
    async with nothing_is_kept(rig):
        damage(rig, monkeypatch, lease)
        answer, expected = await ask(rig, first_to_fail=readers)
        assert (answer.status, answer.token_ids) == (200, expected)
    (failed,) = failed_pulls(rig)
    assert failed in readers
    assert [record.outcome for record in rig.records] == ["completed"]


@pytest.mark.parametrize("changes", [DIRECT_ALWAYS, ONE_SHOT, OUTLIER])
async def test_kv_that_stays_damaged_is_never_decoded_from(rig, monkeypatch, changes):
    await configured(rig, changes)
    async with nothing_is_kept(rig):
        damage(rig, monkeypatch)
        answer, _ = await ask(rig)
        assert (answer.status, answer.error["code"]) == (502, "engine_failed")
    assert [(record.outcome, record.output_tokens) for record in rig.records] == [("failed", 0)]


def of_another_model(rig, monkeypatch, *names):
    for name in names:
        monkeypatch.setattr(rig.nodes[name].node.puller, "_fingerprint", "another model")


@pytest.mark.parametrize(
    ("changes", "others", "pipeline"),
    [
        (DIRECT_ALWAYS, MAINS[:1], "direct"),
        (ONE_SHOT, RELAYS[:1], "relay"),
        (ONE_SHOT, RELAYS, "relay"),
        (ONE_SHOT, MAINS[:1], "relay"),
        (ONE_SHOT, MAINS, "relay"),
        (OUTLIER, RELAYS[:1], "outlier"),
        (OUTLIER, RELAYS, "outlier"),
    ],
)
async def test_kv_of_another_model_is_refused_and_another_way_found(rig, monkeypatch, changes, others, pipeline):
    await configured(rig, changes)
    async with nothing_is_kept(rig):
        of_another_model(rig, monkeypatch, *others)
        for seed in (0, 1):  # whichever node is asked first
            first = RELAYS if others[0] in RELAYS else MAINS
            answer, expected = await ask(rig, prompt_of(320, seed), first_to_fail=first)
            assert (answer.status, answer.token_ids) == (200, expected)
            assert answer.explained["pipeline"] == pipeline
    assert failed_pulls(rig) <= {*others}
    assert failed_pulls(rig)


@pytest.mark.parametrize("changes", [DIRECT_ALWAYS, ONE_SHOT, OUTLIER])
async def test_kv_that_no_node_can_take_is_an_error(rig, monkeypatch, changes):
    await configured(rig, changes)
    async with nothing_is_kept(rig):
        of_another_model(rig, monkeypatch, *RELAYS, *MAINS)
        answer, _ = await ask(rig)
        assert (answer.status, answer.error["type"]) == (502, "server_error")


def come_too_late(rig, monkeypatch, readers):
    """The first of these nodes that is to pull begins only when P has given up a lease; it is asked to once."""
    leases, late = rig.nodes[P].node.leases, []

    def slow(pull):
        async def pull_late(*arguments):
            if not late:
                late.append(leases.expired_total)
                await rig.until(lambda: leases.expired_total > late[0])
            return await pull(*arguments)

        return pull_late

    for name in readers:
        puller = rig.nodes[name].node.puller
        monkeypatch.setattr(puller, "pull", slow(puller.pull))
    return late


@pytest.mark.parametrize(("changes", "lease", "readers"), PULLS)
@pytest.mark.full
async def test_a_lease_that_expired_is_taken_anew(tmp_path, monkeypatch, changes, lease, readers):
    nodes = [msgspec.structs.replace(node, lease_ttl_s=LEASE_TTL_S) for node in rig_nodes(decode_step_s=0.002)]
    async with gateway_rig(tmp_path, nodes) as rig:
        await configured(rig, changes)
        async with nothing_is_kept(rig):
            late = come_too_late(rig, monkeypatch, readers)
            # Long enough that a relay still decodes when MD asks for a lease that is gone.
            answer, expected = await ask(rig, max_tokens=60 if lease == 0 else 1500, first_to_fail=readers)
            assert (answer.status, answer.token_ids) == (200, expected)
        assert late, "the pull was held up"
        assert rig.nodes[P].node.leases.expired_total >= 1
        assert {*failed_pulls(rig)} <= {*readers}
        assert failed_pulls(rig)
