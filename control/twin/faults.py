"""What breaks: nodes with all that they held, and links that carry less than anybody was told."""

from control.twin.agenda import schedule
from control.twin.decoding import leave_main, leave_relay, made_on_main
from control.twin.jit import jit
from control.twin.prefixes import forget
from control.twin.sharing import advance, leave, plan_alarm
from control.twin.state import NONE, FaultKind, Happens, MainState, NodeRole, RelayState, Run, Stage, TransferState
from control.twin.transfers import drop_transfer

LOST_TRANSFER = NONE - 1


@jit
def break_or_mend(x: Run, fault: int, now_s: float) -> None:
    """Make a fault of the scenario happen."""
    w = x.world
    f = w.faults[fault]
    if f.kind == FaultKind.LINK_RATE:
        server = w.nodes.size + f.target
        advance(w, server, now_s)
        w.servers[server].capacity_bytes_per_s = w.links[f.target].nominal_bytes_per_s * f.value
        plan_alarm(w, server)
    elif f.kind == FaultKind.NODE_UP:
        w.nodes[f.target].is_up = 1
        w.busy_until_s[f.target, :] = now_s
    elif w.nodes[f.target].is_up == 1:
        w.nodes[f.target].is_up = 0
        lose_node(x, f.target, now_s)


@jit
def lose_node(x: Run, node: int, now_s: float) -> None:
    """Requests that needed a node go on elsewhere from the tokens that their clients have; what it held is gone."""
    w = x.world
    for transfer in range(w.clock[0].transfers):
        t = w.transfers[transfer]
        is_open = t.state not in (TransferState.FREE, TransferState.DROPPED)
        if is_open and node in (t.source, t.target):
            _lose_transfers(x, transfer, now_s)
    for entry in range(w.kept.size):
        if w.kept[entry].node == node:
            forget(w, entry)
    for session in range(w.requests.size):
        if w.requests[session].stage != Stage.IDLE and _needs(x, session, node):
            start_anew(x, session, now_s)


@jit
def _lose_transfers(x: Run, transfer: int, now_s: float) -> None:
    """A transfer is lost, and with it those that build on its bytes."""
    w = x.world
    while transfer != NONE:
        session = w.transfers[transfer].session
        if w.requests[session].transfer == transfer:
            w.requests[session].transfer = LOST_TRANSFER
        transfer = drop_transfer(x, transfer, now_s)


@jit
def _needs(x: Run, session: int, node: int) -> bool:
    r = x.world.requests[session]
    if r.stage == Stage.LOST:
        return False
    if r.transfer == LOST_TRANSFER:
        return True
    role = x.world.nodes[node].role
    if role == NodeRole.PREFILL:
        return bool(r.prefill == node and r.stage == Stage.PREFILL)
    if role == NodeRole.RELAY:
        return bool(r.relay == node and RelayState.PLANNED <= r.relay_state <= RelayState.DECODES)
    return bool(r.main == node and r.main_state != MainState.NONE)


@jit
def start_anew(x: Run, session: int, now_s: float) -> None:
    """The prompt and what was answered are a new prompt, planned when the loss has been noticed."""
    w = x.world
    r = w.requests[session]
    out = w.results[r.turn]
    if r.stage == Stage.PREFILL:
        w.nodes[r.prefill].load -= 1
    made = made_on_main(w, session, now_s)
    if r.main_state == MainState.DECODES:
        leave(w, r.main, session, now_s)
    leave_relay(x, session, now_s)
    leave_main(x, session, 0, now_s)
    out.eager_tokens += r.relay_made
    out.resumes += 1
    made += r.relay_made
    r.made_before += made
    r.input_tokens += made
    r.output_tokens = max(1, r.output_tokens - made)
    r.reuse_tokens = r.input_tokens - made
    r.stage = Stage.LOST.value
    r.transfer = NONE
    r.relay_state = RelayState.NONE.value
    r.relay_made = 0
    r.generation += 1
    schedule(x, now_s + x.rules.physics.detect_s, Happens.RESUMES, session, r.generation)
