"""Our nodes beside a recorded stock vLLM: whoever reads the one can read the other."""

import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.contract.conftest import emulated_specs, hosted
from tests.fleet import prompt_of

LABELS_OF_OURS = {"model_name", "engine", "source"}


def events_of(text: str) -> list[str]:
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


def kinds_of(chunks: list[dict]) -> dict[str, set[type]]:
    """Which types each key takes, keys of nested objects written with dots."""
    kinds: dict[str, set[type]] = {}

    def visit(prefix: str, value) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                visit(f"{prefix}.{key}" if prefix else key, inner)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for inner in value:
                visit(prefix, inner)
        else:
            kinds.setdefault(prefix, set()).add(type(value))

    for chunk in chunks:
        visit("", chunk)
    return kinds


async def our_stream() -> tuple[list[dict], str, str]:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with hosted(emulated_specs()) as nodes:
        client = nodes["p"]
        body = client.body(prompt_of(5), stream=True, max_tokens=6, stream_options=options)
        response = await client.post("/v1/completions", body)
    events = events_of(response.text)
    return [json.loads(event) for event in events[:-1]], events[-1], response.headers["content-type"]


async def test_stream_chunks_have_the_recorded_keys_and_types(captures: Path):
    recorded = events_of((captures / "sse_completion.txt").read_text())
    ours, last, _ = await our_stream()
    theirs = kinds_of([json.loads(event) for event in recorded[:-1]])
    mine = kinds_of(ours)
    assert recorded[-1] == last == "[DONE]"
    for key, kinds in theirs.items():
        if key.startswith("choices.logprobs."):
            continue  # recorded with logprobs asked for, which our nodes refuse
        assert key in mine, key
        assert mine[key] <= kinds | {type(None)}, key


async def test_the_last_chunk_has_usage_and_no_choices_as_recorded(captures: Path):
    recorded = json.loads(events_of((captures / "sse_completion.txt").read_text())[-2])
    ours, _, _ = await our_stream()
    assert recorded["choices"] == ours[-1]["choices"] == []
    assert set(recorded) <= set(ours[-1])
    assert set(recorded["usage"]) <= set(ours[-1]["usage"])
    assert ours[-1]["usage"]["total_tokens"] == 11


async def test_the_stream_is_announced_as_recorded(captures: Path):
    recorded = dict(
        line.split(": ", 1) for line in (captures / "sse_headers.txt").read_text().splitlines() if ": " in line
    )
    _, _, content_type = await our_stream()
    assert content_type == recorded["content-type"]


@pytest.mark.parametrize("name", ["metrics_nixl_P.txt", "metrics_nixl_R.txt", "metrics_nixl_M.txt"])
async def test_metrics_that_carry_vllms_names_are_vllms_metrics(captures: Path, name: str):
    recorded = {family.name: family for family in text_string_to_metric_families((captures / name).read_text())}
    async with hosted(emulated_specs()) as nodes:
        text = (await nodes["p"].get("/metrics")).text
    ours = [family for family in text_string_to_metric_families(text) if family.name.startswith("vllm:")]
    assert len(ours) >= 5
    for family in ours:
        assert family.name in recorded
        theirs = recorded[family.name]
        assert family.type == theirs.type
        assert {key for sample in family.samples for key in sample.labels} <= LABELS_OF_OURS
        assert set(family.samples[0].labels) == set(theirs.samples[0].labels), family.name


async def test_every_path_of_the_dialect_is_one_of_vllms(captures: Path):
    recorded = {line.split()[-1] for line in (captures / "openapi_paths.txt").read_text().splitlines() if line}
    async with hosted(emulated_specs()) as nodes:
        client = nodes["p"]
        for path in ("/load", "/version", "/health", "/metrics", "/v1/models"):
            assert path in recorded
            assert (await client.get(path)).status_code == 200
        for path in ("/tokenize", "/detokenize", "/v1/completions"):
            assert path in recorded
            assert (await client.post(path, {})).status_code == 400
