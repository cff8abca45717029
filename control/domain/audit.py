"""The chain that ties each audit event to all before it, and the judge of a chain that was read back.

Hash n = SHA-256 over hash n-1 and the canonical JSON of event n. Whoever changes, removes or inserts an event has to
write every later hash anew, and the head with them. That can be noticed only by somebody who wrote a head down before.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

GENESIS = "0" * 64


@dataclass(frozen=True, slots=True)
class AuditFacts:
    """What an event says; `before` and `after` are plain JSON."""

    id: int
    at: datetime
    actor: str
    action: str
    target: str
    before: Any
    after: Any
    reason: str


@dataclass(frozen=True, slots=True)
class ChainedEvent:
    """An event with its two links."""

    facts: AuditFacts
    previous_hash: str
    hash: str


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The newest event of a chain: its id and hash. Written down elsewhere, it fixes everything before it."""

    id: int
    hash: str


class Fault(StrEnum):
    """How a chain is broken at an event."""

    CHANGED = "changed"
    UNLINKED = "unlinked"
    TRUNCATED = "truncated"
    OUTSIDE = "outside"
    OTHER_HISTORY = "other_history"


FAULT_TEXTS = {
    Fault.CHANGED: "Event {id} is not what was written: its content or its hash was changed.",
    Fault.UNLINKED: "Event {id} does not follow the one before it: events were removed, inserted or moved there.",
    Fault.TRUNCATED: "The newest events are missing: the head names event {id}.",
    Fault.OUTSIDE: "Event {id} was added without the chain.",
    Fault.OTHER_HISTORY: "Event {id} is not the one that was noted: the history was written anew.",
}


@dataclass(frozen=True, slots=True)
class Break:
    """The first event at which a chain fails."""

    id: int
    fault: Fault

    @property
    def detail(self) -> str:
        """One sentence."""
        return FAULT_TEXTS[self.fault].format(id=self.id)


@dataclass(frozen=True, slots=True)
class ChainVerdict:
    """What a check found: how many events hold, the last of them, and the first that does not."""

    events: int
    head: ChainHead
    broken: Break | None = None


def plain_json(value: Any) -> Any:
    """The value as it comes back from storage: enums as text, tuples as lists, keys as text.

    Raises:
        TypeError, ValueError: JSON cannot hold it.
    """
    return json.loads(json.dumps(value, allow_nan=False))


def chain_hash(previous_hash: str, facts: AuditFacts) -> str:
    """The event's hash, which also stands for everything before it; lower-case hexadecimal."""
    return hashlib.sha256(previous_hash.encode() + b"\n" + canonical_json(facts)).hexdigest()


def canonical_json(facts: AuditFacts) -> bytes:
    """The one spelling of an event: sorted keys, no spaces, ASCII, the moment in UTC to the microsecond."""
    document = {
        "id": facts.id,
        "at": facts.at.astimezone(UTC).isoformat(timespec="microseconds"),
        "actor": facts.actor,
        "action": facts.action,
        "target": facts.target,
        "before": facts.before,
        "after": facts.after,
        "reason": facts.reason,
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def verify_chain(
    events: Iterable[ChainedEvent], head: ChainHead | None = None, noted: Iterable[ChainHead] = ()
) -> ChainVerdict:
    """Check events in the order of their ids, from the first one.

    Args:
        events: read one by one, so that a long history needs no memory.
        head: where the chain must end; None takes the end as it comes.
        noted: heads that somebody wrote down earlier; each must still be in the chain.
    """
    wanted = {note.id: note.hash for note in noted}
    at = ChainHead(0, GENESIS)
    count = 0
    for event in events:
        fault = _fault(event, at, wanted.pop(event.facts.id, None))
        if head is not None and event.facts.id > head.id:
            fault = Fault.OUTSIDE
        if fault is not None:
            return ChainVerdict(count, at, Break(event.facts.id, fault))
        at = ChainHead(event.facts.id, event.hash)
        count += 1
    if head is not None and at.id < head.id:
        return ChainVerdict(count, at, Break(head.id, Fault.TRUNCATED))
    if head is not None and at.hash != head.hash:
        return ChainVerdict(count, at, Break(head.id, Fault.OTHER_HISTORY))
    if wanted:
        missing = min(wanted)
        return ChainVerdict(count, at, Break(missing, Fault.TRUNCATED if missing > at.id else Fault.OTHER_HISTORY))
    return ChainVerdict(count, at)


def _fault(event: ChainedEvent, at: ChainHead, noted_hash: str | None) -> Fault | None:
    if event.hash != chain_hash(event.previous_hash, event.facts):
        return Fault.CHANGED
    if event.previous_hash != at.hash or event.facts.id <= at.id:
        return Fault.UNLINKED
    if noted_hash is not None and noted_hash != event.hash:
        return Fault.OTHER_HISTORY
    return None


def exported(event: ChainedEvent) -> dict[str, Any]:
    """The event as one line of an export; `imported` reads it back."""
    facts: dict[str, Any] = json.loads(canonical_json(event.facts))
    return {**facts, "previous_hash": event.previous_hash, "hash": event.hash}


def imported(document: Mapping[str, Any]) -> ChainedEvent:
    """An event from a line of an export.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    facts = AuditFacts(
        id=int(document["id"]),
        at=datetime.fromisoformat(document["at"]),
        actor=str(document["actor"]),
        action=str(document["action"]),
        target=str(document["target"]),
        before=document["before"],
        after=document["after"],
        reason=str(document["reason"]),
    )
    return ChainedEvent(facts, str(document["previous_hash"]), str(document["hash"]))
