"""KV that no longer crosses between two nodes which are both well: the pair is left alone, then tried again."""

import pytest

from engine_agents.gateway.pair_breaker import FIRST_PAUSE_S, PairState
from engine_agents.nodes.kv_errors import KvError
from tests.fleet import prompt_of
from tests.gateways import DIRECT_ALWAYS, gateway_rig

PAIR = ("ams-p-01", "fra-md-01")


def break_pulls(rig, node):
    """Every pull of the node fails; gives what mends it again."""
    puller = rig.nodes[node].node.puller
    real = puller.pull

    async def fail(*_, **__):
        raise KvError("the way is broken")

    puller.pull = fail
    return lambda: setattr(puller, "pull", real)


@pytest.mark.full
async def test_a_pair_whose_transfers_break_is_left_alone_and_heals_by_one_probe(tmp_path):
    async with gateway_rig(tmp_path) as rig:
        await rig.configure(DIRECT_ALWAYS)
        pairs = rig.gateway.state.pairs
        mend = break_pulls(rig, "fra-md-01")
        seed = 0
        while pairs.state(PAIR) is PairState.CLOSED:
            seed += 1
            assert seed < 50
            prompt = prompt_of(200, seed)
            answer = await rig.complete(prompt, max_tokens=4)
            assert answer.status == 200, "another main node serves it"
            assert answer.text == (await rig.alone(prompt, max_tokens=4))[1]
        assert (await rig.state())["open_pairs"] == {"ams-p-01>fra-md-01": "open"}
        for seed in range(100, 104):
            answer = await rig.complete(prompt_of(200, seed), max_tokens=4)
            assert (answer.explained["main_node"], answer.explained["resumes"]) == ("fra-md-02", 0)

        mend()
        later_s = rig.gateway.state.now() + 2 * FIRST_PAUSE_S
        pairs._now = lambda: later_s
        assert pairs.state(PAIR) is PairState.HALF_OPEN
        answer = await rig.complete(prompt_of(200, 200), max_tokens=4)
        assert (answer.explained["main_node"], answer.explained["resumes"]) == ("fra-md-01", 0)
        assert pairs.state(PAIR) is PairState.CLOSED
        assert (await rig.state())["open_pairs"] == {}
        assert await rig.settled() == {}
