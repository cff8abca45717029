"""Operations on a fleet of real models under traffic: every request is counted, every answer compared by its tokens."""

import json
import random
import sys
from contextlib import ExitStack

import httpx
import pytest

from tests.embedded import last_json_line, running_fleet
from tests.operation_rig import Traffic
from tests.processes import running_process, wait_until
from tests.services import free_port

pytestmark = [pytest.mark.llama, pytest.mark.full, pytest.mark.timeout(900)]

MODEL = "smollm2-135m"
MAX_TOKENS = 24
PATIENCE_S = 240.0
# Beside ams-p-01, ams-rld-01 and fra-md-01 of every embedded fleet.
MORE = {"ams-p-02": "prefill", "ams-rld-02": "relay", "fra-md-02": "main"}
PLACES = ("the harbour", "an old station", "the market", "a northern island")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Two nodes in every role; each answers from the model."""
    data = tmp_path_factory.mktemp("llama") / "data"
    with ExitStack() as stack:
        fleet = stack.enter_context(running_fleet(data, "llama"))
        secret = json.loads((data / "secrets.json").read_text())["site_secret"]
        ports = {name: free_port() for name in MORE}
        for name, port in ports.items():
            log = stack.enter_context((data / "logs" / f"{name}.log").open("wb"))
            argv = [sys.executable, "-m", "engine_agents.nodes.llama", "--name", name, "--port", str(port)]
            stack.enter_context(running_process(argv, log, {"PDD_SITE_SECRET": secret, "OMP_WAIT_POLICY": "PASSIVE"}))
        for name, role in MORE.items():
            url = f"http://127.0.0.1:{ports[name]}"
            wait_until(lambda url=url: answers(f"{url}/health"), PATIENCE_S)
            fields = (f"site={name[:3]}", f"role={role}", f"url={url}", "engine=llama", f"model={MODEL}")
            added = fleet.pdd("fleet", "add", "nodes", name, *fields)
            assert added.returncode == 0, added.stderr
        wait_until(lambda: set(health(fleet).values()) == {"healthy"}, PATIENCE_S)
        yield fleet


def answers(url):
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def health(fleet):
    items = httpx.get(f"{fleet.web_url}/api/v1/node-health", headers=fleet.headers, trust_env=False).json()["items"]
    assert len(items) == 3 + len(MORE)
    return {item["node"]: item["health"] for item in items}


def nodes(fleet):
    return {node["name"]: node for node in json.loads(fleet.pdd("fleet", "list", "nodes", "--json").stdout)}


class ModelTraffic(Traffic):
    """Prompts of unlike lengths with a beginning in common: some KV is there already, and some is sent."""

    PROMPTS = len(PLACES)

    def body(self, number):
        numbers = random.Random(number).sample(range(1000), 30 + 15 * number)
        listed = ", ".join(map(str, numbers))
        text = f"A list of the ships that were seen near {PLACES[number]}, by their numbers: {listed}"
        return {"model": MODEL, "prompt": text, "max_tokens": MAX_TOKENS, "temperature": 0}


def undisturbed(fleet):
    """The tokens that one node gives by itself, without any traffic, hand-over or KV of others."""
    url = f"{nodes(fleet)['fra-md-01']['url']}/v1/completions"
    known = {}
    asks = ModelTraffic(fleet.gateway_url)
    for number in range(asks.PROMPTS):
        asked = {**asks.body(number), "return_token_ids": True, "cache_salt": f"alone {number}"}
        reply = httpx.post(url, json=asked, trust_env=False, timeout=PATIENCE_S)
        known[number] = reply.raise_for_status().json()["choices"][0]["token_ids"]
    assert all(len(tokens) > 1 for tokens in known.values())
    return known


def carry_out(fleet, *arguments):
    """An operation, followed to its end from the command line."""
    done = fleet.pdd(*arguments, "--wait", "--json", timeout_s=2 * PATIENCE_S)
    assert done.returncode == 0, done.stderr + done.stdout
    operation = last_json_line(done.stdout)
    assert operation["state"] == "done"
    return operation


def test_a_role_switch_and_a_rebalance_of_real_models_lose_no_request_and_break_no_stream(fleet):
    known = undisturbed(fleet)
    with ModelTraffic(fleet.gateway_url, clients=2, known=known) as traffic:
        traffic.wait_for(4, PATIENCE_S)
        carry_out(fleet, "node", "switch", "ams-p-02", "relay")
        assert (nodes(fleet)["ams-p-02"]["role"], nodes(fleet)["ams-p-02"]["state"]) == ("relay", "ready")
        traffic.wait_for(4, PATIENCE_S)
        operation = carry_out(fleet, "rebalance", "ams", "2:2:0")
        assert [move["to"] for move in operation["result"]["moves"]] == ["prefill"]
        traffic.wait_for(4, PATIENCE_S)
    assert traffic.faults == []
    assert traffic.counts["sent"] == traffic.counts["whole"] > 12
    after = nodes(fleet)
    assert {node["state"] for node in after.values()} == {"ready"}
    assert sorted(node["role"] for node in after.values()) == ["main"] * 2 + ["prefill"] * 2 + ["relay"] * 2
    sys.stdout.write(f"{traffic.counts['sent']} requests sent, {traffic.counts['whole']} whole and exact\n")
