"""Whether a canary does harm: its signals against the control group's now and those of the time before. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from control.domain.confidence import quantile_at_least, share_at_least
from control.domain.guard_signals import GUARD_SIGNALS, GuardSignal
from control.domain.policy import effective_values
from control.domain.rollups import RequestSums

P99 = 0.99


@dataclass(frozen=True, slots=True)
class SignalRule:
    """How far a signal may rise: to `max_ratio` times a reference, and in any case to `floor`; None aborts nothing."""

    max_ratio: float | None
    floor: float

    def bound(self, reference: float | None) -> float:
        """What the signal may be beside a reference; one that has no value because nothing happened counts as zero."""
        return max(self.floor, (self.max_ratio or 0.0) * (reference or 0.0))


@dataclass(frozen=True, slots=True)
class Guard:
    """What a roll-out obeys, as the policy said when it was opened; durations in seconds."""

    bake_s: float
    window_s: float
    min_requests: int
    suspect_s: float
    rules: Mapping[str, SignalRule]

    @classmethod
    def of_policy(cls, document: Mapping[str, Any]) -> Self:
        """The `guard.*` fields of a policy document.

        Raises:
            PolicyError: it cannot be obeyed.
        """
        return cls.from_values(effective_values(document))

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """From values by path, as `to_values` gives them."""
        rules = {
            signal.name: SignalRule(values[signal.ratio_path], values[signal.floor_path]) for signal in GUARD_SIGNALS
        }
        return cls(
            bake_s=values["guard.bake_s"],
            window_s=values["guard.window_s"],
            min_requests=values["guard.min_requests"],
            suspect_s=values["guard.suspect_s"],
            rules=rules,
        )

    def to_values(self) -> dict[str, Any]:
        """Every value by the path of its field."""
        values: dict[str, Any] = {
            "guard.bake_s": self.bake_s,
            "guard.window_s": self.window_s,
            "guard.min_requests": self.min_requests,
            "guard.suspect_s": self.suspect_s,
        }
        for signal in GUARD_SIGNALS:
            rule = self.rules[signal.name]
            values |= {signal.ratio_path: rule.max_ratio, signal.floor_path: rule.floor}
        return values


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """One group of requests. A value is None where nothing happened that it could be taken from, such as a transfer.

    `at_least` is what a value of few samples surely is; one that is missing is what it seems.
    """

    requests: int = 0
    values: Mapping[str, float | None] = field(default_factory=dict)
    at_least: Mapping[str, float | None] = field(default_factory=dict)

    @classmethod
    def of_sums(cls, sums: RequestSums | None) -> Self:
        """What the sums of a group say."""
        if sums is None:
            return cls()
        judged = sums.errors + sums.answered
        return cls(
            sums.requests,
            {
                "ttft_p99": sums.ttft.quantile(P99),
                "error_rate": sums.errors / judged if judged else None,
                "rld_share": sums.eager_tokens / sums.output_tokens if sums.output_tokens else None,
                "transfer_p99": sums.transfer.quantile(P99),
                "cache_lag": sums.lag_token_s / sums.requests if sums.requests else None,
            },
            {
                "ttft_p99": quantile_at_least(sums.ttft, P99),
                "error_rate": share_at_least(sums.errors, judged),
                "transfer_p99": quantile_at_least(sums.transfer, P99),
            },
        )

    def to_values(self) -> dict[str, Any]:
        """As JSON, for a group that others are compared with."""
        return {"requests": self.requests, "values": dict(self.values)}

    @classmethod
    def from_values(cls, values: Mapping[str, Any] | None) -> Self | None:
        """What `to_values` gave."""
        return None if values is None else cls(int(values["requests"]), dict(values["values"]))


class SignalVerdict(StrEnum):
    """What one signal says; `suspect` is worse than one of its two references only."""

    OK = "ok"
    SUSPECT = "suspect"
    BREACH = "breach"
    MISSING = "missing"
    OFF = "off"


class Decision(StrEnum):
    """What the signals say together."""

    FORWARD = "forward"
    HOLD = "hold"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class SignalReading:
    """One signal as it was judged: above `hold_bound` it holds the roll-out, above `bound` it aborts it.

    What counts is `canary_at_least`, which is below `canary` where few samples tell little.
    """

    signal: str
    unit: str
    before: float | None
    control: float | None
    canary: float | None
    hold_bound: float | None
    bound: float | None
    verdict: SignalVerdict
    canary_at_least: float | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a canary with its reasons, for people; `is_suspect` where a hold may become an abortion."""

    decision: Decision
    reasons: tuple[str, ...]
    readings: tuple[SignalReading, ...]
    is_suspect: bool = False


