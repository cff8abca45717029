"""What is scheduled: a binary heap by moment, then by the order in which it was scheduled."""

from control.twin.jit import jit
from control.twin.state import Happens, Run, World


@jit
def _comes_first(w: World, a: int, b: int) -> bool:
    first, second = w.later[a], w.later[b]
    if first.at_s == second.at_s:
        return bool(first.order < second.order)
    return bool(first.at_s < second.at_s)


@jit
def _swap(w: World, a: int, b: int) -> None:
    first, second = w.later[a], w.later[b]
    first.at_s, second.at_s = second.at_s, first.at_s
    first.order, second.order = second.order, first.order
    first.what, second.what = second.what, first.what
    first.who, second.who = second.who, first.who
    first.generation, second.generation = second.generation, first.generation


@jit
def schedule(x: Run, at_s: float, what: Happens, who: int, generation: int) -> None:
    """Have something happen at a moment; of equal moments what was scheduled first comes first."""
    w = x.world
    clock = w.clock[0]
    at = clock.later
    entry = w.later[at]
    entry.at_s, entry.order, entry.what, entry.who, entry.generation = (
        at_s,
        clock.sequence,
        what.value,
        who,
        generation,
    )
    clock.sequence += 1
    clock.later += 1
    while at > 0 and _comes_first(w, at, (at - 1) // 2):
        _swap(w, at, (at - 1) // 2)
        at = (at - 1) // 2


@jit
def drop_next(w: World) -> None:
    """Take out what comes first."""
    clock = w.clock[0]
    clock.later -= 1
    last = clock.later
    if last == 0:
        return
    _swap(w, 0, last)
    at = 0
    while 2 * at + 1 < last:
        child = 2 * at + 1
        if child + 1 < last and _comes_first(w, child + 1, child):
            child += 1
        if not _comes_first(w, child, at):
            return
        _swap(w, at, child)
        at = child
