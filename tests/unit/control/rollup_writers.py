"""Writes sums of telemetry as the consumer would, for tests that judge them."""

from control.domain.rollups import LinkKey, LinkSums, Rollups, SiteKey, SiteSums
from control.domain.slo import Objectives
from control.store.rollups import SourceFacts, add_rollups, save_sources
from control.store.samples import add_samples
from control.store.tables import StreamPositionRow
from control.telemetry.folding import Received
from control.telemetry.records import RequestBatch, RequestRecord
from control.telemetry.rollups import RollupBuffer


def write(plane, rollups):
    with plane.database.unit_of_work(plane.send) as work:
        add_rollups(work.session, rollups, plane.now().timestamp())


def write_requests(plane, count=1, *, age_s=30.0, site="ams", objectives=None, **fields):
    """So many equal requests that ended so many seconds ago."""
    now_s = plane.now().timestamp()
    values = {
        "request_id": "r",
        "gateway": "gw",
        "site": site,
        "model": "m",
        "pipeline": "direct",
        "reason": "x",
        "outcome": "completed",
        "status": 200,
        "policy_revision": 1,
        "input_tokens": 1000,
        "cached_tokens": 960,
        "output_tokens": 100,
        "ttft_s": 0.5,
        "tpot_s": 0.02,
        "e2e_s": 1.0,
    }
    record = RequestRecord(**{**values, "received_at_s": now_s - age_s - 1.0, **fields})
    promised = objectives or Objectives()
    batch = RequestBatch(
        "gw",
        site,
        1,
        1,
        now_s,
        (record,) * count,
        class_objectives={
            record.service_class: (promised.ttft_p90_s, promised.ttft_p99_s, promised.tpot_p90_s),
        },
    )
    folded = Received([batch], now_s).fold([True], 0.0)
    write(plane, Rollups(requests={group.key: group.sums for group in folded.groups}))


def write_batch(plane, *records, site="ams", sequence=1, **fields):
    """What the consumer would store of one batch that a gateway sends now."""
    buffer, now_s = RollupBuffer(), plane.now().timestamp()
    buffer.take_requests(RequestBatch(f"{site}-gw-01", site, 1, sequence, now_s, tuple(records), **fields), now_s)
    with plane.database.unit_of_work(plane.send) as work:
        add_rollups(work.session, buffer.rollups, now_s)
        add_samples(work.session, buffer.samples.drain())


def record_of(plane, request_id="r", *, age_s=30.0, **fields):
    """A request that ended so many seconds ago."""
    values = {
        "gateway": "ams-gw-01",
        "site": "ams",
        "received_at_s": plane.now().timestamp() - age_s - 1.0,
        "model": "m",
        "pipeline": "direct",
        "reason": "transfer_short",
        "outcome": "completed",
        "status": 200,
        "policy_revision": 1,
        "prefill_node": "ams-p-01",
        "main_node": "fra-md-01",
        "input_tokens": 1000,
        "cached_tokens": 960,
        "output_tokens": 100,
        "ttft_s": 0.5,
        "tpot_s": 0.02,
        "e2e_s": 1.0,
    }
    return RequestRecord(**{"request_id": request_id, **values, **fields})


def write_link(plane, link="ams-fra", *, age_s=30.0, **figures):
    at_s = int(plane.now().timestamp() - age_s) // 10 * 10
    write(plane, Rollups(links={LinkKey(at_s, link): LinkSums(**figures)}))


def write_site(plane, site="ams", *, age_s=30.0, **figures):
    at_s = int(plane.now().timestamp() - age_s) // 10 * 10
    write(plane, Rollups(sites={SiteKey(at_s, site): SiteSums(**figures)}))


def hear(plane, *, kind="gateway", name="ams-gw-01", site="ams", age_s=1.0):
    """A sender was heard so many seconds ago, and the consumer has saved just now."""
    with plane.database.unit_of_work(plane.send) as work:
        save_sources(work.session, [SourceFacts(kind, name, site, plane.now().timestamp() - age_s, [])])
    consume(plane)


def consume(plane):
    """The consumer has saved just now."""
    with plane.database.unit_of_work(plane.send) as work:
        row = work.session.get(StreamPositionRow, "s") or StreamPositionRow(stream="s", last_id="1-0")
        row.saved_at = plane.now()
        work.session.add(row)
