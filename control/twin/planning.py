"""A request's way is decided: by the gateway's own rules, on what a gateway knows at that moment."""

from control.domain.performance import (
    PrefillSpeed,
    chunked_prefill_cost_s,
    expected_left_bytes,
    predict_transfer_s,
)
from control.domain.routing import Pipeline, Reason, RouteInputs, choose_pipeline, node_score, relay_at_ceiling
from control.twin.agenda import schedule
from control.twin.decoding import begin_next
from control.twin.jit import jit
from control.twin.prefixes import find_kept, known_tokens, resident_tokens, touch
from control.twin.state import NONE, Happens, MainState, NodeRole, RelayState, Run, Stage
from control.twin.transfers import expected_rate, mark_transfer


@jit
def begin_turn(x: Run, session: int, now_s: float) -> None:
    """A request comes in."""
    w = x.world
    r = w.requests[session]
    turn = w.turns[r.turn]
    out = w.results[r.turn]
    r.input_tokens = max(1, turn.input_tokens)
    r.reuse_tokens = min(turn.reuse_tokens, r.input_tokens)
    r.output_tokens = max(1, turn.output_tokens)
    r.made_before = 0
    out.arrived_s = now_s
    out.input_tokens = r.input_tokens
    out.output_tokens = r.output_tokens
    plan(x, session, now_s)


@jit
def _is_eligible(x: Run, node: int, site: int) -> bool:
    n = x.world.nodes[node]
    return bool(n.is_up == 1 and n.slots > 0 and (site in (NONE, n.site)))


@jit
def _matched_tokens(x: Run, session: int, node: int) -> int:
    w = x.world
    r = w.requests[session]
    shared = w.turns[r.turn].shared_tokens
    role = w.nodes[node].role
    if role == NodeRole.RELAY:
        return 0
    if role == NodeRole.MAIN and x.rules.counts_in_flight:
        return known_tokens(w, session, node, r.reuse_tokens, shared)
    return resident_tokens(w, session, node, r.reuse_tokens, shared)


@jit
def choose_node(x: Run, session: int, role: int, site: int) -> int:
    """The eligible node of the highest score, of equals the first; at one site, or at any."""
    w = x.world
    first, end = w.pools[role, 0], w.pools[role, 1]
    count, mean_load, best = 0, 0.0, NONE
    for node in range(first, end):
        if _is_eligible(x, node, site):
            count += 1
            mean_load += w.nodes[node].load / w.nodes[node].slots
            if best == NONE:
                best = node
    if count <= 1:
        return best
    mean_load /= count
    best_score = -1.0e300
    for node in range(first, end):
        if _is_eligible(x, node, site):
            load = w.nodes[node].load / w.nodes[node].slots
            matched = _matched_tokens(x, session, node)
            score = node_score(load, matched, w.requests[session].input_tokens, mean_load, x.rules.nodes)
            if score > best_score:
                best, best_score = node, score
    return int(best)


@jit
def bytes_ahead(x: Run, session: int, main: int, now_s: float) -> float:
    """What a gateway believes to be left of the session's transfers to a node."""
    w = x.world
    entry = find_kept(w, session, main)
    ahead = 0.0
    if entry == NONE or not x.rules.counts_in_flight:
        return ahead
    transfer = w.kept[entry].transfer
    while transfer != NONE:
        t = w.transfers[transfer]
        if t.link != NONE:
            ahead += expected_left_bytes(t.size_bytes, t.rate_bytes_per_s, now_s - t.marked_s)
        transfer = t.after
    return ahead


@jit
def route_inputs(x: Run, session: int, relay: int, main: int, now_s: float) -> RouteInputs:
    """What the decision looks at, as the gateway gathers it."""
    w = x.world
    r = w.requests[session]
    turn = w.turns[r.turn]
    site = w.sites[w.nodes[r.prefill].site]
    resident, known, transfer_s = 0, 0, 0.0
    if main != NONE:
        resident = resident_tokens(w, session, main, r.reuse_tokens, turn.shared_tokens)
        known = _matched_tokens(x, session, main)
        link = w.link_between[w.nodes[r.prefill].site, w.nodes[main].site]
        if link != NONE:
            send_bytes = (r.input_tokens - known) * x.rules.physics.kv_bytes_per_token
            ahead_bytes = bytes_ahead(x, session, main, now_s) if known > resident else 0.0
            transfer_s = predict_transfer_s(send_bytes, ahead_bytes, expected_rate(w, link), w.links[link].rtt_s)
    prefill_s = (r.input_tokens - r.cached_tokens) * w.clock[0].prefill_s_per_token
    return RouteInputs(
        r.input_tokens,
        resident,
        known - resident,
        max(1, turn.bound_tokens - r.made_before),
        transfer_s,
        prefill_s + transfer_s,
        site.relay_running / site.relay_slots if site.relay_slots > 0 else 0.0,
        site.is_at_ceiling == 1,
        main != NONE,
        relay != NONE,
        False,  # noqa: FBT003 - a NamedTuple is built by position where it is compiled
    )


