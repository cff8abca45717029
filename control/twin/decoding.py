"""Relay and main decode: places and queues, the handoff between them, and the end of a turn."""

import math

from control.domain.handoff import HandoffStep, choose_handoff_mode, next_handoff_step
from control.domain.performance import decode_step_s, handoff_stall_s
from control.domain.routing import Pipeline
from control.twin.agenda import schedule
from control.twin.jit import jit
from control.twin.prefixes import keep, make_room
from control.twin.sharing import advance, join, leave
from control.twin.state import NONE, Happens, MainState, NodeRole, RelayState, Run, Stage, World
from control.twin.transfers import drop_transfer, forget_kept


@jit
def need_tokens(w: World, session: int) -> int:
    """Room that a request needs on a decode node."""
    return int(w.requests[session].input_tokens + w.requests[session].output_tokens)


@jit
def round_trip_s(w: World, session: int) -> float:
    """The round trip between gateway and MD: the gateway stands beside P."""
    r = w.requests[session]
    link = w.link_between[w.nodes[r.prefill].site, w.nodes[r.main].site]
    return float(w.links[link].rtt_s) if link != NONE else 0.0


@jit
def has_room(w: World, node: int, tokens: int) -> bool:
    """Whether a decode node takes one more request; a node that is empty takes any."""
    n = w.nodes[node]
    if n.reserved == 0:
        return True
    return bool(n.reserved < n.slots and n.active_tokens + tokens <= n.capacity_tokens)


@jit
def _queue(w: World, node: int) -> int:
    return 1 if w.nodes[node].role == NodeRole.MAIN else 0


@jit
def enqueue(w: World, node: int, session: int) -> None:
    """Wait for a place, behind those who wait already."""
    n, queue = w.nodes[node], _queue(w, node)
    w.waiting[queue, session] = NONE
    if n.last_waiting == NONE:
        n.first_waiting = session
    else:
        w.waiting[queue, n.last_waiting] = session
    n.last_waiting = session


@jit
def dequeue(w: World, node: int, session: int) -> None:
    """Wait no longer."""
    n, queue = w.nodes[node], _queue(w, node)
    before = NONE
    at = n.first_waiting
    while at != session:
        before = at
        at = w.waiting[queue, at]
    following = w.waiting[queue, session]
    if before == NONE:
        n.first_waiting = following
    else:
        w.waiting[queue, before] = following
    if n.last_waiting == session:
        n.last_waiting = before


@jit
def take_place(w: World, node: int, session: int) -> None:
    """A request gets its place on a decode node; cached prefixes make room."""
    n = w.nodes[node]
    n.reserved += 1
    n.active_tokens += need_tokens(w, session)
    make_room(w, node)


@jit
def give_place_back(w: World, node: int, session: int) -> None:
    """A request has left a decode node."""
    n = w.nodes[node]
    n.reserved -= 1
    n.active_tokens -= need_tokens(w, session)


@jit
def next_in(w: World, node: int) -> int:
    """The first of those that wait at a decode node, if there is a place for it."""
    session = w.nodes[node].first_waiting
    if session == NONE or not has_room(w, node, need_tokens(w, session)):
        return NONE
    dequeue(w, node, session)
    return int(session)


@jit
def _first_token(w: World, session: int, server: int, now_s: float, way_s: float) -> None:
    """The first token comes one step after the join; later attempts do not change it."""
    r = w.requests[session]
    out = w.results[r.turn]
    if out.ttft_s == 0.0:
        s = w.servers[server]
        out.ttft_s = now_s + decode_step_s(s.count, s.tau0_s, s.tau1_s) + way_s - out.arrived_s


# Relay decode


@jit
def ask_relay(x: Run, session: int, now_s: float) -> None:
    """The prompt's KV is on RLD: decode, or wait for a place."""
    w = x.world
    r = w.requests[session]
    if w.nodes[r.relay].first_waiting == NONE and has_room(w, r.relay, need_tokens(w, session)):
        begin_relay(x, session, now_s)
    else:
        r.relay_state = RelayState.WAITS.value
        enqueue(w, r.relay, session)


