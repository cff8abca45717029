"""Events in, whatever the network does to them, and chunks out."""

import itertools
import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from engine_agents.gateway.node_replies import Chunk
from engine_agents.gateway.sse import DONE, ChunkWriter, EventParser

CAPTURE = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" Paris",'
    b'"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":[504],"token_ids":[7042]}],'
    b'"usage":{"prompt_tokens":5,"total_tokens":6,"completion_tokens":1}}\n\n'
    b'data: {"id":"cmpl-1","choices":[{"index":0,"text":".\\n\\nThe answer","finish_reason":"length",'
    b'"stop_reason":null,"token_ids":[30,198,198,504,2988]}]}\n\n'
    b": a comment\n\n"
    b'data: {"id":"cmpl-1","choices":[],"usage":{"prompt_tokens":5,"total_tokens":11,"completion_tokens":6}}\r\n\r\n'
    b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(CAPTURE)), max_size=20))
def test_events_are_the_same_wherever_the_bytes_are_cut(cuts):
    parser, events = EventParser(), []
    edges = [0, *sorted(cuts), len(CAPTURE)]
    for start, end in itertools.pairwise(edges):
        events += parser.feed(CAPTURE[start:end])
    assert len(events) == 4
    assert events[-1] == DONE


def test_a_chunk_may_carry_several_ids():
    first, second, usage, _ = EventParser().feed(CAPTURE)
    assert msgspec.json.decode(first, type=Chunk).choices[0].token_ids == (7042,)
    choice = msgspec.json.decode(second, type=Chunk).choices[0]
    assert (len(choice.token_ids), choice.finish_reason) == (5, "length")
    assert msgspec.json.decode(usage, type=Chunk).choices == ()


def data_of(event):
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    return json.loads(event[6:])


def test_writes_chat_chunks_as_openai_does():
    writer = ChunkWriter("chatcmpl-1", 12, 'm"', is_chat=True)
    opening, chunk = data_of(writer.opening()), data_of(writer.chunk('a"\n\u20ac', None, None))
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunk == {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 12,
        "model": 'm"',
        "choices": [{"index": 0, "delta": {"content": 'a"\n\u20ac'}, "logprobs": None, "finish_reason": None}],
    }


def test_writes_text_chunks_with_ids_and_an_end():
    writer = ChunkWriter("cmpl-1", 12, "m", is_chat=False)
    assert writer.opening() == b""
    choice = data_of(writer.chunk("x", "stop", (1, 2)))["choices"][0]
    assert choice == {"index": 0, "text": "x", "logprobs": None, "finish_reason": "stop", "token_ids": [1, 2]}


def test_the_usage_chunk_has_no_choices():
    chunk = data_of(ChunkWriter("c", 1, "m", is_chat=True).usage(b'{"prompt_tokens":1}', b'{"reason":"r"}'))
    assert (chunk["choices"], chunk["usage"], chunk["pdd"]) == ([], {"prompt_tokens": 1}, {"reason": "r"})


def test_a_percent_sign_in_a_text_is_a_percent_sign():
    writer = ChunkWriter("%d", 1, "100%b", is_chat=False)
    document = data_of(writer.chunk("50 %b of %s", None, None))
    assert (document["id"], document["model"], document["choices"][0]["text"]) == ("%d", "100%b", "50 %b of %s")
