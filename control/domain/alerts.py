"""An alert's life: pending → firing → resolved. Missing data keeps it as it is, and a flapping one rests longer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from control.domain.alert_metrics import Reading
from control.domain.alert_rules import AlertRule
from control.domain.versions import version_of

FLAP_FIRINGS = 4
FLAP_WINDOW = timedelta(hours=1)
FLAP_CALM_S = 900.0
REPEAT_AFTER = timedelta(hours=4)


class AlertState(StrEnum):
    """How far an alert has come. Unknown is no state of its own: it is said beside the state that is kept."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


class AlertEvent(StrEnum):
    """What can happen to an alert."""

    FIRED = "fired"
    FLAPPING = "flapping"
    UNKNOWN = "unknown"
    KNOWN = "known"
    RESOLVED = "resolved"
    ACKNOWLEDGED = "acknowledged"
    CLOSED = "closed"
    NOTIFIED = "notified"


@dataclass(frozen=True, slots=True)
class Track:
    """One episode so far. `clear_since` is when the value came to the good side, None while it is not there."""

    state: AlertState
    pending_at: datetime
    fired_at: datetime | None = None
    clear_since: datetime | None = None
    value: float | None = None
    is_unknown: bool = False
    is_flapping: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What one evaluation makes of an alert; without a track there is none (any more, if it had not fired)."""

    track: Track | None
    events: tuple[AlertEvent, ...] = ()


def next_step(track: Track | None, reading: Reading, rule: AlertRule, now: datetime, recent_firings: int = 0) -> Step:
    """Take an open alert, or none, one evaluation further.

    Args:
        track: the open episode; None if there is none.
        reading: the series now.
        rule: what it is held against.
        now: the moment of the reading.
        recent_firings: episodes of this series that fired within `FLAP_WINDOW`, this one not counted.
    """
    if reading.value is None:
        return _without_data(track)
    if track is None:
        if not (reading.may_start and rule.is_breach(reading.value)):
            return Step(None)
        track = Track(AlertState.PENDING, pending_at=now)
    known: tuple[AlertEvent, ...] = (AlertEvent.KNOWN,) if track.is_unknown and _has_fired(track) else ()
    # Waiting counts from the moment from which on everything is known.
    pending_at = now if track.is_unknown and not _has_fired(track) else track.pending_at
    track = replace(track, value=reading.value, is_unknown=False, pending_at=pending_at)
    if track.state is AlertState.PENDING:
        return _pending(track, reading.value, rule, now, recent_firings)
    return _firing(track, rule, now, known)


def fingerprint(rule: str, labels: Mapping[str, str]) -> str:
    """The same for every episode of a rule on one series, and different from all others."""
    return version_of([rule, dict(labels)])


def _has_fired(track: Track) -> bool:
    return track.state is AlertState.FIRING


def _without_data(track: Track | None) -> Step:
    """Nothing begins, ripens, or ends on what is not known: waiting starts anew once it is known again."""
    if track is None:
        return Step(None)
    events = (AlertEvent.UNKNOWN,) if _has_fired(track) and not track.is_unknown else ()
    return Step(replace(track, is_unknown=True, clear_since=None), events)


def _pending(track: Track, value: float, rule: AlertRule, now: datetime, recent_firings: int) -> Step:
    if not rule.is_breach(value):
        return Step(None)
    if now - track.pending_at < timedelta(seconds=rule.for_s):
        return Step(track)
    is_flapping = recent_firings + 1 >= FLAP_FIRINGS
    fired = replace(track, state=AlertState.FIRING, fired_at=now, is_flapping=is_flapping)
    return Step(fired, (AlertEvent.FIRED, AlertEvent.FLAPPING) if is_flapping else (AlertEvent.FIRED,))


def _firing(track: Track, rule: AlertRule, now: datetime, known: tuple[AlertEvent, ...]) -> Step:
    if track.value is None or not rule.is_clear(track.value):
        return Step(replace(track, clear_since=None), known)
    since = now if track.clear_since is None else track.clear_since
    hold_s = max(rule.clear_for_s, FLAP_CALM_S) if track.is_flapping else rule.clear_for_s
    if now - since < timedelta(seconds=hold_s):
        return Step(replace(track, clear_since=since), known)
    return Step(replace(track, state=AlertState.RESOLVED, clear_since=since), (*known, AlertEvent.RESOLVED))


class Notice(StrEnum):
    """What receivers are to be told."""

    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Told:
    """What receivers were last told, and when; empty before the first time."""

    state: str = ""
    at: datetime | None = None


def due_notice(
    state: AlertState, told: Told, now: datetime, *, is_silenced: bool, is_acknowledged: bool
) -> Notice | None:
    """What is to be told now: that it fires, again every `REPEAT_AFTER` until acknowledged, and that it is over.

    A silence holds back that it fires. That it is over is told whoever was told that it fires.
    """
    if state is AlertState.RESOLVED:
        return Notice.RESOLVED if told.state == Notice.FIRING else None
    if state is not AlertState.FIRING or is_silenced:
        return None
    if told.state != Notice.FIRING or told.at is None:
        return Notice.FIRING
    return Notice.FIRING if now - told.at >= REPEAT_AFTER and not is_acknowledged else None
