"""`/v1/completions`: from a checked request to the node's work and back to chunks."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from engine_agents.nodes.engine import Sampling
from engine_agents.nodes.errors import RequestError
from engine_agents.nodes.logprobs import LogprobWriter, joined_logprobs
from engine_agents.nodes.node import Node, Work
from engine_agents.nodes.replies import Envelope, Piece, Usage
from engine_agents.nodes.schemas import CompletionRequest, StreamOptions, pull_source
from engine_agents.nodes.text import StopScanner, TextStream

DEFAULT_MAX_TOKENS = 16


@dataclass(slots=True)
class Completion:
    """One request on its way through the node."""

    node: Node
    work: Work
    envelope: Envelope
    stops: Sequence[str]
    options: StreamOptions
    output_tokens: int = field(default=0, init=False)

    def usage(self) -> Usage:
        """The usage so far."""
        return Usage(len(self.work.prompt), self.output_tokens, self.work.cached_tokens)

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The choice piece by piece; one per engine step."""
        text, scanner = TextStream(), StopScanner(self.stops)
        writer = None if self.work.sampling.logprobs is None else LogprobWriter()
        async with aclosing(self.node.run(self.work)) as steps:
            async for step in steps:
                self.output_tokens += len(step.token_ids)
                is_last = step.finish is not None
                ready = scanner.feed(text.feed(b"".join(step.token_bytes), final=is_last), final=is_last)
                logprobs = writer.document(step) if writer else None
                if scanner.found is not None:
                    yield Piece(ready, step.token_ids, "stop", scanner.found, logprobs)
                    return
                yield Piece(ready, step.token_ids, step.finish, None, logprobs)

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """The stream's documents, at the end the usage chunk where it is wanted."""
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                yield self.envelope.chunk([piece], self.usage() if self.options.continuous_usage_stats else None)
        if self.options.include_usage:
            yield self.envelope.final([], self.usage(), self.work.figures())

    async def document(self) -> dict[str, Any]:
        """The whole reply at once."""
        async with aclosing(self.pieces()) as pieces:
            parts = [piece async for piece in pieces]
        ids = tuple(token for part in parts for token in part.token_ids)
        logprobs = joined_logprobs([part.logprobs for part in parts if part.logprobs is not None])
        text = "".join(part.text for part in parts)
        whole = Piece(text, ids, parts[-1].finish_reason, parts[-1].stop_reason, logprobs)
        return {
            **self.envelope.final([whole], self.usage(), self.work.figures()),
            "kv_transfer_params": self._lease_params(),
        }

    def abandon(self) -> None:
        """The client did not get the reply: nobody will ever read the lease in it."""
        if self.work.lease is not None:
            self.node.leases.release(self.work.lease.id)

    def _lease_params(self) -> dict[str, Any] | None:
        lease = self.work.lease
        if lease is None:
            return None
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.node.id,
            "remote_request_id": lease.id,
            "remote_block_ids": list(range(len(lease.hashes))),
            "remote_host": self.node.kv_host,
            "remote_port": self.node.kv_port,
            "remote_num_tokens": lease.token_count,
        }


async def completion_of(request: CompletionRequest, node: Node) -> Completion:
    """The completion that a request asks this node for.

    Raises:
        RequestError: it cannot be served as it is.
    """
    if request.model != node.engine.model:
        raise RequestError(f"no model {request.model} here", status=404, param="model", code="model_not_found")
    prompt = await _prompt_ids(request, node)
    max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    _check_length(len(prompt), max_tokens, node.engine.max_model_len)
    params = request.kv_transfer_params
    wants_lease = params is not None and params.do_remote_decode
    if wants_lease and request.stream:
        raise RequestError("a lease is given in a reply that is not a stream", param="stream")
    work = Work(
        prompt=prompt,
        max_tokens=max_tokens,
        sampling=_sampling(request),
        salt=(request.cache_salt or "").encode(),
        source=pull_source(params, len(prompt)) if params is not None and params.do_remote_prefill else None,
        wants_lease=wants_lease,
        lease_id=request.request_id or "",
        max_computed_tokens=request.max_computed_tokens,
    )
    envelope = Envelope.of(request.request_id or work.id, node.engine.model, with_ids=bool(request.return_token_ids))
    return Completion(node, work, envelope, request.stops(), request.stream_options or StreamOptions())


async def _prompt_ids(request: CompletionRequest, node: Node) -> tuple[int, ...]:
    if isinstance(request.prompt, str):
        return tuple(await node.engine.tokenize(request.prompt, add_special=True))
    return tuple(request.prompt)


def _check_length(prompt_tokens: int, max_tokens: int, max_model_len: int) -> None:
    if prompt_tokens == 0:
        raise RequestError("the prompt is empty", param="prompt")
    if prompt_tokens + max_tokens > max_model_len:
        raise RequestError(
            f"{prompt_tokens} prompt tokens and {max_tokens} to generate exceed the model's {max_model_len}",
            param="prompt",
            code="context_length_exceeded",
        )


def _sampling(request: CompletionRequest) -> Sampling:
    return Sampling(
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=max(0, request.top_k or 0),
        min_p=request.min_p or 0.0,
        seed=request.seed,
        ignore_eos=bool(request.ignore_eos),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=request.repetition_penalty or 1.0,
        logit_bias=tuple((request.logit_bias or {}).items()),
        logprobs=request.logprobs,
    )
