"""What a guarded roll-out watches: its signals, with the knobs that each of them has in the policy."""

from typing import NamedTuple


class GuardSignal(NamedTuple):
    """One signal. Higher is worse; `floor` is the default of what never counts as worse, up to `max_floor`."""

    name: str
    unit: str
    floor_suffix: str
    floor: float
    max_floor: float
    words: str

    @property
    def ratio_path(self) -> str:
        """Where the policy says how many times the reference it may be."""
        return f"guard.{self.name}_max_ratio"

    @property
    def floor_path(self) -> str:
        """Where the policy says below what it is never worse."""
        return f"guard.{self.name}_floor{self.floor_suffix}"


GUARD_SIGNALS = (
    GuardSignal("ttft_p99", "s", "_s", 1.0, 3600.0, "TTFT P99"),
    GuardSignal("error_rate", "ratio", "", 0.02, 1.0, "the share of requests that the fleet did not answer"),
    GuardSignal("rld_share", "ratio", "", 0.2, 1.0, "the share of output tokens that RLD made"),
    GuardSignal("transfer_p99", "s", "_s", 2.0, 3600.0, "KV transfer P99"),
    GuardSignal("cache_lag", "token·s", "_token_s", 500.0, 1e9, "cache lag per request"),
)
