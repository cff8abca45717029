"""What the twin's kernel knows: plain arrays of records, so that it compiles; `scenario` fills them.

Nodes are servers 0 to N − 1, links servers N to N + L − 1. A session has at most one request at a time, and the request
has its session's number. Times are seconds, sizes bytes or tokens as the names say; −1 stands for none.
"""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from control.domain.handoff import HandoffKnobs
from control.domain.routing import NodeKnobs, RouteKnobs

NONE = -1
WAYS = 2
"""Nodes of one role on which a session's prefix is remembered."""


class NodeRole(IntEnum):
    """What a node does, as a number."""

    PREFILL = 0
    RELAY = 1
    MAIN = 2


class Stage(IntEnum):
    """How far a request is. LOST: a node has failed it, and nobody has noticed yet."""

    IDLE = 0
    PREFILL = 1
    RUNNING = 2
    LOST = 3


class RelayState(IntEnum):
    """Where a request is on its relay node. STOPPED: it has made all that it may."""

    NONE = 0
    PLANNED = 1
    KV_COMES = 2
    WAITS = 3
    DECODES = 4
    STOPPED = 5
    LEFT = 6


class MainState(IntEnum):
    """Where a request is on its main node. ADMITTED: there is room for it, and its prompt's KV."""

    NONE = 0
    KV_COMES = 1
    WAITS = 2
    ADMITTED = 3
    DECODES = 4


class TransferState(IntEnum):
    """How far a transfer is. SENT: its bytes are across, earlier ones that it builds on are not. DROPPED: void."""

    FREE = 0
    MARKED = 1
    SETUP = 2
    WAITS = 3
    SENDS = 4
    SENT = 5
    DROPPED = 6


class FaultKind(IntEnum):
    """What breaks. LINK_RATE: the link really carries `value` of its capacity, which no gateway is told."""

    NODE_DOWN = 0
    NODE_UP = 1
    LINK_RATE = 2


class Happens(IntEnum):
    """The kinds of things that happen at a moment fixed beforehand."""

    TURN_BEGINS = 0
    PREFILLED = 1
    RELAY_READY = 2
    TRANSFER_BEGINS = 3
    CAUGHT_UP = 4
    MAIN_BEGINS = 5
    RESUMES = 6
    FAULT = 7


def _record(**fields: str) -> np.dtype[Any]:
    return np.dtype(list(fields.items()), align=True)


TURN = _record(
    input_tokens="i4", reuse_tokens="i4", shared_tokens="i4", output_tokens="i4", bound_tokens="i4", think_s="f8"
)
"""One request of a session: of its prompt, `reuse_tokens` have been in an earlier prompt or answer of the session, and
`shared_tokens` are in every cache. `think_s` passes between the last answer and it."""

RESULT = _record(
    arrived_s="f8",
    ttft_s="f8",
    end_s="f8",
    tpot_s="f8",
    transfer_s="f8",
    stall_s="f8",
    input_tokens="i4",
    output_tokens="i4",
    eager_tokens="i4",
    cached_tokens="i4",
    sent_tokens="i4",
    lag_tokens="i4",
    pipeline="i2",
    reason="i2",
    resumes="i2",
    shed="i2",
)
"""What became of one. `sent_tokens` crossed the link for it, `cached_tokens` were on P; `end_s` is 0 while it has not
ended. `lag_tokens` is how far MD's cache was behind P's when it came."""

SERVER = _record(
    is_link="i8",
    virtual="f8",
    updated_s="f8",
    count="i8",
    tau0_s="f8",
    tau1_s="f8",
    capacity_bytes_per_s="f8",
    flow_cap_bytes_per_s="f8",
    streams="i8",
)
"""A resource that its jobs share evenly. `virtual` is what a job that was there all along has got: tokens or bytes."""

NODE = _record(
    role="i8",
    site="i8",
    is_up="i8",
    slots="i8",
    capacity_tokens="i8",
    load="i8",
    reserved="i8",
    active_tokens="i8",
    kept_tokens="i8",
    oldest="i8",
    newest="i8",
    first_waiting="i8",
    last_waiting="i8",
    lanes="i8",
    chunk_tokens="i8",
    tail_chunk_min_tokens="i8",
    tokens_per_s="f8",
    attention_tokens="f8",
    floor_s="f8",
)
"""`load` counts requests planned for it, `reserved` those that have a place, `kept_tokens` the cached prefixes that may
be evicted, from `oldest` to `newest` use. `lanes` are a P node's engines behind one queue and one prefix cache."""

