"""The whole fleet on a real model: handoffs that change no token, and the OpenAI client through RELAY."""

import httpx
import openai
import pytest

from tests.embedded import last_json_line, running_fleet

pytestmark = [pytest.mark.llama, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def llama_fleet(tmp_path_factory):
    with running_fleet(tmp_path_factory.mktemp("llama") / "data", "llama") as fleet:
        yield fleet


@pytest.mark.full
def test_every_answer_is_exact_and_some_were_handed_over(llama_fleet):
    check = llama_fleet.pdd("check", "handoff", "--requests", "8", "--concurrency", "2", "--json", timeout_s=350)
    found = last_json_line(check.stdout)
    assert found["exact"] == found["requests"] == 8, check.stderr
    assert found["pipelines"]["relay"] > 0
    assert sum(found["handoff_modes"].values()) > 0, check.stderr


@pytest.mark.full
@pytest.mark.timeout(900)
def test_eight_at_once_are_exact_through_all_pipelines(llama_fleet):
    check = llama_fleet.pdd("check", "handoff", "--requests", "24", "--concurrency", "8", "--json", timeout_s=850)
    found = last_json_line(check.stdout)
    assert found["exact"] == found["requests"] == 24, check.stderr
    assert set(found["pipelines"]) == {"direct", "relay", "outlier"}
    assert found["pipelines"]["relay"] > 0
    assert check.returncode == 0


def test_the_openai_client_streams_a_chat_of_a_real_model_through_relay(llama_fleet):
    with openai.OpenAI(
        base_url=f"{llama_fleet.gateway_url}/v1", api_key="none", http_client=httpx.Client(trust_env=False)
    ) as client:
        stream = client.chat.completions.create(
            model="smollm2-135m",
            messages=[{"role": "user", "content": "List ten animals that live in the sea."}],
            max_tokens=48,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"X-PDD-Explain": "1"},
        )
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices).strip()
    assert chunks[-1].pdd["pipeline"] == "relay"
    assert chunks[-1].usage.completion_tokens > 0
