"""Reads one streamed answer of an OpenAI endpoint and times each token."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec


@dataclass(slots=True)
class TimedAnswer:
    """What came back and when. Times are seconds after the request was sent, one per chunk that held output.

    `tool_calls` are names and arguments.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    chunk_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    end_s: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    finish_reason: str | None = None
    tool_calls: list[tuple[str, str]] = field(default_factory=list)
    explanation: dict[str, Any] = field(default_factory=dict)
    status: int = 0
    error: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether the stream ended as a whole answer does."""
        return not self.error and self.finish_reason is not None


async def stream_answer(
    http: aiohttp.ClientSession, url: str, body: dict[str, Any], headers: dict[str, str]
) -> TimedAnswer:
    """POST a request with `stream` on, and read it to its end. A failure is told in `error`, never raised."""
    answer = TimedAnswer()
    sent_s = time.perf_counter()
    try:
        async with http.post(url, json=body, headers=headers) as response:
            answer.status = response.status
            if response.status != 200:
                answer.error = f"HTTP {response.status}: {(await response.text())[:200]}"
            else:
                async for event in _events(response.content):
                    _take(answer, event, time.perf_counter() - sent_s)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    except msgspec.DecodeError:
        answer.error = "a chunk of the stream is not JSON"
    answer.end_s = time.perf_counter() - sent_s
    if not answer.error and answer.finish_reason is None:
        answer.error = "the stream ended without a finish_reason"
    answer.output_tokens = answer.output_tokens or sum(answer.chunk_tokens)
    return answer


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    async for line in content:
        if not line.startswith(b"data:"):
            continue
        payload = line[5:].strip()
        if payload == b"[DONE]":
            return
        yield msgspec.json.decode(payload)


def _take(answer: TimedAnswer, event: dict[str, Any], now_s: float) -> None:
    if "error" in event:
        answer.error = str(event["error"].get("message", "error"))[:200]
        return
    usage = event.get("usage")
    if usage:
        answer.input_tokens = usage.get("prompt_tokens", 0)
        answer.output_tokens = usage.get("completion_tokens", 0)
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    answer.explanation = event.get("pdd") or answer.explanation
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            _take_call(answer, call["index"], call["function"])
        ids = choice.get("token_ids") or []
        if text or ids:
            answer.text += text
            answer.token_ids += ids
            answer.chunk_s.append(now_s)
            answer.chunk_tokens.append(len(ids) or 1)
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason


def _take_call(answer: TimedAnswer, index: int, function: dict[str, Any]) -> None:
    """Add a change of a tool call to the calls so far."""
    while len(answer.tool_calls) <= index:
        answer.tool_calls.append(("", ""))
    name, arguments = answer.tool_calls[index]
    answer.tool_calls[index] = (name + function.get("name", ""), arguments + function.get("arguments", ""))
