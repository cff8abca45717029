"""Who may ask, as which class, and that tenants share no cached prefix."""

import asyncio
from dataclasses import replace

import pytest

from control.domain.output_bound import MIN_ANSWERS
from control.domain.policy import DEFAULT_POLICY_DOCUMENT, apply_changes
from control.domain.topology import Tenant
from engine_agents.gateway.tenants import ANYBODY, identify, key_hash
from engine_agents.wan.shaping import ClassShare
from tests.fleet import MODEL, prompt_of
from tests.gateways import DIRECT_ALWAYS, ONE_SHOT, gateway_rig

ACME_KEY, BETA_KEY = "pdd-acme-key", "pdd-beta-key"
ACME = Tenant("acme", key_hash(ACME_KEY), ("gold", "default"))
BETA = Tenant("beta", key_hash(BETA_KEY))
GOLD = {"classes.gold.ttft_p90_s": 1.0, "classes.gold.ttft_p99_s": 2.0}


@pytest.fixture
async def rig(tmp_path):
    async with gateway_rig(tmp_path) as rig:
        yield rig


async def configure(rig, changes, *tenants):
    fleet = replace(rig.fleet(), tenants=tenants)
    response = await rig.put_config(apply_changes(DEFAULT_POLICY_DOCUMENT, {**GOLD, **changes}), fleet)
    assert response.status_code == 200, response.text


async def ask(rig, key, prompt, service_class="", **fields):
    headers = {"X-PDD-Explain": "1"}
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    headers |= {"X-PDD-Service-Class": service_class} if service_class else {}
    return await rig.http.post(
        f"{rig.url}/v1/completions", json=rig.body(prompt, **{"max_tokens": 5, **fields}), headers=headers
    )


async def test_only_a_known_key_opens_the_gateway_once_there_are_tenants(rig, caplog):
    await configure(rig, DIRECT_ALWAYS, ACME, BETA)
    for key in ("", "wrong", ACME.key_sha256):
        response = await ask(rig, key, prompt_of(100))
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "authentication_error"
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert (await rig.http.get(f"{rig.url}/v1/models")).status_code == 401
    models = await rig.http.get(f"{rig.url}/v1/models", headers={"Authorization": f"Bearer {BETA_KEY}"})
    assert models.json()["data"][0]["id"] == MODEL
    assert (await ask(rig, ACME_KEY, prompt_of(100))).json()["pdd"]["tenant"] == "acme"
    assert [record.tenant for record in rig.records] == ["acme"]
    assert ACME_KEY not in caplog.text


async def test_without_tenants_it_is_open_to_its_own_machine_only(rig):
    await configure(rig, DIRECT_ALWAYS)
    assert (await ask(rig, "", prompt_of(100))).status_code == 200
    config = rig.gateway.configs.running
    assert identify(config, "", "127.0.0.1", "") == ANYBODY
    for peer in ("192.0.2.7", ""):
        with pytest.raises(Exception, match="own machine") as refused:
            identify(config, "", peer, "")
        assert refused.value.status == 401


@pytest.mark.parametrize(
    ("key", "wanted", "status", "service_class"),
    [
        (ACME_KEY, "", 200, "gold"),
        (ACME_KEY, "default", 200, "default"),
        (BETA_KEY, "", 200, "default"),
        (BETA_KEY, "gold", 403, None),
    ],
)
async def test_a_tenant_has_the_classes_that_are_open_to_it(rig, key, wanted, status, service_class):
    await configure(rig, DIRECT_ALWAYS, ACME, BETA)
    response = await ask(rig, key, prompt_of(100), wanted)
    assert response.status_code == status
    if status == 200:
        assert [record.service_class for record in rig.records] == [service_class]
    else:
        assert response.json()["error"]["code"] == "service_class_not_allowed"


async def test_a_class_that_the_policy_does_not_know_is_a_mistake_where_all_are_open(rig):
    await configure(rig, DIRECT_ALWAYS)
    assert (await ask(rig, "", prompt_of(100), "gold")).json()["pdd"]["service_class"] == "gold"
    assert (await ask(rig, "", prompt_of(100), "platinum")).status_code == 400


@pytest.mark.parametrize(("changes", "pipeline"), [(DIRECT_ALWAYS, "direct"), (ONE_SHOT, "relay")])
async def test_the_class_goes_with_the_kv_to_the_link(rig, changes, pipeline):
    await configure(rig, changes, ACME)
    rig.link.reshape({"classes": {"gold": ClassShare(priority=1)}})
    assert (await ask(rig, ACME_KEY, prompt_of(300))).status_code == 200
    assert await rig.settled() == {}
    assert set(rig.link.bytes_by) == {(pipeline, "gold")}
    assert rig.link.bytes_by[pipeline, "gold"] == rig.link.bytes_total > 0
    assert rig.link.waits.state()["count"] == 1


