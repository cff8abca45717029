"""What the API says of requests."""

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, Field

from control.domain.differences import Difference
from control.domain.waterfall import StageSpan
from control.services.requests import Comparison, RequestStory, SameBucket
from control.store.tables import RequestSampleRow
from control.telemetry.records import RequestRecord


class RequestOut(BaseModel):
    """One request. Times are seconds, ratios run from 0 to 1; null is what does not apply or was not reported."""

    id: str
    at: datetime = Field(description="When it ended.")
    site: str
    gateway: str
    model: str
    traffic: str
    tenant: str
    service_class: str
    pipeline: str = Field(description="Empty where it was turned away before anything was decided.")
    reason: str
    outcome: str
    revision: int
    hit_bucket: int | None = Field(description="0 to 6, from the lowest prefix hit rate to the highest.")
    hit_rate: float | None
    drc_hit_rate: float
    input_tokens: int
    uncached_tokens: int
    output_tokens: int
    eager_tokens: int
    ttft_s: float | None
    ttst_s: float | None
    tpot_s: float | None
    max_itl_s: float | None
    e2e_s: float
    transfer_s: float | None
    handoff_mode: str
    handoff_stall_s: float | None
    prefill_node: str
    relay_node: str
    main_node: str
    resumes: int = Field(description="Times it went on elsewhere after a failure.")
    weight: int = Field(description="How many requests it stands for; 0 if kept only as a chart's slowest.")

    @classmethod
    def fields_of(cls, row: RequestSampleRow) -> dict[str, Any]:
        """The fields that a row has."""
        same = set(RequestOut.model_fields) - {"id", "at", "hit_bucket"}
        return {name: getattr(row, name) for name in same} | {
            "id": row.request_id,
            "at": datetime.fromtimestamp(row.at_s, UTC),
            "hit_bucket": row.hit_bucket if row.hit_bucket >= 0 else None,
        }

    @classmethod
    def of(cls, row: RequestSampleRow) -> "RequestOut":
        """A row."""
        return cls(**RequestOut.fields_of(row))


class StageOut(BaseModel):
    """A part of a request, seconds after it was received."""

    name: str
    start_s: float
    end_s: float

    @classmethod
    def of(cls, span: StageSpan) -> "StageOut":
        """A span."""
        return cls(name=span.name, start_s=span.start_s, end_s=span.end_s)


class DecisionOut(BaseModel):
    """What the choice of the pipeline looked at."""

    input_tokens: int
    resident_tokens: int
    in_flight_tokens: int
    uncached_tokens: int
    predicted_prefix_tokens: int
    predicted_transfer_s: float
    predicted_direct_ttft_s: float
    relay_utilization: float
    relay_was_at_ceiling: bool
    output_bound_tokens: int
    output_bound_source: str
    link: str

    @classmethod
    def of(cls, record: RequestRecord) -> "DecisionOut":
        """A record's inputs."""
        same = set(cls.model_fields) - {"resident_tokens", "in_flight_tokens"}
        return cls(
            **{name: getattr(record, name) for name in same},
            resident_tokens=record.drc_resident_tokens,
            in_flight_tokens=record.drc_in_flight_tokens,
        )


class SameBucketOut(BaseModel):
    """The middle of what others of the same hit-rate bucket and pipeline went through, half an hour to either side."""

    requests: int
    ttft_s: float | None
    e2e_s: float | None
    stages: list[StageOut]

    @classmethod
    def of(cls, same: SameBucket) -> "SameBucketOut":
        """The medians."""
        stages = [StageOut.of(span) for span in same.stages]
        return cls(requests=same.requests, ttft_s=same.ttft_s, e2e_s=same.e2e_s, stages=stages)


class RequestStoryOut(RequestOut):
    """One request with its stages, what was decided on which grounds, and others of its kind."""

    received_at: datetime
    status: int
    stream: bool
    trace_id: str
    cached_tokens: int | None
    max_output_tokens: int
    pulled_tokens: int | None
    pulled_bytes: int | None
    handoff_batches: int
    expected_recomputed_tokens: int | None
    recomputed_tokens: int | None
    reported_drc_tokens: int | None = Field(description="Of the prompt, what MD's engine had or was getting already.")
    extend_resident_tokens: int | None = Field(description="What MD's engine had when it went on from the cut.")
    caught_up_tokens: int
    repulls: int
    gateway_overhead_s: float
    decision: DecisionOut
    stages: list[StageOut]
    critical_path: list[StageOut] = Field(description="What the first token waited for, piece by piece.")
    same_bucket: SameBucketOut

    @classmethod
    def told(cls, story: RequestStory) -> "RequestStoryOut":
        """A story."""
        record = story.record
        own = set(cls.model_fields) - set(RequestOut.model_fields)
        same = own - {"received_at", "decision", "stages", "critical_path", "same_bucket"}
        return cls(
            **RequestOut.fields_of(story.row),
            **{name: getattr(record, name) for name in same},
            received_at=datetime.fromtimestamp(record.received_at_s, UTC),
            decision=DecisionOut.of(record),
            stages=[StageOut.of(span) for span in story.stages],
            critical_path=[StageOut.of(span) for span in story.critical_path],
            same_bucket=SameBucketOut.of(story.same_bucket),
        )


class DifferenceOut(BaseModel):
    """One value that is commoner among the selected requests; shares run from 0 to 1."""

    dimension: str
    value: str
    selected: float
    rest: float
    selected_share: float
    rest_share: float
    lift: float = Field(description="Share among the selected / share among the rest, damped where there are few.")

    @classmethod
    def of(cls, one: Difference) -> "DifferenceOut":
        """A difference."""
        return cls(
            dimension=one.dimension,
            value=one.value,
            selected=one.selected,
            rest=one.rest,
            selected_share=one.selected_share,
            rest_share=one.rest_share,
            lift=one.lift,
        )


class ComparisonOut(BaseModel):
    """What tells the selected requests from the rest, the largest lift first; counts are estimates of all requests."""

    since: datetime = Field(description="The rest ended from here on.")
    until: datetime
    selected: float
    rest: float
    differences: list[DifferenceOut]

    @classmethod
    def of(cls, comparison: Comparison) -> "ComparisonOut":
        """A comparison."""
        return cls(
            since=datetime.fromtimestamp(comparison.since_s, UTC),
            until=datetime.fromtimestamp(comparison.until_s, UTC),
            selected=comparison.selected,
            rest=comparison.rest,
            differences=[DifferenceOut.of(one) for one in comparison.differences],
        )
