"""What every metric says now, series by series, read from the sums in SQL. What is not known is None, never zero."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from sqlmodel import Session, func, select

from control.domain.alert_metrics import Reading
from control.domain.burn_rate import FAST, SLOW, WindowPair
from control.domain.collapse import RelayPicture, collapse_growth
from control.domain.histogram import Histogram
from control.domain.rollups import LinkSums, RequestSums, SiteSums
from control.services.fleet import load_links, load_sites
from control.services.policies import find_active_number
from control.services.rollout import RolloutState, load_statuses
from control.services.rollups import (
    grouped,
    load_requests,
    resolution_for,
)
from control.services.rollups import load_links as load_link_sums
from control.services.rollups import load_sites as load_site_sums
from control.services.slos import RecentRequests, burns_of, load_recent, load_slos
from control.store.tables import StreamPositionRow, TelemetrySourceRow

BLIND_AFTER_S = 60.0
REFERENCE_WINDOW_S = 6 * 3600
FIGURES = (
    *("requests", "completed", "client_closed", "shed", "failed", "hit_known", "valley"),
    *("output_tokens", "eager_tokens", "lag_token_s", "ttft", "tpot", "transfer", "stall"),
)

Requests = Mapping[tuple[str, str], RequestSums]
Figure = Callable[[RequestSums], float | None]


def _quantile(name: str, rank: float) -> Figure:
    def figure(sums: RequestSums) -> float | None:
        histogram: Histogram = getattr(sums, name)
        return histogram.quantile(rank)

    return figure


def _ratio(part: Callable[[RequestSums], float], whole: Callable[[RequestSums], float]) -> Figure:
    def figure(sums: RequestSums) -> float | None:
        return part(sums) / whole(sums) if whole(sums) else None

    return figure


_BY_CLASS: Mapping[str, Figure] = {
    "ttft_p50_s": _quantile("ttft", 0.5),
    "ttft_p90_s": _quantile("ttft", 0.9),
    "ttft_p99_s": _quantile("ttft", 0.99),
    "tpot_p90_s": _quantile("tpot", 0.9),
    "error_ratio": _ratio(lambda sums: sums.errors, lambda sums: sums.errors + sums.answered),
}
_BY_SITE: Mapping[str, Figure] = {
    "rld_share": _ratio(lambda sums: sums.eager_tokens, lambda sums: sums.output_tokens),
    "transfer_p99_s": _quantile("transfer", 0.99),
    "handoff_stall_p99_s": _quantile("stall", 0.99),
    "valley_share": _ratio(lambda sums: sums.valley, lambda sums: sums.hit_known),
}
_BY_SITE_REPORT: Mapping[str, Callable[[SiteSums], float | None]] = {
    "relay_utilization": lambda sums: sums.relay_running / sums.relay_slots if sums.relay_slots else None,
    "stranded_kv_bytes": lambda sums: sums.stranded_bytes / sums.observer_batches if sums.observer_batches else None,
}
_BY_LINK: Mapping[str, Callable[[LinkSums], float | None]] = {
    "link_utilization": lambda sums: sums.total_bytes / sums.capacity_bytes if sums.capacity_bytes else None,
    "link_down_share": lambda sums: sums.down_samples / sums.samples if sums.samples else None,
    "link_flaps": lambda sums: float(sums.flaps) if sums.samples else None,
}
_BURN_PAIRS: Mapping[str, WindowPair] = {"slo_burn_fast": FAST, "slo_burn_slow": SLOW}


class MetricReader:
    """Reads metrics at one moment in one session; what several of them need is read once."""

    def __init__(self, session: Session, now: datetime) -> None:
        self._session = session
        self._now = now
        self._now_s = now.timestamp()
        self._requests: dict[int, Requests] = {}
        self._reports: dict[int, dict[str, SiteSums]] = {}
        self._link_sums: dict[int, dict[str, LinkSums]] = {}
        self._recent: RecentRequests | None = None
        self.sites = [site.name for site in load_sites(session)]
        self.links = [link.name for link in load_links(session)]
        self._lag_s = self._telemetry_lag_s()
        self.is_blind = self._lag_s is None or self._lag_s > BLIND_AFTER_S

    def read(self, metric: str, window_s: int) -> list[Reading]:
        """All series of a metric.

        Raises:
            KeyError: there is no such metric.
        """
        if metric == "telemetry_lag_s":
            return [Reading({}, self._lag_s)]
        if metric == "drifted_gateways":
            return self._drifted()
        readings = self._read_sums(metric, window_s)
        return [replace(reading, value=None) for reading in readings] if self.is_blind else readings

    def _read_sums(self, metric: str, window_s: int) -> list[Reading]:
        if metric in _BY_CLASS:
            figure = _BY_CLASS[metric]
            return [
                Reading({"site": site, "service_class": name}, figure(sums))
                for (site, name), sums in self._load(window_s).items()
            ]
        if metric in _BY_SITE:
            return self._per_site(window_s, _BY_SITE[metric])
        if metric in _BY_SITE_REPORT:
            report = _BY_SITE_REPORT[metric]
            return _readings("site", self.sites, self._load_reports(window_s), report)
        if metric in _BY_LINK:
            return _readings("link", self.links, self._load_links(window_s), _BY_LINK[metric])
        if metric in _BURN_PAIRS:
            return self._burns(_BURN_PAIRS[metric])
        special = {
            "requests_per_s": self._request_rates,
            "cache_lag_tokens": self._cache_lags,
            "collapse_growth": self._collapses,
            "site_silence_s": self._silences,
        }
        return special[metric](window_s)

    def _per_site(self, window_s: int, figure: Figure) -> list[Reading]:
        return _readings("site", self.sites, self._by_site(self._load(window_s)), figure)

    def _request_rates(self, window_s: int) -> list[Reading]:
        reports, requests = self._load_reports(window_s), self._by_site(self._load(window_s))
        length_s = self._length_s(window_s)
        return [
            Reading(
                {"site": site},
                requests.get(site, RequestSums()).requests / length_s
                if reports.get(site, SiteSums()).gateway_batches
                else None,
            )
            for site in self.sites
        ]

    def _cache_lags(self, window_s: int) -> list[Reading]:
        length_s = self._length_s(window_s)
        return self._per_site(window_s, lambda sums: sums.lag_token_s / length_s)

    def _collapses(self, window_s: int) -> list[Reading]:
        reference = load_requests(
            self._session,
            self._now_s,
            REFERENCE_WINDOW_S,
            lambda key: (key.site, key.at_s),
            *FIGURES,
            before_s=window_s,
        )
        span_s = resolution_for(REFERENCE_WINDOW_S).span_s
        before, recent = grouped(reference, lambda key: key[0]), self._by_site(self._load(window_s))
        readings = []
        for site in self.sites:
            covered_s = span_s * sum(key[0] == site for key in reference)
            found = collapse_growth(
                _picture(recent.get(site), self._length_s(window_s)), _picture(before.get(site), covered_s)
            )
            readings.append(replace(found, labels={"site": site}))
        return readings

    def _silences(self, _: int) -> list[Reading]:
        newest = select(TelemetrySourceRow.site, func.max(TelemetrySourceRow.sent_at_s)).group_by(
            TelemetrySourceRow.site
        )
        heard = dict(self._session.exec(newest).all())
        return [
            Reading({"site": site}, max(self._now_s - heard[site], 0.0) if site in heard else None)
            for site in self.sites
        ]

    def _burns(self, pair: WindowPair) -> list[Reading]:
        if self._recent is None:
            self._recent = load_recent(self._session, self._now_s)
        readings = []
        for stated in load_slos(self._session):
            rates = {burn.pair: burn.rate for burn in burns_of(stated.slo, self._recent)}
            readings.append(Reading({"slo": stated.slo.name}, rates[pair]))
        return readings

    def _drifted(self) -> list[Reading]:
        """Gateways that are known to run something else; unknown where all that is known of a site's is old."""
        active = find_active_number(self._session)
        statuses = load_statuses(self._session, active, self._now)
        readings = []
        for site in sorted({status.site for status in statuses}):
            states = [status.state for status in statuses if status.site == site]
            drifted = sum(state in {RolloutState.PENDING, RolloutState.FAILED} for state in states)
            is_known = drifted or all(state is RolloutState.APPLIED for state in states)
            readings.append(Reading({"site": site}, float(drifted) if is_known else None))
        return readings

    def _telemetry_lag_s(self) -> float | None:
        saved_at = self._session.exec(select(func.max(StreamPositionRow.saved_at))).one()
        return None if saved_at is None else max((self._now - saved_at).total_seconds(), 0.0)

    def _by_site(self, requests: Requests) -> dict[str, RequestSums]:
        return grouped(requests, lambda key: key[0])

    def _load(self, window_s: int) -> Requests:
        if window_s not in self._requests:
            self._requests[window_s] = load_requests(
                self._session, self._now_s, window_s, lambda key: (key.site, key.service_class), *FIGURES
            )
        return self._requests[window_s]

    def _load_reports(self, window_s: int) -> dict[str, SiteSums]:
        if window_s not in self._reports:
            self._reports[window_s] = load_site_sums(self._session, self._now_s, window_s)
        return self._reports[window_s]

    def _load_links(self, window_s: int) -> dict[str, LinkSums]:
        if window_s not in self._link_sums:
            self._link_sums[window_s] = load_link_sums(self._session, self._now_s, window_s)
        return self._link_sums[window_s]

    def _length_s(self, window_s: int) -> float:
        """The window as it was read: from the start of its first span to now."""
        return self._now_s - resolution_for(window_s).start_s(self._now_s - window_s)


def _readings(
    label: str, names: Iterable[str], sums: Mapping[str, object], figure: Callable[..., float | None]
) -> list[Reading]:
    return [Reading({label: name}, figure(sums[name]) if name in sums else None) for name in names]


def _picture(sums: RequestSums | None, covered_s: float) -> RelayPicture:
    if sums is None or not covered_s:
        return RelayPicture(0, None, None, None, None)
    return RelayPicture(
        requests=sums.requests,
        rld_share=_BY_SITE["rld_share"](sums),
        transfer_p99_s=_BY_SITE["transfer_p99_s"](sums),
        cache_lag_tokens=sums.lag_token_s / covered_s,
        ttft_p99_s=sums.ttft.quantile(0.99),
    )
