"""The whole fleet on emulated nodes, through its own command line and the OpenAI client."""

import json

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from control.metric_catalogue import METRICS, Process
from tests.embedded import last_json_line
from tests.processes import wait_until

pytestmark = pytest.mark.timeout(300)

CHAT = [{"role": "user", "content": "Tell me a long story about a port, a parser and the sea, from its beginning."}]


def test_every_answer_is_exact_through_all_pipelines_and_both_handoff_modes(emulated_fleet):
    check = emulated_fleet.pdd("check", "handoff", "--requests", "24", "--concurrency", "8", "--json", timeout_s=240)
    found = last_json_line(check.stdout)
    assert found["exact"] == found["requests"] == 24, check.stderr
    assert list(found) == ["requests", "exact", "pipelines", "handoff_modes", "texts", "tool_calls"]
    assert set(found["pipelines"]) == {"direct", "relay", "outlier"}
    assert set(found["texts"]) == {"plain", "stop", "multi_byte", "tools"}
    for counts in (found["pipelines"], found["handoff_modes"], found["texts"]):
        assert all(counts.values()), check.stderr
    assert found["tool_calls"] > 0, check.stderr
    assert check.returncode == 0


def test_the_openai_client_streams_a_chat_through_relay(emulated_fleet):
    with openai.OpenAI(
        base_url=f"{emulated_fleet.gateway_url}/v1", api_key="none", http_client=httpx.Client(trust_env=False)
    ) as client:
        stream = client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=CHAT,
            max_tokens=60,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"X-PDD-Explain": "1"},
        )
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    last = chunks[-1]
    assert text
    assert last.usage.completion_tokens > 0
    assert last.pdd["pipeline"] == "relay"
    assert last.pdd["eager_tokens"] > 0


def test_a_changed_policy_reaches_the_gateway_and_shows_in_the_next_requests(emulated_fleet):
    def explained(content):
        body = {"model": "smollm2-135m", "max_tokens": 4, "messages": [{"role": "user", "content": content}]}
        reply = httpx.post(
            f"{emulated_fleet.gateway_url}/v1/chat/completions",
            json=body,
            headers={"X-PDD-Explain": "1"},
            trust_env=False,
            timeout=60,
        )
        return reply.raise_for_status().json()["pdd"]

    before = explained("a first prompt that nobody has ever sent before this one")["policy_revision"]
    changed = emulated_fleet.pdd("policy", "set", "routing.relay_when_transfer_exceeds_s=600", "--json")
    revision = last_json_line(changed.stdout)["number"]
    try:
        assert revision > before
        wait_until(lambda: f"ams-gw-01 runs {revision} (applied" in emulated_fleet.pdd("policy", "show").stdout)
        after = explained("another prompt that nobody has ever sent before this very one")
        assert (after["policy_revision"], after["pipeline"]) == (revision, "direct")
    finally:
        emulated_fleet.pdd("policy", "apply", str(before))


def test_a_load_runs_to_its_end_and_reports_every_figure(emulated_fleet):
    run = emulated_fleet.pdd(
        "load", "--requests", "6", "--sessions", "3", "--think", "0", "--scale", "0.3", "--json", timeout_s=240
    )
    report = last_json_line(run.stdout)
    assert (report["requests"], report["completed"], report["failed"]) == (6, 6, 0), run.stderr
    assert all(report[figure]["p50"] > 0 for figure in ("ttft_s", "ttst_s", "tpot_s", "itl_s", "e2e_s"))
    assert report["errors"] == []


def test_the_rest_api_and_the_page_ask_who_is_there(emulated_fleet):
    with httpx.Client(base_url=emulated_fleet.web_url, trust_env=False) as client:
        assert client.get("/openapi.json").json()["openapi"].startswith("3.1")
        assert client.get("/api/v1/nodes").status_code == 401
        assert client.put("/api/v1/demo-traffic", json={"running": False}).status_code == 401
        nodes = client.get("/api/v1/nodes", headers=emulated_fleet.headers).json()["items"]
        assert {node["role"] for node in nodes} == {"prefill", "relay", "main"}
        assert client.get("/").headers["location"].startswith("/login")


def test_what_cannot_be_done_is_one_plain_sentence(emulated_fleet, tmp_path):
    refused = emulated_fleet.pdd("policy", "set", "routing.no_such_field=1")
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert "no_such_field" in refused.stderr or "policy" in refused.stderr.lower()


def scraped(text):
    """What a process emits: type, help and the label names of each family, by the name it is scraped under."""
    found = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        found[name] = family.type, family.documentation, labels
    return found


@pytest.mark.full
def test_every_process_emits_what_the_catalogue_says_and_nothing_else(emulated_fleet):
    emulated_fleet.pdd("check", "handoff", "--requests", "12", "--json", timeout_s=240)
    ports = json.loads((emulated_fleet.data / "ports.json").read_text())
    addresses = {
        Process.GATEWAY: [emulated_fleet.gateway_url],
        Process.NODE: [f"http://127.0.0.1:{ports['nodes']}/nodes/{name}" for name in ("ams-p-01", "fra-md-01")],
        Process.WAN: [f"http://127.0.0.1:{ports['wan.admin']}"],
        Process.WEB: [emulated_fleet.web_url],
        Process.TELEMETRY: [f"http://127.0.0.1:{ports['telemetry.metrics']}"],
        Process.WORKER: [f"http://127.0.0.1:{ports['worker.metrics']}"],
        Process.OBSERVER: [f"http://127.0.0.1:{ports[f'observer-{site}.metrics']}" for site in ("ams", "fra")],
        Process.AGENT: [f"http://127.0.0.1:{ports[f'agent-{site}.metrics']}" for site in ("ams", "fra")],
    }
    assert set(addresses) == set(Process)
    for process, urls in addresses.items():
        expected = {one.name: one for one in METRICS if one.process is process}
        for url in urls:
            reply = httpx.get(f"{url}/metrics", trust_env=False, timeout=30).raise_for_status()
            own = {
                name: found
                for name, found in scraped(reply.text).items()
                if not name.startswith(("process_", "python_"))
            }
            assert set(own) == set(expected), url
            for name, (kind, text, labels) in own.items():
                facts = expected[name]
                assert (kind, text) == (facts.kind, facts.text), name
                assert labels <= {frozenset(facts.labels)}, (name, labels)
