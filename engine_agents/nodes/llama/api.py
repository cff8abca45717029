"""Client of the in-process llama.cpp server's HTTP API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

_CONNECT_TIMEOUT_S = 5.0
_KEEP_ALIVE_S = 3.0  # shorter than the server's 5, or it closes a connection that we are about to use
_SPARE_CONNECTIONS = 3
_STEP_FIELDS = ["tokens", "stop_type", "timings/cache_n", "timings/prompt_n", "completion_probabilities"]


class LlamaError(Exception):
    """The llama.cpp server refused a request, or answered what it never should."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"llama.cpp answered {status}: {message}")
        self.status = status


@dataclass(frozen=True, slots=True)
class NextToken:
    """One token behind a prompt, and how much of the prompt was in the slot already and how much was computed."""

    token_id: int
    is_end: bool
    cached_tokens: int
    computed_tokens: int
    logprob: float | None = None
    top: tuple[tuple[bytes, float], ...] = ()


class LlamaApi:
    """The calls an engine makes. All of them may be repeated, so a call on a stale connection is."""

    def __init__(self, url: str, api_key: str, slots: int) -> None:
        self._session = aiohttp.ClientSession(
            base_url=url,
            headers={"Authorization": f"Bearer {api_key}"},
            connector=aiohttp.TCPConnector(limit=slots + _SPARE_CONNECTIONS, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
        )

    async def close(self) -> None:
        """Close the connections; safe to call twice."""
        await self._session.close()

    async def next_token(
        self, slot: int, tokens: Sequence[int], options: Mapping[str, Any], *, want_logprob: bool = False
    ) -> NextToken:
        """Evaluate what of `tokens` the slot lacks and choose the token behind them.

        `logprob` and `top` are empty unless they are wanted, here or by the options' `n_probs`; llama.cpp also leaves
        them out where a token ends inside a character.

        Raises:
            LlamaError: the server refused.
        """
        body = {
            "prompt": list(tokens),
            "n_predict": 1,
            "id_slot": slot,
            "cache_prompt": True,
            "return_tokens": True,
            "response_fields": _STEP_FIELDS,
        }
        answer = await self._post("/completion", body | dict(options) | ({"n_probs": 1} if want_logprob else {}))
        if len(answer["tokens"]) != 1:
            raise LlamaError(200, f"{len(answer['tokens'])} tokens where one was asked for")
        chosen = (answer.get("completion_probabilities") or [{}])[0]
        return NextToken(
            token_id=answer["tokens"][0],
            is_end=answer["stop_type"] == "eos",
            cached_tokens=answer["timings/cache_n"],
            computed_tokens=answer["timings/prompt_n"],
            logprob=chosen.get("logprob"),
            top=tuple((bytes(entry["bytes"]), entry["logprob"]) for entry in chosen.get("top_logprobs", ())),
        )

    async def save_slot(self, slot: int, name: str) -> None:
        """Save a slot to the file `name`; waits while the slot is at work."""
        await self._post(f"/slots/{slot}?action=save", {"filename": name})

    async def restore_slot(self, slot: int, name: str) -> int:
        """Replace a slot's contents by the file `name`; gives back how many tokens it has now."""
        answer = await self._post(f"/slots/{slot}?action=restore", {"filename": name})
        return int(answer["n_restored"])

    async def erase_slot(self, slot: int) -> None:
        """Empty a slot."""
        await self._post(f"/slots/{slot}?action=erase", {})

    async def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        """Token ids of a text in which the names of special tokens stand for these tokens."""
        body = {"content": text, "add_special": add_special, "parse_special": True}
        tokens: list[int] = (await self._post("/tokenize", body))["tokens"]
        return tokens

    async def detokenize(self, token_id: int) -> str:
        """The text of one token, special ones by their name; broken where the token ends inside a character."""
        return str((await self._post("/detokenize", {"tokens": [token_id]}))["content"])

    async def template_knows_tools(self) -> bool:
        """Whether the model's chat template renders tools, calls and results."""
        caps = (await self._get("/props")).get("chat_template_caps") or {}
        return all(caps.get(cap, False) for cap in ("supports_tools", "supports_tool_calls"))

    async def apply_template(
        self, messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool, tools: Sequence[dict[str, Any]] = ()
    ) -> str:
        """The prompt text of a chat."""
        body: dict[str, Any] = {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        if tools:
            body["tools"] = list(tools)
        return str((await self._post("/apply-template", body))["prompt"])

    async def max_model_len(self) -> int:
        """Tokens that prompt and output of one slot may have together."""
        return int((await self._get("/props"))["default_generation_settings"]["n_ctx"])

    async def vocabulary(self) -> list[bytes]:
        """The bytes that each token id puts out; none for special tokens.

        There is no endpoint for it, and text is no way to it, since a token may end inside a character. But the
        log-probabilities of a step list tokens with their bytes, and one may ask for as many as there are tokens.
        """
        size = int((await self._get("/v1/models"))["data"][0]["meta"]["n_vocab"])
        for token_id in range(min(size, 16)):
            body = {
                "prompt": [token_id],
                "n_predict": 1,
                "id_slot": 0,
                "cache_prompt": False,
                "temperature": 0.0,
                "n_probs": size,
                "response_fields": ["completion_probabilities"],
            }
            listed = (await self._post("/completion", body)).get("completion_probabilities")
            if listed:  # not if the chosen token itself ends inside a character
                return _vocabulary_of(listed[0]["top_logprobs"], size)
        raise LlamaError(200, "no step listed the vocabulary")

    async def _get(self, path: str) -> dict[str, Any]:
        async with self._session.get(path) as response:
            return _checked(response.status, await response.read())

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        data = msgspec.json.encode(body)
        if self._session.closed:
            raise LlamaError(503, "the server has been stopped")
        try:
            return await self._post_once(path, data)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionResetError):
            if self._session.closed:
                raise LlamaError(503, "the server has been stopped") from None
            return await self._post_once(path, data)

    async def _post_once(self, path: str, data: bytes) -> dict[str, Any]:
        async with self._session.post(path, data=data, headers={"Content-Type": "application/json"}) as response:
            return _checked(response.status, await response.read())


def _vocabulary_of(listed: Sequence[dict[str, Any]], size: int) -> list[bytes]:
    pieces = {int(entry["id"]): bytes(entry["bytes"]) for entry in listed}
    if len(pieces) != size:
        raise LlamaError(200, f"{len(pieces)} of {size} tokens listed")
    return [pieces[token_id] for token_id in range(size)]


def _checked(status: int, data: bytes) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(data)
    except msgspec.DecodeError:
        raise LlamaError(status, "no JSON") from None
    if not isinstance(answer, dict):
        raise LlamaError(status, "no JSON object")
    if status != 200:
        raise LlamaError(status, str(answer.get("error", {}).get("message", "no reason given")))
    return answer