async def test_a_class_decides_what_is_shed_when_the_relay_is_full(rig):
    hasty = {"classes.gold.ttft_p90_s": 0.001, "classes.gold.ttft_p99_s": 0.001}
    await configure(rig, {**ONE_SHOT, **hasty, "routing.relay_load_ceiling": 0.1}, ACME, BETA)
    rig.link.reshape({"paused": True})
    filler = asyncio.create_task(ask(rig, BETA_KEY, prompt_of(300), max_tokens=5000))
    await rig.until(lambda: rig.gateway.state.running("ams-rld-01") or rig.gateway.state.running("ams-rld-02"))
    shed = await ask(rig, ACME_KEY, prompt_of(300, 1))
    assert (shed.status_code, shed.json()["error"]["code"]) == (503, "relay_at_ceiling_slo_missed")
    assert 1 <= int(shed.headers["retry-after"]) <= 60
    patient = asyncio.create_task(ask(rig, BETA_KEY, prompt_of(300, 2)))
    await rig.until(lambda: rig.gateway.state.index.transfers == 2)
    rig.link.reshape({"paused": False})
    assert (await patient).json()["pdd"]["reason"] == "relay_at_ceiling"
    filler.cancel()
    await asyncio.gather(filler, return_exceptions=True)
    assert await rig.settled() == {}


@pytest.mark.parametrize("changes", [DIRECT_ALWAYS, ONE_SHOT])
async def test_the_same_prompt_of_two_tenants_shares_nothing(rig, changes):
    await configure(rig, {**changes, "cache.tenant_salt": True}, ACME, BETA)
    prompt = prompt_of(320)
    first = (await ask(rig, ACME_KEY, prompt)).json()
    assert await rig.settled() == {}
    stored = {name: client.node.engine.store.resident_tokens for name, client in rig.nodes.items()}
    other = (await ask(rig, BETA_KEY, prompt)).json()
    assert await rig.settled() == {}
    again = (await ask(rig, ACME_KEY, prompt)).json()
    assert first["choices"][0]["token_ids"] == other["choices"][0]["token_ids"] == again["choices"][0]["token_ids"]
    assert (other["pdd"]["drc_hit_rate"], other["pdd"]["prefix_hit_rate"]) == (0, 0)
    assert other["pdd"]["uncached_tokens"] == 320
    assert again["pdd"]["drc_hit_rate"] > 0.9
    main = rig.nodes[other["pdd"]["main_node"]].node.engine.store
    assert main.resident_tokens >= stored[other["pdd"]["main_node"]] + 320


async def test_a_salt_of_ones_own_does_not_open_anothers_cache(rig):
    salted, unsalted = replace(ACME, salt=True), replace(BETA, salt=False)
    await configure(rig, DIRECT_ALWAYS, salted, unsalted)
    prompt = prompt_of(320)
    await ask(rig, ACME_KEY, prompt)
    for salt in ("acme/", "tenant:acme/", "acme"):
        guess = await ask(rig, BETA_KEY, prompt, cache_salt=salt)
        assert guess.json()["pdd"]["prefix_hit_rate"] == 0


async def test_unsalted_tenants_share_prefixes(rig):
    await configure(rig, DIRECT_ALWAYS, ACME, BETA)
    prompt = prompt_of(320)
    await ask(rig, ACME_KEY, prompt)
    assert (await ask(rig, BETA_KEY, prompt)).json()["pdd"]["prefix_hit_rate"] > 0.9


async def test_the_clients_limit_makes_an_outlier(rig):
    await configure(rig, {**ONE_SHOT, "outlier.min_uncached_tokens": 200, "outlier.max_output_tokens": 50}, ACME)
    for number, (max_tokens, tokens) in enumerate([(50, 300), (51, 300), (50, 199)]):
        assert (await ask(rig, ACME_KEY, prompt_of(tokens, number), max_tokens=max_tokens)).status_code == 200
    assert await rig.settled() == {}
    assert [(record.pipeline, record.reason) for record in rig.records] == [
        ("outlier", "outlier_short_output"),
        ("relay", "transfer_long"),
        ("relay", "transfer_long"),
    ]
    outlier = rig.records[0]
    assert (outlier.output_bound_tokens, outlier.output_bound_source) == (50, "client")
    assert (outlier.eager_tokens, outlier.pulled_bytes, outlier.main_node) == (outlier.output_tokens, None, "")


async def test_what_a_tenants_answers_were_makes_an_outlier_of_a_request_without_a_limit(tmp_path):
    async with gateway_rig(tmp_path, eos_period=4, max_model_len=4000) as rig:
        await configure(
            rig, {**ONE_SHOT, "outlier.min_uncached_tokens": 30, "outlier.max_output_tokens": 300}, ACME, BETA
        )
        content = "tell me about the house over and over again " * 8

        async def chat(number, key=ACME_KEY, **fields):
            messages = [{"role": "user", "content": f"{number} {content}"}]
            body = {"model": MODEL, "temperature": 0, "messages": messages, **fields}
            headers = {"Authorization": f"Bearer {key}"}
            response = await rig.http.post(f"{rig.url}/v1/chat/completions", json=body, headers=headers)
            assert response.status_code == 200
            assert await rig.settled() == {}
            return rig.records[-1]

        for number in range(MIN_ANSWERS):
            record = await chat(number)
            assert (record.output_bound_source, record.pipeline) == ("unknown", "relay")
        later = await chat(MIN_ANSWERS)
        assert (later.output_bound_source, later.pipeline) == ("history", "outlier")
        assert later.reason == "outlier_short_output"
        assert later.output_bound_tokens <= max(record.output_tokens for record in rig.records[:MIN_ANSWERS])
        other = await chat(MIN_ANSWERS + 1, BETA_KEY)
        assert (other.output_bound_source, other.pipeline) == ("unknown", "relay"), "another tenant's answers"
        limited = await chat(MIN_ANSWERS + 2, max_tokens=2000)
        assert (limited.output_bound_source, limited.pipeline) == ("client", "relay"), "the client knows better"
