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
    """A reply that keeps what is sent."""

    is_clogged = False

    def __init__(self):
        self.body = b""
        self.is_started = False

    def start(self, status, headers):
        self.is_started = True

    def write(self, data):
        self.body += data

    def end(self):
        """Nothing is kept of it."""

    def send(self, status, headers, body):
        self.body += body

    @property
    def chunks(self):
        lines = self.body.decode().splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def answered(response, finish="stop"):
    answer = ParsedAnswer(response, AnswerParser(AnswerFormat("hermes", "think"), wants_tools=True))
    sent = [
        answer.put(Flush((number,), text, finish if number == len(TEXTS) - 1 else None), {"content": [number]})
        for number, text in enumerate(TEXTS)
    ]
    response.finish(USAGE, None)
    return sent


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_stream_has_a_delta_for_each_part_and_every_id_and_log_probability_once(with_ids):
    sent = Sent()
    response = StreamResponse(sent, "id", "m", (), is_chat=True, with_ids=with_ids, with_usage=False)
    assert all(answered(response))
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


def test_a_body_has_the_same_parts_in_one_message():
    sent = Sent()
    answered(WholeResponse(sent, "id", "m", (), is_chat=True, with_ids=True))
    (choice,) = json.loads(sent.body)["choices"]
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("Well.", "hm")
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": "é"}'}
    assert (choice["finish_reason"], choice["token_ids"]) == ("tool_calls", list(range(len(TEXTS))))
    assert choice["logprobs"] == {"content": list(range(len(TEXTS)))}


def test_an_answer_at_its_limit_says_so_even_with_a_call_in_it():
    sent = Sent()
    answered(WholeResponse(sent, "id", "m", (), is_chat=True, with_ids=False), finish="length")
    assert json.loads(sent.body)["choices"][0]["finish_reason"] == "length"


def test_lone_surrogates_in_arguments_do_not_break_the_body():
    for response_of in (
        lambda sent: StreamResponse(sent, "id", "m", (), is_chat=True, with_ids=False, with_usage=False),
        lambda sent: WholeResponse(sent, "id", "m", (), is_chat=True, with_ids=False),
    ):
        sent = Sent()
        response = response_of(sent)
        answer = ParsedAnswer(response, AnswerParser(AnswerFormat("hermes"), wants_tools=True))
        text = '<tool_call>{"name": "f", "arguments": {"a": "\\ud83d"}}</tool_call>'
        answer.put(Flush((1,), text, "stop"))
        response.finish(USAGE, None)
        assert rb"\ud83d" in sent.body


def test_nothing_is_sent_while_a_tag_may_be_beginning():
    sent = Sent()
    response = StreamResponse(sent, "id", "m", (), is_chat=True, with_ids=False, with_usage=False)
    answer = ParsedAnswer(response, AnswerParser(AnswerFormat("hermes"), wants_tools=True))
    assert answer.put(Flush((1,), "<tool_", None)) is False
    assert (sent.body, sent.is_started) == (b"", False)
