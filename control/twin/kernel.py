"""The twin's event loop: fluid per request, exact in time, the same for the same scenario.

Of equal moments a session's first turn comes before what was scheduled, and that before the end of a job. `reference`
tells the same story at leisure; a test holds the two together to the bit.
"""

from control.domain.routing import Pipeline
from control.twin.agenda import drop_next, schedule
from control.twin.decoding import (
    ask_main,
    ask_relay,
    begin_main,
    caught_up,
    main_has_made_all,
    relay_has_made_all,
)
from control.twin.faults import break_or_mend
from control.twin.jit import entry, jit
from control.twin.planning import begin_turn, plan
from control.twin.prefixes import keep
from control.twin.sharing import INFINITY, end_first, server_of_alarm
from control.twin.state import (
    NONE,
    Happens,
    NodeRole,
    RelayState,
    Rules,
    Run,
    Stage,
    TransferState,
    World,
)
from control.twin.transfers import (
    begin_sending,
    close_transfer,
    fill_link,
    free_transfer,
    set_up,
)

PREFILL_SMOOTHING = 0.2
"""As the gateway learns how long a token takes to prefill."""


@jit
def prefilled(x: Run, session: int, now_s: float) -> None:
    """P has the prompt's KV, which leaves on one or two ways."""
    w, physics = x.world, x.rules.physics
    r = w.requests[session]
    r.stage = Stage.RUNNING.value
    w.nodes[r.prefill].load -= 1
    keep(w, session, r.prefill, r.input_tokens)
    _learn_prefill(w, r.input_tokens - r.cached_tokens, now_s - r.planned_s)
    if r.pipeline != Pipeline.DIRECT:
        r.relay_state = RelayState.KV_COMES.value
        w.sites[w.nodes[r.relay].site].relay_running += 1
        way_s = physics.direct_setup_s + r.input_tokens * physics.kv_bytes_per_token / physics.direct_bytes_per_s
        schedule(x, now_s + way_s, Happens.RELAY_READY, session, r.generation)
    if r.transfer != NONE:
        set_up(x, r.transfer, now_s)


@jit
def _learn_prefill(w: World, uncached_tokens: int, seconds: float) -> None:
    if uncached_tokens > 0:
        sample, known = seconds / uncached_tokens, w.clock[0].prefill_s_per_token
        w.clock[0].prefill_s_per_token = sample if known == 0.0 else known + PREFILL_SMOOTHING * (sample - known)


@jit
def transfer_begins(x: Run, transfer: int, now_s: float) -> None:
    """The connection is open; what has nothing to send is across already."""
    t = x.world.transfers[transfer]
    if t.state == TransferState.DROPPED:
        free_transfer(x.world, transfer)
    elif t.link == NONE or t.size_bytes <= 0.0:
        transfer_sent(x, transfer, now_s)
    else:
        begin_sending(x, transfer, now_s)


@jit
def transfer_sent(x: Run, transfer: int, now_s: float) -> None:
    """A transfer's own bytes are across; it has landed when those that it builds on are as well."""
    w = x.world
    w.transfers[transfer].state = TransferState.SENT.value
    landing = transfer if w.transfers[transfer].after == NONE else NONE
    while landing != NONE:
        t = w.transfers[landing]
        session, began_s = t.session, t.began_s
        later = close_transfer(w, landing, True)  # noqa: FBT003 - compiles so
        r = w.requests[session]
        if r.transfer == landing and r.stage == Stage.RUNNING:
            r.transfer = NONE
            w.results[r.turn].transfer_s = now_s - began_s
            ask_main(x, session, now_s)
        free_transfer(w, landing)
        landing = later if later != NONE and w.transfers[later].state == TransferState.SENT else NONE


@jit
def job_ends(x: Run, server: int, now_s: float) -> None:
    """The first job of a server is done."""
    w = x.world
    job = end_first(w, server, now_s)
    if server >= w.nodes.size:
        transfer_sent(x, job, now_s)
        fill_link(x, server - w.nodes.size, now_s)
    elif w.nodes[server].role == NodeRole.MAIN:
        main_has_made_all(x, job, now_s)
    else:
        relay_has_made_all(x, job, now_s)


@jit
def request_goes_on(x: Run, what: int, session: int, now_s: float) -> None:
    """What was scheduled for a request happens."""
    if what == Happens.TURN_BEGINS:
        begin_turn(x, session, now_s)
    elif what == Happens.PREFILLED:
        prefilled(x, session, now_s)
    elif what == Happens.RELAY_READY:
        if x.world.requests[session].relay_state == RelayState.KV_COMES:
            ask_relay(x, session, now_s)
    elif what == Happens.CAUGHT_UP:
        caught_up(x, session, now_s)
    elif what == Happens.MAIN_BEGINS:
        begin_main(x, session, now_s)
    elif what == Happens.RESUMES:
        plan(x, session, now_s)


@jit
def scheduled_happens(x: Run) -> None:
    """Take the next scheduled happening; those of a request that went another way meanwhile are void."""
    first = x.world.later[0]
    now_s, what, who, generation = first.at_s, first.what, first.who, first.generation
    drop_next(x.world)
    if what == Happens.FAULT:
        break_or_mend(x, who, now_s)
    elif what == Happens.TRANSFER_BEGINS:
        transfer_begins(x, who, now_s)
    elif x.world.requests[who].generation == generation:
        request_goes_on(x, what, who, now_s)


@entry
def simulate(world: World, rules: Rules) -> int:
    """Run a scenario to its end, or to `rules.until_s`; fills `world.results`, gives back the number of events."""
    x = Run(world, rules)
    clock = world.clock[0]
    for fault in range(world.faults.size):
        schedule(x, world.faults[fault].at_s, Happens.FAULT, fault, 0)
    sessions = world.starts_s.size
    while True:
        start_s = world.starts_s[clock.next_session] if clock.next_session < sessions else INFINITY
        later_s = world.later[0].at_s if clock.later > 0 else INFINITY
        alarm_s = world.alarms[1]
        now_s = min(start_s, later_s, alarm_s)
        if now_s == INFINITY or now_s > rules.until_s:
            return int(clock.events)
        clock.events += 1
        if start_s == now_s:
            clock.next_session += 1
            begin_turn(x, clock.next_session - 1, now_s)
        elif later_s == now_s:
            scheduled_happens(x)
        else:
            job_ends(x, server_of_alarm(world), now_s)
