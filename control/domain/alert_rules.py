"""Alert rules: a threshold on a metric, with a time to wait and a gap between firing and clearing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from control.domain.alert_metrics import METRICS_BY_NAME
from control.domain.burn_rate import FAST, SLOW
from control.domain.policy import FieldProblem
from control.domain.policy_fields import is_member_name

MIN_WINDOW_S = 60
MAX_WINDOW_S = 86_400
MAX_WAIT_S = 86_400.0


class Severity(StrEnum):
    """How much it matters."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class AlertRule:
    """Alert where a metric stays beyond `threshold` for `for_s`; end where it stays on the good side for `clear_for_s`.

    `clear_threshold` is where the good side begins, the threshold itself where it is None; what lies between keeps an
    alert as it is. `labels` narrow the rule to some series.
    """

    name: str
    metric: str
    threshold: float
    above: bool = True
    clear_threshold: float | None = None
    window_s: int = 300
    for_s: float = 60.0
    clear_for_s: float = 60.0
    severity: Severity = Severity.WARNING
    enabled: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    summary: str = ""

    def is_breach(self, value: float) -> bool:
        """Whether a value is beyond the threshold."""
        return value > self.threshold if self.above else value < self.threshold

    def is_clear(self, value: float) -> bool:
        """Whether a value is on the good side."""
        bound = self.threshold if self.clear_threshold is None else self.clear_threshold
        return value <= bound if self.above else value >= bound

    def covers(self, labels: Mapping[str, str]) -> bool:
        """Whether it is about this series."""
        return all(labels.get(name) == value for name, value in self.labels.items())


BUILT_IN_RULES: tuple[AlertRule, ...] = (
    AlertRule(
        "collapse-warning",
        "collapse_growth",
        1.5,
        clear_threshold=1.2,
        clear_for_s=120,
        severity=Severity.CRITICAL,
        summary="RLD share, transfer P99 and cache lag rise while TTFT stays flat: the link no longer drains.",
    ),
    AlertRule(
        "valley",
        "valley_share",
        0.3,
        clear_threshold=0.2,
        window_s=900,
        for_s=300,
        summary="Many requests hit the prefix cache in the costly middle: cache more, or route so that they hit more.",
    ),
    AlertRule(
        "stranded-kv",
        "stranded_kv_bytes",
        1_000_000,
        clear_threshold=0,
        window_s=60,
        summary="Prefill nodes hold KV that nobody reads: `pdd leases --release` gives it back.",
    ),
    AlertRule("policy-drift", "drifted_gateways", 0, summary="A gateway does not run the active policy."),
    AlertRule(
        "stale-site",
        "site_silence_s",
        30,
        clear_threshold=10,
        for_s=0,
        clear_for_s=20,
        severity=Severity.CRITICAL,
        summary="Neither gateway nor observer of the site is heard: what is known of it is old.",
    ),
    AlertRule(
        "telemetry-stalled",
        "telemetry_lag_s",
        60,
        clear_threshold=20,
        for_s=0,
        clear_for_s=20,
        severity=Severity.CRITICAL,
        summary="Telemetry is not summed up any more: all other alerts are blind.",
    ),
    AlertRule(
        "link-flapping",
        "link_flaps",
        3,
        clear_threshold=0,
        window_s=600,
        for_s=0,
        summary="The WAN relay of the link comes and goes.",
    ),
    AlertRule(
        "slo-burn-fast",
        "slo_burn_fast",
        FAST.factor,
        for_s=0,
        severity=Severity.CRITICAL,
        summary="An objective's error budget burns more than 14.4 times too fast: 2 % of a month's in an hour.",
    ),
    AlertRule(
        "slo-burn-slow",
        "slo_burn_slow",
        SLOW.factor,
        for_s=0,
        summary="An objective's error budget burns more than 6 times too fast: 5 % of a month's in six hours.",
    ),
)
BUILT_IN_BY_NAME: Mapping[str, AlertRule] = {rule.name: rule for rule in BUILT_IN_RULES}


def rule_problems(rule: AlertRule) -> list[FieldProblem]:
    """What is wrong with a rule, by field."""
    problems = []
    if not is_member_name(rule.name):
        problems.append(FieldProblem("name", "Use lower-case letters, digits, `-` and `_`."))
    metric = METRICS_BY_NAME.get(rule.metric)
    if metric is None:
        problems.append(FieldProblem("metric", "There is no such metric."))
    elif unknown := sorted(rule.labels.keys() - set(metric.labels)):
        problems.append(FieldProblem("labels", f"{rule.metric} has no label {', '.join(unknown)}."))
    if not MIN_WINDOW_S <= rule.window_s <= MAX_WINDOW_S:
        problems.append(FieldProblem("window_s", f"From {MIN_WINDOW_S} to {MAX_WINDOW_S} s."))
    problems += [
        FieldProblem(name, f"From 0 to {MAX_WAIT_S:g} s.")
        for name, value in (("for_s", rule.for_s), ("clear_for_s", rule.clear_for_s))
        if not 0 <= value <= MAX_WAIT_S
    ]
    if rule.clear_threshold is not None and rule.is_breach(rule.clear_threshold):
        problems.append(FieldProblem("clear_threshold", "It lies beyond the threshold: an alert could never end."))
    return problems