@dataclass(frozen=True, slots=True)
class Groups:
    """What is compared; the time before is None until it was taken."""

    canary: GroupFigures
    control: GroupFigures
    before: GroupFigures | None


def judge_canary(guard: Guard, groups: Groups, blind: Iterable[str] = ()) -> Judgement:
    """Go forward, hold or abort.

    Args:
        guard: the bounds.
        groups: the figures of canary, control group and the time before.
        blind: why what is known is not to be trusted, such as telemetry that stands still; then nothing is judged.

    Missing data holds, it neither aborts nor lets go forward. A signal aborts where it is beyond its bounds against
    both references: worse than the rest now, and worse than before. What a few slow requests make of a quantile is
    no such thing.
    """
    missing = [*blind, *_short_of(guard, groups)]
    if missing:
        readings = tuple(_unjudged(guard, signal, groups) for signal in GUARD_SIGNALS)
        return Judgement(Decision.HOLD, tuple(missing), readings)
    readings = tuple(_judge(guard, signal, groups) for signal in GUARD_SIGNALS)
    breaches = [_words(reading) for reading in readings if reading.verdict is SignalVerdict.BREACH]
    if breaches:
        return Judgement(Decision.ABORT, tuple(breaches), readings)
    suspects = [_words(reading) for reading in readings if reading.verdict is SignalVerdict.SUSPECT]
    if suspects:
        return Judgement(Decision.HOLD, tuple(suspects), readings, is_suspect=True)
    return Judgement(Decision.FORWARD, (), readings)


def _short_of(guard: Guard, groups: Groups) -> Iterable[str]:
    if all(rule.max_ratio is None for rule in guard.rules.values()):
        yield "every signal of the guard is switched off, so nothing can be judged"
    before = groups.before or GroupFigures()
    named = (("the canary", groups.canary), ("the control group", groups.control), ("the time before", before))
    for name, group in named:
        if group.requests < guard.min_requests:
            yield f"{name} has {group.requests} requests of the {guard.min_requests} that a verdict needs"


def _judge(guard: Guard, signal: GuardSignal, groups: Groups) -> SignalReading:
    rule = guard.rules[signal.name]
    before = groups.before.values.get(signal.name) if groups.before else None
    control, canary = groups.control.values.get(signal.name), groups.canary.values.get(signal.name)
    if rule.max_ratio is None:
        return SignalReading(signal.name, signal.unit, before, control, canary, None, None, SignalVerdict.OFF)
    low, high = sorted((rule.bound(before), rule.bound(control)))
    surely = groups.canary.at_least.get(signal.name, canary)
    if surely is None or surely <= low:
        verdict = SignalVerdict.OK
    else:
        verdict = SignalVerdict.BREACH if surely > high else SignalVerdict.SUSPECT
    return SignalReading(signal.name, signal.unit, before, control, canary, low, high, verdict, surely)


def _unjudged(guard: Guard, signal: GuardSignal, groups: Groups) -> SignalReading:
    """Figures without a verdict, as far as there are any."""
    before = groups.before.values.get(signal.name) if groups.before else None
    off = guard.rules[signal.name].max_ratio is None
    return SignalReading(
        signal.name,
        signal.unit,
        before,
        groups.control.values.get(signal.name),
        groups.canary.values.get(signal.name),
        None,
        None,
        SignalVerdict.OFF if off else SignalVerdict.MISSING,
    )


def _words(reading: SignalReading) -> str:
    shown = {
        name: "nothing" if value is None else f"{value:.3g}"
        for name, value in (("before", reading.before), ("control", reading.control), ("canary", reading.canary))
    }
    limit = reading.bound if reading.verdict is SignalVerdict.BREACH else reading.hold_bound
    unit = "" if reading.unit == "ratio" else f" {reading.unit}"
    return (
        f"{reading.signal} is {shown['canary']}{unit}, surely above its bound of {limit:.3g}{unit}"
        f" (before {shown['before']}, control {shown['control']})"
    )
