"""The collapse that TTFT hides: relay decode makes ever more of the output while the link no longer drains."""

from dataclasses import dataclass

from control.domain.alert_metrics import Reading

MIN_RECENT_REQUESTS = 20
MIN_REFERENCE_REQUESTS = 50
FLAT_TTFT_GROWTH = 1.25

# Added to both sides of a comparison, so that growth from next to nothing does not count.
_SHARE_FLOOR = 0.02
_TRANSFER_FLOOR_S = 0.1
_LAG_FLOOR_TOKENS = 100.0
_TTFT_FLOOR_S = 0.05


@dataclass(frozen=True, slots=True)
class RelayPicture:
    """A site over some time; None where it is not known."""

    requests: int
    rld_share: float | None
    transfer_p99_s: float | None
    cache_lag_tokens: float | None
    ttft_p99_s: float | None


def collapse_growth(recent: RelayPicture, reference: RelayPicture) -> Reading:
    """By how many times RLD share, transfer P99 and cache lag have all grown; it may start an alert while TTFT is flat.

    Unknown with few requests on either side, or where a figure is missing.
    """
    if recent.requests < MIN_RECENT_REQUESTS or reference.requests < MIN_REFERENCE_REQUESTS:
        return Reading()
    grown = (
        _growth(recent.rld_share, reference.rld_share, _SHARE_FLOOR),
        _growth(recent.transfer_p99_s, reference.transfer_p99_s, _TRANSFER_FLOOR_S),
        _growth(recent.cache_lag_tokens, reference.cache_lag_tokens, _LAG_FLOOR_TOKENS),
    )
    ttft = _growth(recent.ttft_p99_s, reference.ttft_p99_s, _TTFT_FLOOR_S)
    known = [value for value in grown if value is not None]
    if ttft is None or len(known) < len(grown):
        return Reading()
    return Reading(value=min(known), may_start=ttft <= FLAT_TTFT_GROWTH)


def _growth(recent: float | None, reference: float | None, floor: float) -> float | None:
    if recent is None or reference is None:
        return None
    return (recent + floor) / (reference + floor)
