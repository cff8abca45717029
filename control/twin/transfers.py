"""KV on its way: marked when it is planned, set up, sent over a shared link, and dropped where nobody can use it."""

from control.domain.performance import flow_rate_bytes_per_s, slow_start_s
from control.twin.agenda import schedule
from control.twin.jit import jit
from control.twin.prefixes import claim, find_kept, forget, settle, unlist
from control.twin.sharing import join, leave
from control.twin.state import NONE, Happens, Run, TransferState, World


@jit
def expected_rate(w: World, link: int) -> float:
    """Bytes per second that one more transfer can expect, as gateways see the link."""
    k = w.links[link]
    return flow_rate_bytes_per_s(k.known_bytes_per_s, k.flow_cap_bytes_per_s, k.flows, k.streams)


@jit
def _new_transfer(w: World) -> int:
    clock = w.clock[0]
    transfer = clock.free_transfer
    if transfer == NONE:
        transfer = clock.transfers
        clock.transfers += 1
    else:
        clock.free_transfer = w.transfers[transfer].next_waiting
    return int(transfer)


@jit
def _free(w: World, transfer: int) -> None:
    t = w.transfers[transfer]
    t.state = TransferState.FREE.value
    t.next_waiting = w.clock[0].free_transfer
    w.clock[0].free_transfer = transfer


@jit
def mark_transfer(x: Run, session: int, link: int, send_tokens: int, now_s: float) -> None:
    """Note that a prompt's KV is on its way to its MD; from now on nobody sends it again."""
    w = x.world
    r = w.requests[session]
    transfer = _new_transfer(w)
    entry = claim(w, session, r.main)
    t = w.transfers[transfer]
    t.state = TransferState.MARKED.value
    t.session, t.kept, t.link = session, entry, link
    t.source, t.target = r.prefill, r.main
    t.upto_tokens = r.input_tokens
    t.size_bytes = send_tokens * x.rules.physics.kv_bytes_per_token
    t.marked_s, t.after, t.before = now_s, NONE, NONE
    t.serial = w.clock[0].serial
    w.clock[0].serial += 1
    if link != NONE:
        t.rate_bytes_per_s = expected_rate(w, link)
        w.links[link].flows += w.links[link].streams
    if entry != NONE:
        k = w.kept[entry]
        if x.rules.counts_in_flight and k.coming_tokens > 0:
            t.after = k.transfer
            w.transfers[k.transfer].before = transfer
        unlist(w, entry)
        k.coming_tokens = max(k.coming_tokens, t.upto_tokens)
        k.transfer = transfer
    r.transfer = transfer


@jit
def set_up(x: Run, transfer: int, now_s: float) -> None:
    """Open the connection of a transfer that has something to send: two round trips, and slow start."""
    w, physics = x.world, x.rules.physics
    t = w.transfers[transfer]
    t.began_s = now_s
    t.state = TransferState.SETUP.value
    delay_s = 0.0
    if t.link == NONE:
        delay_s = physics.direct_setup_s + t.size_bytes / physics.direct_bytes_per_s
    elif t.size_bytes > 0.0:
        k = w.links[t.link]
        delay_s = 2.0 * k.rtt_s
        if physics.slow_start:
            delay_s += slow_start_s(t.size_bytes / k.streams, k.rtt_s)
    schedule(x, now_s + delay_s, Happens.TRANSFER_BEGINS, transfer, 0)


@jit
def begin_sending(x: Run, transfer: int, now_s: float) -> None:
    """Take a place on the link, or wait for one in the order of arrival."""
    w = x.world
    t = w.transfers[transfer]
    k = w.links[t.link]
    server = w.nodes.size + t.link
    if w.servers[server].count < k.max_transfers:
        t.state = TransferState.SENDS.value
        join(w, server, transfer, t.size_bytes, now_s)
        return
    t.state = TransferState.WAITS.value
    t.next_waiting = NONE
    if k.last_waiting == NONE:
        k.first_waiting = transfer
    else:
        w.transfers[k.last_waiting].next_waiting = transfer
    k.last_waiting = transfer


@jit
def fill_link(x: Run, link: int, now_s: float) -> None:
    """Give the places that are free to those that wait."""
    w = x.world
    k = w.links[link]
    server = w.nodes.size + link
    while k.first_waiting != NONE and w.servers[server].count < k.max_transfers:
        transfer = k.first_waiting
        k.first_waiting = w.transfers[transfer].next_waiting
        if k.first_waiting == NONE:
            k.last_waiting = NONE
        w.transfers[transfer].state = TransferState.SENDS.value
        join(w, server, transfer, w.transfers[transfer].size_bytes, now_s)


@jit
def _stop_waiting(w: World, transfer: int) -> None:
    t = w.transfers[transfer]
    k = w.links[t.link]
    before = NONE
    at = k.first_waiting
    while at != transfer:
        before = at
        at = w.transfers[at].next_waiting
    if before == NONE:
        k.first_waiting = t.next_waiting
    else:
        w.transfers[before].next_waiting = t.next_waiting
    if k.last_waiting == transfer:
        k.last_waiting = before


@jit
def close_transfer(w: World, transfer: int, has_landed: bool) -> int:
    """Take a transfer's marks back; gives back the later one that waited for it."""
    t = w.transfers[transfer]
    if t.link != NONE:
        w.links[t.link].flows -= w.links[t.link].streams
    if t.kept != NONE and w.kept[t.kept].node == t.target:
        k = w.kept[t.kept]
        if k.transfer == transfer:
            k.coming_tokens = 0
            k.transfer = NONE
        if has_landed:
            settle(w, t.kept, t.upto_tokens)
        elif k.coming_tokens == 0:
            settle(w, t.kept, 0)
    if t.after != NONE:
        w.transfers[t.after].before = NONE
    later = t.before
    if later != NONE:
        w.transfers[later].after = NONE
    return int(later)


@jit
def free_transfer(w: World, transfer: int) -> None:
    """Nobody knows the transfer any more."""
    _free(w, transfer)


@jit
def drop_transfer(x: Run, transfer: int, now_s: float) -> int:
    """Stop a transfer wherever it is; gives back the later one that waited for it."""
    w = x.world
    t = w.transfers[transfer]
    state, link = t.state, t.link
    later = close_transfer(w, transfer, False)  # noqa: FBT003 - compiles so
    if state == TransferState.SETUP:
        t.state = TransferState.DROPPED.value
        return later
    if state == TransferState.WAITS:
        _stop_waiting(w, transfer)
    _free(w, transfer)
    if state == TransferState.SENDS:
        leave(w, w.nodes.size + link, transfer, now_s)
        fill_link(x, link, now_s)
    return later


@jit
def forget_kept(w: World, session: int, node: int) -> None:
    """What was kept of a session on a node is part of a running request now."""
    entry = find_kept(w, session, node)
    if entry != NONE:
        forget(w, entry)
