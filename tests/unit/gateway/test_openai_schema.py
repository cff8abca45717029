"""Requests as clients send them: what is accepted, and how each refusal reads."""

import json

import pytest

from engine_agents.gateway.errors import RefusalError
from engine_agents.gateway.openai_schema import parse_request
from engine_agents.gateway.parameters import CHAT, COMPLETIONS, PARAMETERS, Handling

CHAT_BODY = {"model": "m", "messages": [{"role": "user", "content": "secret words"}]}
TEXT_BODY = {"model": "m", "prompt": "secret words"}


def parse(endpoint, **changes):
    body = {**(CHAT_BODY if endpoint == CHAT else TEXT_BODY), **changes}
    return parse_request(endpoint, json.dumps(body).encode())


def refusal_of(endpoint, **changes):
    with pytest.raises(RefusalError) as caught:
        parse(endpoint, **changes)
    assert "secret words" not in caught.value.message
    return caught.value


def test_reads_a_chat_with_its_limits_and_stops():
    request = parse(CHAT, max_completion_tokens=7, stop="END", stream=True, stream_options={"include_usage": True})
    assert (request.max_tokens, request.stop, request.is_stream, request.include_usage) == (7, ("END",), True, True)
    assert request.messages == CHAT_BODY["messages"]


def test_the_newer_name_of_the_limit_wins():
    assert parse(CHAT, max_tokens=5, max_completion_tokens=6).max_tokens == 6


def test_a_chat_without_limit_has_none_and_a_completion_openais():
    assert parse(CHAT).max_tokens is None
    assert parse(COMPLETIONS).max_tokens == 16


def test_content_parts_become_one_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert parse(CHAT, messages=[{"role": "user", "content": parts}]).messages[0]["content"] == "ab"


@pytest.mark.parametrize(
    ("prompt", "text", "ids"),
    [("hi", "hi", None), (["hi"], "hi", None), ([1, 2], None, (1, 2)), ([[1, 2]], None, (1, 2))],
)
def test_reads_each_form_of_one_prompt(prompt, text, ids):
    request = parse(COMPLETIONS, prompt=prompt)
    assert (request.text, request.prompt and request.prompt.ids) == (text, ids)


@pytest.mark.parametrize("prompt", ["", [], [[]], [""]])
def test_refuses_an_empty_prompt(prompt):
    refusal = refusal_of(COMPLETIONS, prompt=prompt)
    assert (refusal.status, refusal.code, refusal.param) == (400, "empty_prompt", "prompt")


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]], [1, "a"]])
def test_refuses_a_batch(prompt):
    assert "one prompt" in refusal_of(COMPLETIONS, prompt=prompt).message


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stream_options": 3}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"model": None}, "model"),
    ],
)
def test_a_refusal_names_the_field(changes, param):
    refusal = refusal_of(CHAT, **changes)
    assert (refusal.status, refusal.param) == (400, param)
    assert param in refusal.message


def test_a_missing_field_is_named():
    with pytest.raises(RefusalError, match="`model` is missing"):
        parse_request(CHAT, b'{"messages":[]}')


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"model":"\xff"}'])
def test_refuses_what_is_not_a_json_object(body):
    with pytest.raises(RefusalError) as caught:
        parse_request(CHAT, body)
    assert caught.value.status == 400


def test_tolerates_unknown_fields():
    assert parse(CHAT, brand_new_field={"a": 1}).model == "m"


@pytest.mark.parametrize(
    "row", [row for row in PARAMETERS if row.handling is Handling.REFUSED], ids=lambda row: row.name
)
def test_each_refused_parameter_says_why_and_lets_its_neutral_values_pass(row):
    for endpoint in row.endpoints:
        for neutral in (None, *row.neutral):
            assert parse(endpoint, **{row.name: neutral}).forced_direct_by == ""
        refusal = refusal_of(endpoint, **{row.name: {"anything": "else"}})
        assert (refusal.status, refusal.param, refusal.code) == (400, row.name, "unsupported_parameter")
        assert row.why in refusal.message


def test_one_and_true_are_different_values():
    assert refusal_of(CHAT, n=True).param == "n"
    assert parse(CHAT, presence_penalty=0.0).forced_direct_by == ""


def test_a_seed_keeps_a_sampled_request_on_one_decoder():
    assert parse(CHAT, seed=4, temperature=0.7).forced_direct_by == "seed"
    assert parse(CHAT, seed=4).forced_direct_by == "seed"
    assert parse(CHAT, seed=4, temperature=0).forced_direct_by == ""


def test_sampling_goes_to_the_engine_as_it_is_and_nothing_else_does():
    request = parse(CHAT, temperature=0.5, top_p=0.9, top_k=5, seed=1, ignore_eos=True, user="u", stop="x")
    assert request.sampling == {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 1, "ignore_eos": True}


def test_openais_default_temperature_is_said_out_loud():
    assert parse(CHAT).sampling == {"temperature": 1.0}


@pytest.mark.parametrize("field", ["metadata", "prompt", "unknown"])
def test_a_deeply_nested_body_is_refused(field):
    body = b'{"model":"m","prompt":[1],"%b":%b%b}' % (field.encode(), b"[" * 5000, b"]" * 5000)
    with pytest.raises(RefusalError) as caught:
        parse_request(COMPLETIONS, body)
    assert caught.value.status == 400
