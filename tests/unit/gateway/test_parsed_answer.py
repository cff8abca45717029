"""An answer's parts on their way to the client, streamed and in one body."""

import json

import pytest

from control.domain.answer_parser import AnswerFormat, AnswerParser
from control.domain.commit import Flush
from engine_agents.gateway.parsed_answer import ParsedAnswer
from engine_agents.gateway.responses import StreamResponse, Usage, WholeResponse

CALL = '<tool_call>{"name": "f", "arguments": {"a": "é"}}</tool_call>'
TEXTS = ("<thi", "nk>hm</think>", "Well. ", CALL[:20], CALL[20:])
USAGE = Usage(1, 2, 3, None)


class Sent:
    """Keeps what a response sends."""

    def __init__(self):
        self.body = b""

    async def __call__(self, message):
        self.body += message.get("body", b"")

    @property
    def chunks(self):
        lines = self.body.decode().splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


async def answered(response, finish="stop"):
    answer = ParsedAnswer(response, AnswerParser(AnswerFormat("hermes", "think"), wants_tools=True))
    sent = [
        await answer.put(Flush((number,), text, finish if number == len(TEXTS) - 1 else None), {"content": [number]})
        for number, text in enumerate(TEXTS)
    ]
    await response.finish(USAGE, None)
    return sent


@pytest.mark.parametrize("with_ids", [True, False])
async def test_a_stream_has_a_delta_for_each_part_and_every_id_and_log_probability_once(with_ids):
    sent = Sent()
    response = StreamResponse(sent, "id", "m", (), is_chat=True, with_ids=with_ids, with_usage=False)
    assert all(await answered(response))
    choices = [chunk["choices"][0] for chunk in sent.chunks]
    assert [choice["delta"] for choice in choices[:3]] == [
        {"role": "assistant", "content": ""},
        {},
        {"reasoning_content": "hm"},
    ]
    ids = [token for choice in choices for token in choice.get("token_ids") or ()]
    assert ids == (list(range(len(TEXTS))) if with_ids else [])
    likely = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert likely == list(range(len(TEXTS)))
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    assert [call["function"].get("arguments") for call in calls] == ["", '{"a": "é"}']
    assert {call["index"] for call in calls} == {0}
    assert [choice["finish_reason"] for choice in choices][-2:] == [None, "tool_calls"]


async def test_a_body_has_the_same_parts_in_one_message():
    sent = Sent()
    await answered(WholeResponse(sent, "id", "m", (), is_chat=True, with_ids=True))
    (choice,) = json.loads(sent.body)["choices"]
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("Well.", "hm")
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": "é"}'}
    assert (choice["finish_reason"], choice["token_ids"]) == ("tool_calls", list(range(len(TEXTS))))
    assert choice["logprobs"] == {"content": list(range(len(TEXTS)))}


async def test_an_answer_at_its_limit_says_so_even_with_a_call_in_it():
    sent = Sent()
    await answered(WholeResponse(sent, "id", "m", (), is_chat=True, with_ids=False), finish="length")
    assert json.loads(sent.body)["choices"][0]["finish_reason"] == "length"


async def test_lone_surrogates_in_arguments_do_not_break_the_body():
    for response_of in (
        lambda sent: StreamResponse(sent, "id", "m", (), is_chat=True, with_ids=False, with_usage=False),
        lambda sent: WholeResponse(sent, "id", "m", (), is_chat=True, with_ids=False),
    ):
        sent = Sent()
        response = response_of(sent)
        answer = ParsedAnswer(response, AnswerParser(AnswerFormat("hermes"), wants_tools=True))
        text = '<tool_call>{"name": "f", "arguments": {"a": "\\ud83d"}}</tool_call>'
        await answer.put(Flush((1,), text, "stop"))
        await response.finish(USAGE, None)
        assert rb"\ud83d" in sent.body


async def test_nothing_is_sent_while_a_tag_may_be_beginning():
    sent = Sent()
    response = StreamResponse(sent, "id", "m", (), is_chat=True, with_ids=False, with_usage=False)
    answer = ParsedAnswer(response, AnswerParser(AnswerFormat("hermes"), wants_tools=True))
    assert await answer.put(Flush((1,), "<tool_", None)) is False
    assert (sent.body, response.is_started) == (b"", False)