@jit
def begin_relay(x: Run, session: int, now_s: float) -> None:
    """RLD decodes; an outlier to its end, others as far as the policy lets it."""
    w = x.world
    r = w.requests[session]
    take_place(w, r.relay, session)
    r.relay_state = RelayState.DECODES.value
    r.relay_work = r.output_tokens
    if r.pipeline != Pipeline.OUTLIER:
        r.relay_work = min(r.output_tokens, x.rules.relay_max_tokens)
    r.relay_from = join(w, r.relay, session, float(r.relay_work), now_s)
    _first_token(w, session, r.relay, now_s, 0.0)


@jit
def fill_relay(x: Run, node: int, now_s: float) -> None:
    """Give the places that are free on RLD to those that wait, in their order."""
    session = next_in(x.world, node)
    while session != NONE:
        begin_relay(x, session, now_s)
        session = next_in(x.world, node)


@jit
def made_on_relay(w: World, session: int, now_s: float) -> int:
    """Tokens that RLD has made by now."""
    r = w.requests[session]
    if r.relay_state == RelayState.DECODES:
        advance(w, r.relay, now_s)
        r.relay_made = min(r.relay_work, max(0, math.floor(w.servers[r.relay].virtual - r.relay_from)))
    return int(r.relay_made)


@jit
def leave_relay(x: Run, session: int, now_s: float) -> None:
    """RLD is done with a request, in whatever state; what it has made stays counted."""
    w = x.world
    r = w.requests[session]
    state = r.relay_state
    if state in (RelayState.NONE, RelayState.LEFT):
        return
    made_on_relay(w, session, now_s)
    r.relay_state = RelayState.LEFT.value
    if state == RelayState.STOPPED:
        return
    w.nodes[r.relay].load -= 1
    if state == RelayState.PLANNED:
        return
    w.sites[w.nodes[r.relay].site].relay_running -= 1
    if state == RelayState.WAITS:
        dequeue(w, r.relay, session)
    if state == RelayState.DECODES:
        leave(w, r.relay, session, now_s)
        give_place_back(w, r.relay, session)
        fill_relay(x, r.relay, now_s)


@jit
def relay_has_made_all(x: Run, session: int, now_s: float) -> None:
    """RLD has made what it may: the answer, or as much as the policy lets it, and then the stream waits for MD."""
    w = x.world
    r = w.requests[session]
    r.relay_made = r.relay_work
    r.relay_state = RelayState.STOPPED.value
    w.nodes[r.relay].load -= 1
    w.sites[w.nodes[r.relay].site].relay_running -= 1
    give_place_back(w, r.relay, session)
    fill_relay(x, r.relay, now_s)
    if r.relay_work >= r.output_tokens:
        end_turn(x, session, now_s, now_s)
    elif r.main_state == MainState.ADMITTED and r.batch_upto == NONE:
        hand_over(x, session, now_s)


# Main decode


@jit
def ask_main(x: Run, session: int, now_s: float) -> None:
    """The prompt's KV is on MD: take a place there, or wait for one."""
    w = x.world
    r = w.requests[session]
    if w.nodes[r.main].first_waiting == NONE and has_room(w, r.main, need_tokens(w, session)):
        admit_to_main(x, session, now_s)
    else:
        r.main_state = MainState.WAITS.value
        enqueue(w, r.main, session)


@jit
def admit_to_main(x: Run, session: int, now_s: float) -> None:
    """MD has a place: decode there, or let the relay hand over."""
    w = x.world
    r = w.requests[session]
    r.main_state = MainState.ADMITTED.value
    forget_kept(w, session, r.main)
    take_place(w, r.main, session)
    if r.relay_state in (RelayState.DECODES, RelayState.STOPPED):
        hand_over(x, session, now_s)
        return
    if r.relay_state != RelayState.NONE:
        leave_relay(x, session, now_s)
    begin_main(x, session, now_s)