@jit
def plan(x: Run, session: int, now_s: float) -> None:
    """Choose nodes and pipeline, and begin with the prefill."""
    w, rules = x.world, x.rules
    r = w.requests[session]
    r.generation += 1
    r.stage = Stage.PREFILL.value
    r.relay_state, r.main_state = RelayState.NONE.value, MainState.NONE.value
    r.relay_made = r.caught_up = r.last_pending = r.batches = r.mode = 0
    r.batch_upto = r.transfer = NONE
    r.planned_s = now_s
    r.prefill = choose_node(x, session, NodeRole.PREFILL.value, NONE)
    if r.prefill == NONE:
        refuse(x, session, Reason.NO_PREFILL.value, now_s)
        return
    turn = w.turns[r.turn]
    r.cached_tokens = resident_tokens(w, session, r.prefill, r.reuse_tokens, turn.shared_tokens)
    r.relay = choose_node(x, session, NodeRole.RELAY.value, w.nodes[r.prefill].site)
    r.main = choose_node(x, session, NodeRole.MAIN.value, NONE)
    inputs = route_inputs(x, session, r.relay, r.main, now_s)
    pipeline, reason = choose_pipeline(inputs, rules.route)
    site = w.sites[w.nodes[r.prefill].site]
    is_full = relay_at_ceiling(inputs.relay_utilization, inputs.relay_was_at_ceiling, rules.route.relay_load_ceiling)
    site.is_at_ceiling = 1 if is_full else 0
    if pipeline == Pipeline.NONE:
        refuse(x, session, reason.value, now_s)
        return
    r.pipeline = pipeline.value
    _note_plan(x, session, reason.value, inputs.resident_tokens, inputs.in_flight_tokens)
    _assign(x, session, inputs.input_tokens - inputs.resident_tokens - inputs.in_flight_tokens, now_s)
    _begin_prefill(x, session, now_s)


@jit
def _note_plan(x: Run, session: int, reason: int, resident: int, in_flight: int) -> None:
    w = x.world
    r = w.requests[session]
    out = w.results[r.turn]
    out.pipeline, out.reason = r.pipeline, reason
    out.cached_tokens = r.cached_tokens
    out.lag_tokens = max(0, r.cached_tokens - resident)
    if r.pipeline != Pipeline.OUTLIER:
        out.sent_tokens += r.input_tokens - resident - in_flight


@jit
def _assign(x: Run, session: int, send_tokens: int, now_s: float) -> None:
    """Count the request for the nodes it will use, and mark its KV as on its way."""
    w = x.world
    r = w.requests[session]
    w.nodes[r.prefill].load += 1
    if r.pipeline != Pipeline.DIRECT:
        w.nodes[r.relay].load += 1
        r.relay_state = RelayState.PLANNED.value
    if r.pipeline != Pipeline.OUTLIER:
        w.nodes[r.main].load += 1
        r.main_state = MainState.KV_COMES.value
        link = w.link_between[w.nodes[r.prefill].site, w.nodes[r.main].site]
        mark_transfer(x, session, link, send_tokens, now_s)


@jit
def _begin_prefill(x: Run, session: int, now_s: float) -> None:
    """One prompt after the other on each engine of a P node, chunk by chunk; the first that is free takes the next."""
    w = x.world
    r = w.requests[session]
    n = w.nodes[r.prefill]
    speed = PrefillSpeed(n.chunk_tokens, n.tail_chunk_min_tokens, n.tokens_per_s, n.attention_tokens, n.floor_s)
    lane = 0
    for other in range(1, n.lanes):
        if w.busy_until_s[r.prefill, other] < w.busy_until_s[r.prefill, lane]:
            lane = other
    begin_s = max(now_s, w.busy_until_s[r.prefill, lane])
    ready_s = begin_s + chunked_prefill_cost_s(r.cached_tokens, r.input_tokens, speed)
    w.busy_until_s[r.prefill, lane] = ready_s
    touch(w, session, r.prefill)
    schedule(x, ready_s, Happens.PREFILLED, session, r.generation)


@jit
def refuse(x: Run, session: int, reason: int, now_s: float) -> None:
    """The client is turned away, and comes back with its next turn."""
    out = x.world.results[x.world.requests[session].turn]
    out.shed = 1
    out.pipeline, out.reason = Pipeline.NONE.value, reason
    out.end_s = now_s
    begin_next(x, session, now_s)
