"""Prefix caches of P and MD: a session's prefix per node, marks for what is on its way, eviction by last use."""

from control.twin.jit import jit
from control.twin.state import NONE, WAYS, NodeRole, World


@jit
def first_way(session: int, role: int) -> int:
    """Where a session's entries for nodes of a role begin."""
    return session * 2 * WAYS + (WAYS if role == NodeRole.MAIN else 0)


@jit
def find_kept(w: World, session: int, node: int) -> int:
    """A session's entry for a node."""
    first = first_way(session, w.nodes[node].role)
    for entry in range(first, first + WAYS):
        if w.kept[entry].node == node:
            return entry
    return NONE


@jit
def resident_tokens(w: World, session: int, node: int, reuse_tokens: int, shared_tokens: int) -> int:
    """Tokens of the prompt that are on the node."""
    entry = find_kept(w, session, node)
    there = max(shared_tokens, w.kept[entry].tokens) if entry != NONE else shared_tokens
    return min(reuse_tokens, there)


@jit
def known_tokens(w: World, session: int, node: int, reuse_tokens: int, shared_tokens: int) -> int:
    """Tokens of the prompt that are on the node or on their way to it."""
    entry = find_kept(w, session, node)
    there = shared_tokens
    if entry != NONE:
        there = max(there, w.kept[entry].tokens, w.kept[entry].coming_tokens)
    return min(reuse_tokens, there)


@jit
def unlist(w: World, entry: int) -> None:
    """Take an entry out of its node's order of last use: it cannot be evicted now."""
    k = w.kept[entry]
    if k.is_listed == 0:
        return
    n = w.nodes[k.node]
    if k.older != NONE:
        w.kept[k.older].newer = k.newer
    else:
        n.oldest = k.newer
    if k.newer != NONE:
        w.kept[k.newer].older = k.older
    else:
        n.newest = k.older
    k.is_listed = 0


@jit
def _list_newest(w: World, entry: int) -> None:
    unlist(w, entry)
    k = w.kept[entry]
    n = w.nodes[k.node]
    k.older = n.newest
    k.newer = NONE
    if n.newest != NONE:
        w.kept[n.newest].newer = entry
    else:
        n.oldest = entry
    n.newest = entry
    k.is_listed = 1


@jit
def forget(w: World, entry: int) -> None:
    """Free the tokens of an entry; what is on its way stays marked."""
    k = w.kept[entry]
    if k.node == NONE:
        return
    unlist(w, entry)
    w.nodes[k.node].kept_tokens -= k.tokens
    k.tokens = 0
    if k.coming_tokens == 0:
        k.node = NONE


@jit
def make_room(w: World, node: int) -> None:
    """Evict the least recently used prefixes until what is left fits."""
    n = w.nodes[node]
    while n.active_tokens + n.kept_tokens > n.capacity_tokens and n.oldest != NONE:
        forget(w, n.oldest)


@jit
def claim(w: World, session: int, node: int) -> int:
    """A session's entry for a node, if need be in place of its smallest other one; none where all are on their way."""
    entry = find_kept(w, session, node)
    if entry != NONE:
        return entry
    first = first_way(session, w.nodes[node].role)
    best = NONE
    for other in range(first, first + WAYS):
        k = w.kept[other]
        if k.coming_tokens == 0 and (best == NONE or k.tokens < w.kept[best].tokens):
            best = other
    if best == NONE:
        return NONE
    forget(w, best)
    w.kept[best].node = node
    w.kept[best].transfer = NONE
    return best


@jit
def keep(w: World, session: int, node: int, tokens: int) -> None:
    """A node has so many tokens of a session now; it was used last."""
    entry = claim(w, session, node)
    if entry == NONE:
        return
    settle(w, entry, tokens)


@jit
def settle(w: World, entry: int, tokens: int) -> None:
    """An entry holds so many tokens, or what it had if that was more."""
    k = w.kept[entry]
    more = max(0, tokens - k.tokens)
    k.tokens += more
    w.nodes[k.node].kept_tokens += more
    if k.coming_tokens == 0:
        _list_newest(w, entry)
    make_room(w, k.node)


@jit
def touch(w: World, session: int, node: int) -> None:
    """A node's prefix of a session was used."""
    entry = find_kept(w, session, node)
    if entry != NONE and w.kept[entry].is_listed == 1:
        _list_newest(w, entry)
