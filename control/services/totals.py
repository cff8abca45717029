"""Requests of a span of time in one sum for each hit-rate bucket, so that quantiles of the whole span are exact."""

from sqlmodel import Session

from control.domain.rollups import RequestSums
from control.services.history import Slice
from control.store.rollups import Spans, sum_request_rollups

_FIGURES = (
    *("requests", "completed", "client_closed", "good", "output_tokens", "eager_tokens", "lag_token_s"),
    *("ttft", "transfer"),
)


def load_bucket_totals(session: Session, spans: Spans, wanted: Slice) -> dict[int, RequestSums]:
    """Sums by hit-rate bucket; those without a known hit rate under `UNKNOWN_BUCKET`."""
    return sum_request_rollups(session, spans, lambda key: key.hit_bucket, _FIGURES, wanted.stated)
