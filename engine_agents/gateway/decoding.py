"""One generation on one node, committed chunk by chunk."""

from collections.abc import Callable, Mapping
from typing import Any

from control.domain.commit import Turn
from control.domain.topology import Node
from engine_agents.gateway.characters import CheckedStream
from engine_agents.gateway.exchange import Exchange
from engine_agents.gateway.node_errors import NodeRefusedError
from engine_agents.gateway.node_replies import Chunk, WorkDone
from engine_agents.gateway.node_stream import NodeStream
from engine_agents.gateway.prompt import Prompt


def open_stream(
    x: Exchange,
    node: Node,
    prompt: Prompt,
    max_tokens: int,
    *,
    kv_params: Mapping[str, Any] | None = None,
    max_computed_tokens: int | None = None,
) -> NodeStream | CheckedStream:
    """The request's generation on a node, from this prompt on, with the client's sampling."""
    model = x.request.model
    stream = x.client.stream(
        node,
        prompt,
        model,
        max_tokens,
        sampling=x.request.sampling,
        kv_params=kv_params,
        salt=x.salt,
        max_computed_tokens=max_computed_tokens,
    )
    if not node.is_stock:
        return stream
    return CheckedStream(stream, x.client, node, model, x.state.whole_token_ids(model))


async def decode(
    x: Exchange,
    turn: Turn,
    node: Node,
    prompt: Prompt,
    max_tokens: int,
    *,
    kv_params: Mapping[str, Any] | None = None,
    max_computed_tokens: int | None = None,
    on_first: Callable[[], None] | None = None,
) -> WorkDone:
    """Generate up to `max_tokens` on a node, committed in this turn; `on_first` is called at the first chunk.

    The connection is closed as soon as the answer is complete, which stops the engine where a stop string ended it.

    Raises:
        NodeError: the node failed; what was committed stays, and another node can go on from it.
    """
    work = WorkDone()
    is_over = False

    def take(chunk: Chunk) -> bool:
        nonlocal work, on_first, is_over
        if on_first is not None:
            on_first()
            on_first = None
        work = chunk.work(had_kv_params=kv_params is not None) or work
        is_engine_done = x.accept(turn, node.name, chunk)
        is_over = x.commit.is_done and not is_engine_done and bool(chunk.choices)
        return not (is_over or x.answer.is_clogged)

    stream = open_stream(x, node, prompt, max_tokens, kv_params=kv_params, max_computed_tokens=max_computed_tokens)
    with x.state.work_on(node):
        async with stream:
            while not await stream.run(take) and not is_over:
                await x.answer.drained()
    return work


async def decode_to_end(
    x: Exchange,
    turn: Turn,
    node: Node,
    prompt: Prompt,
    *,
    kv_params: Mapping[str, Any] | None = None,
    max_computed_tokens: int | None = None,
    on_first: Callable[[], None] | None = None,
) -> WorkDone:
    """Generate the rest of the answer on a node.

    Raises:
        NodeError: as `decode`; also where the node ends the answer too early.
    """
    work = await decode(
        x,
        turn,
        node,
        prompt,
        x.commit.remaining_tokens,
        kv_params=kv_params,
        max_computed_tokens=max_computed_tokens,
        on_first=on_first,
    )
    if not x.commit.is_done:
        raise NodeRefusedError(node.name, "ended the answer before its limit")
    return work
