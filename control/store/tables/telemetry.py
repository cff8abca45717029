"""Telemetry summed up, and how far its streams have been read."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Dialect, Integer, String
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field

from control.domain.rollups import Exemplar
from control.store.tables.base import Row, moment


class ExemplarText(TypeDecorator[Exemplar]):
    """An exemplar as text: its seconds and its id; empty for none."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: Exemplar | None, dialect: Dialect) -> str:
        """As stored."""
        del dialect
        return f"{value.ttft_s!r} {value.request_id}" if value is not None and value.request_id else ""

    def process_result_value(self, value: str | None, dialect: Dialect) -> Exemplar:
        """As it was."""
        del dialect
        seconds, _, request_id = (value or "").partition(" ")
        return Exemplar(float(seconds), request_id) if request_id else Exemplar()


def _key(sa_type: Any = None) -> Any:
    return Field(primary_key=True, **({"sa_type": sa_type} if sa_type else {}))


def _span() -> Any:
    return Field(primary_key=True, sa_column_kwargs={"autoincrement": False})


def _total() -> Any:
    return Field(default=0, sa_type=BigInteger)


class RequestRollupRow(Row, table=True):
    """Sums over the requests of one span, see `control.domain.rollups.RequestSums`; histograms as bytes."""

    __tablename__ = "request_rollup"
    span_s: int = _span()
    at_s: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})
    site: str = _key()
    pipeline: str = _key()
    hit_bucket: int = _span()
    revision: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})
    service_class: str = _key()
    requests: int = _total()
    completed: int = _total()
    client_closed: int = _total()
    rejected: int = _total()
    shed: int = _total()
    failed: int = _total()
    demo: int = _total()
    good: int = _total()
    hit_known: int = _total()
    valley: int = _total()
    input_tokens: int = _total()
    cached_tokens: int = _total()
    uncached_tokens: int = _total()
    output_tokens: int = _total()
    eager_tokens: int = _total()
    pulled_bytes: int = _total()
    handoffs: int = _total()
    catch_up: int = _total()
    lag_token_s: float = 0.0
    ttft: bytes = b""
    tpot: bytes = b""
    e2e: bytes = b""
    transfer: bytes = b""
    stall: bytes = b""
    slowest: Any = Field(default=Exemplar(), sa_type=ExemplarText, nullable=False)


class RequestSampleRow(Row, table=True):
    """One request that was kept whole: what it can be found and sorted by, and its record as msgpack.

    `at_s` is when it ended, Unix seconds. `weight` says how many requests it stands for; 0 where it is kept only as
    the slowest of a chart's cell.
    """

    __tablename__ = "request_sample"
    number: int | None = Field(
        default=None,
        primary_key=True,
        sa_type=BigInteger().with_variant(Integer, "sqlite"),
    )
    request_id: str = Field(index=True)
    at_s: float = Field(index=True)
    weight: int
    is_notable: bool
    site: str
    gateway: str
    model: str
    traffic: str
    tenant: str
    service_class: str
    pipeline: str
    reason: str
    outcome: str
    revision: int = Field(sa_type=BigInteger)
    hit_bucket: int
    prefill_node: str
    relay_node: str
    main_node: str
    handoff_mode: str
    input_tokens: int
    output_tokens: int
    eager_tokens: int
    uncached_tokens: int
    resumes: int
    hit_rate: float | None = None
    drc_hit_rate: float
    ttft_s: float | None = None
    ttst_s: float | None = None
    tpot_s: float | None = None
    max_itl_s: float | None = None
    e2e_s: float
    transfer_s: float | None = None
    handoff_stall_s: float | None = None
    record: bytes = Field(repr=False)


class LinkRollupRow(Row, table=True):
    """What one link carried within one span, see `control.domain.rollups.LinkSums`."""

    __tablename__ = "link_rollup"
    span_s: int = _span()
    at_s: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})
    link: str = _key()
    samples: int = _total()
    down_samples: int = _total()
    flaps: int = _total()
    seconds: float = 0.0
    total_bytes: int = _total()
    direct_bytes: int = _total()
    relay_bytes: int = _total()
    capacity_bytes: float = 0.0
    queued_transfers: int = _total()
    waits: int = _total()
    waited_s: float = 0.0


class LinkClassRollupRow(Row, table=True):
    """What one link carried of one service class, see `control.domain.rollups.LinkClassSums`."""

    __tablename__ = "link_class_rollup"
    span_s: int = _span()
    at_s: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})
    link: str = _key()
    service_class: str = _key()
    total_bytes: int = _total()


class NodeRollupRow(Row, table=True):
    """What requests brought to one main node within one span, see `control.domain.rollups.NodeSums`."""

    __tablename__ = "node_rollup"
    span_s: int = _span()
    at_s: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})
    node: str = _key()
    requests: int = _total()
    uncached_tokens: int = _total()
    lag_token_s: float = 0.0


class SiteRollupRow(Row, table=True):
    """What a site reported within one span, see `control.domain.rollups.SiteSums`."""

    __tablename__ = "site_rollup"
    span_s: int = _span()
    at_s: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})
    site: str = _key()
    gateway_batches: int = _total()
    observer_batches: int = _total()
    node_samples: int = _total()
    unreachable_samples: int = _total()
    relay_running: int = _total()
    relay_waiting: int = _total()
    relay_slots: int = _total()
    stranded_bytes: int = _total()


class StreamPositionRow(Row, table=True):
    """The last entry of a stream that the rollups hold, and how many of its entries were read or seen to be gone."""

    __tablename__ = "stream_position"
    stream: str = Field(primary_key=True)
    last_id: str
    entries: int = _total()
    saved_at: datetime = moment()


class TelemetrySourceRow(Row, table=True):
    """What must be known of a gateway, observer or link to count its next batch rightly; `state` is the consumer's."""

    __tablename__ = "telemetry_source"
    kind: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    site: str
    sent_at_s: float
    state: Any = Field(sa_type=JSON)


class TelemetryCountRow(Row, table=True):
    """How much of what arrived was left out or out of order, by reason."""

    __tablename__ = "telemetry_count"
    reason: str = Field(primary_key=True)
    count: int = _total()