LINK = _record(
    rtt_s="f8",
    known_bytes_per_s="f8",
    flow_cap_bytes_per_s="f8",
    nominal_bytes_per_s="f8",
    streams="i8",
    flows="i8",
    max_transfers="i8",
    first_waiting="i8",
    last_waiting="i8",
)
"""`known_bytes_per_s` is what gateways take its capacity for; `flows` counts the streams they have planned on it."""

TRANSFER = _record(
    state="i8",
    session="i8",
    kept="i8",
    link="i8",
    source="i8",
    target="i8",
    upto_tokens="i8",
    size_bytes="f8",
    rate_bytes_per_s="f8",
    marked_s="f8",
    began_s="f8",
    after="i8",
    before="i8",
    next_waiting="i8",
    serial="i8",
)
"""KV of one prompt up to `upto_tokens` on its way. `after` is the earlier transfer whose bytes it builds on, `before`
the later one that waits for it."""

KEPT = _record(node="i8", tokens="i8", coming_tokens="i8", transfer="i8", is_listed="i8", older="i8", newer="i8")
"""A session's prefix on one node: `tokens` are there, `coming_tokens` will be when its last `transfer` has landed."""

REQUEST = _record(
    generation="i8",
    turn="i8",
    stage="i8",
    pipeline="i8",
    prefill="i8",
    relay="i8",
    main="i8",
    input_tokens="i8",
    reuse_tokens="i8",
    output_tokens="i8",
    made_before="i8",
    cached_tokens="i8",
    planned_s="f8",
    transfer="i8",
    relay_state="i8",
    relay_from="f8",
    relay_made="i8",
    relay_work="i8",
    main_state="i8",
    main_from="f8",
    mode="i8",
    batches="i8",
    batch_upto="i8",
    caught_up="i8",
    last_pending="i8",
)
FAULT = _record(at_s="f8", kind="i8", target="i8", value="f8")
SITE = _record(relay_running="i8", relay_slots="i8", is_at_ceiling="i8")
CLOCK = _record(
    sequence="i8",
    later="i8",
    serial="i8",
    next_session="i8",
    free_transfer="i8",
    transfers="i8",
    events="i8",
    prefill_s_per_token="f8",  # noqa: S106 - a time, no secret
)


LATER = _record(at_s="f8", order="i8", what="i8", who="i8", generation="i8")
"""What is to happen at a moment; of equal moments the lower order comes first. The array is a binary heap."""


class Physics(NamedTuple):
    """What no policy changes: KV bytes per token, the direct way between nodes of a site, and the price of a handoff.

    A handoff of e tokens stalls for ρ + x0 + x1·e. `detect_s` is how long a lost node goes unnoticed.
    """

    kv_bytes_per_token: float
    direct_bytes_per_s: float
    direct_setup_s: float
    handoff_x0_s: float
    handoff_x1_s: float
    slow_start: bool
    detect_s: float


class Rules(NamedTuple):
    """The policy, the physics, and two ways to be worse.

    Those are to count bytes in flight as missing, and to drop the transfers of answers that end on the relay.
    """

    route: RouteKnobs
    nodes: NodeKnobs
    handoff: HandoffKnobs
    physics: Physics
    relay_max_tokens: int
    counts_in_flight: bool
    finishes_transfers: bool
    until_s: float


class World(NamedTuple):
    """The state of a run; every array is changed in place."""

    clock: npt.NDArray[Any]
    turns: npt.NDArray[Any]
    first_turn: npt.NDArray[np.int64]
    starts_s: npt.NDArray[np.float64]
    servers: npt.NDArray[Any]
    jobs: npt.NDArray[np.int64]
    ties: npt.NDArray[np.int64]
    finishes: npt.NDArray[np.float64]
    alarms: npt.NDArray[np.float64]
    nodes: npt.NDArray[Any]
    busy_until_s: npt.NDArray[np.float64]
    links: npt.NDArray[Any]
    link_between: npt.NDArray[np.int64]
    sites: npt.NDArray[Any]
    pools: npt.NDArray[np.int64]
    requests: npt.NDArray[Any]
    waiting: npt.NDArray[np.int64]
    kept: npt.NDArray[Any]
    transfers: npt.NDArray[Any]
    faults: npt.NDArray[Any]
    later: npt.NDArray[Any]
    results: npt.NDArray[Any]


class Run(NamedTuple):
    """A run under way: its state and its rules."""

    world: World
    rules: Rules