@jit
def hand_over(x: Run, session: int, now_s: float) -> None:
    """Cut now, or have MD catch up with a batch while RLD goes on; the gateway's own rules say which."""
    w, rules = x.world, x.rules
    r = w.requests[session]
    made = made_on_relay(w, session, now_s)
    pending = made - r.caught_up
    if r.mode == 0:
        is_full = w.sites[w.nodes[r.relay].site].is_at_ceiling == 1
        r.mode = choose_handoff_mode(pending, is_full, rules.handoff).value
    step = next_handoff_step(r.mode, pending, r.last_pending, r.batches, rules.handoff)
    physics = rules.physics
    stall_s = handoff_stall_s(pending, round_trip_s(w, session), physics.handoff_x0_s, physics.handoff_x1_s)
    if step == HandoffStep.CUT or r.relay_state == RelayState.STOPPED:
        leave_relay(x, session, now_s)
        w.results[r.turn].stall_s += stall_s
        schedule(x, now_s + stall_s, Happens.MAIN_BEGINS, session, r.generation)
        return
    r.last_pending = pending
    r.batches += 1
    r.batch_upto = made
    schedule(x, now_s + stall_s, Happens.CAUGHT_UP, session, r.generation)


@jit
def caught_up(x: Run, session: int, now_s: float) -> None:
    """MD has computed a batch of the relay's tokens."""
    r = x.world.requests[session]
    r.caught_up = r.batch_upto
    r.batch_upto = NONE
    hand_over(x, session, now_s)


@jit
def begin_main(x: Run, session: int, now_s: float) -> None:
    """MD makes the rest of the answer."""
    w = x.world
    r = w.requests[session]
    r.main_state = MainState.DECODES.value
    r.main_from = join(w, r.main, session, float(r.output_tokens - r.relay_made), now_s)
    _first_token(w, session, r.main, now_s, round_trip_s(w, session) / 2.0)


@jit
def fill_main(x: Run, node: int, now_s: float) -> None:
    """Give the places that are free on MD to those that wait, in their order."""
    session = next_in(x.world, node)
    while session != NONE:
        admit_to_main(x, session, now_s)
        session = next_in(x.world, node)


@jit
def main_has_made_all(x: Run, session: int, now_s: float) -> None:
    """The answer is complete; its last token has half a round trip to go."""
    end_turn(x, session, now_s + round_trip_s(x.world, session) / 2.0, now_s)


@jit
def made_on_main(w: World, session: int, now_s: float) -> int:
    """Tokens that MD has made by now."""
    r = w.requests[session]
    if r.main_state != MainState.DECODES:
        return 0
    advance(w, r.main, now_s)
    made = math.floor(w.servers[r.main].virtual - r.main_from)
    return int(max(0, min(r.output_tokens - r.relay_made, made)))


@jit
def leave_main(x: Run, session: int, kept_tokens: int, now_s: float) -> None:
    """MD is done with a request, in whatever state, and keeps so many tokens of it (0: what it had)."""
    w = x.world
    r = w.requests[session]
    state = r.main_state
    if state == MainState.NONE:
        return
    w.nodes[r.main].load -= 1
    r.main_state = MainState.NONE.value
    if state == MainState.WAITS:
        dequeue(w, r.main, session)
    if state in (MainState.ADMITTED, MainState.DECODES):
        give_place_back(w, r.main, session)
        if kept_tokens > 0:
            keep(w, session, r.main, kept_tokens)
        fill_main(x, r.main, now_s)


@jit
def end_turn(x: Run, session: int, end_s: float, now_s: float) -> None:
    """The client has the whole answer. A transfer that still runs ends in the background, for MD's cache."""
    w = x.world
    r = w.requests[session]
    out = w.results[r.turn]
    out.end_s = end_s
    out.eager_tokens += r.relay_made
    if out.output_tokens > 1:
        out.tpot_s = (end_s - out.arrived_s - out.ttft_s) / (out.output_tokens - 1)
    kept = r.input_tokens
    if r.main_state == MainState.DECODES:
        kept += r.output_tokens - 1
    leave_main(x, session, kept, now_s)
    if r.transfer != NONE and not x.rules.finishes_transfers:
        drop_transfer(x, r.transfer, now_s)
    begin_next(x, session, end_s)


@jit
def begin_next(x: Run, session: int, end_s: float) -> None:
    """The session's next turn comes a think time after this one's end."""
    w = x.world
    r = w.requests[session]
    r.transfer = NONE
    r.stage = Stage.IDLE.value
    r.generation += 1
    r.turn += 1
    if r.turn < w.first_turn[session + 1]:
        schedule(x, end_s + w.turns[r.turn].think_s, Happens.TURN_BEGINS, session, r.generation)
