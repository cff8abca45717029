"""Records on their way out: batched, never in the way of a request, kept while Redis is away."""

import msgspec
import pytest
from redis.exceptions import RedisError

from control.domain.policy import ServiceClass
from control.telemetry.records import RequestBatch, RequestRecord
from engine_agents.gateway import telemetry
from engine_agents.gateway.spool import Spool
from engine_agents.gateway.telemetry import Publisher


class FakeStream:
    """A stream that can be away."""

    def __init__(self):
        self.batches = []
        self.is_away = False

    async def send(self, data):
        if self.is_away:
            raise RedisError("away")
        self.batches.append(msgspec.msgpack.decode(data, type=RequestBatch))

    async def close(self):
        pass


def record(name):
    return RequestRecord(name, "gw", "ams", 1.0, "m", "direct", "transfer_short", "completed", 200, 3)


@pytest.fixture
def stream():
    return FakeStream()


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool")


@pytest.fixture
def publisher(stream, spool):
    return Publisher("gw", "ams", stream=stream, spool=spool, vitals=lambda: (3, 7))


async def test_waiting_records_travel_together_under_one_key(publisher, stream):
    publisher.add(record("a"))
    publisher.add(record("b"))
    await publisher.send_batch()
    await publisher.send_batch()
    first, heartbeat = stream.batches
    assert [item.request_id for item in first.records] == ["a", "b"]
    assert (first.policy_revision, first.requests_in_flight) == (3, 7)
    assert heartbeat.records == ()
    assert (first.epoch, first.sequence, heartbeat.sequence) == (heartbeat.epoch, 0, 1)


async def test_a_batch_says_what_was_promised(stream, spool):
    promised = ServiceClass(ttft_p90_s=1.0, ttft_p99_s=2.0, tpot_p90_s=0.05)
    publisher = Publisher(
        "gw",
        "ams",
        stream=stream,
        spool=spool,
        vitals=lambda: (3, 0),
        classes=lambda: {"default": promised, "gold": promised},
    )
    await publisher.send_batch()
    sent = stream.batches[0]
    assert (sent.slo_ttft_p90_s, sent.slo_ttft_p99_s, sent.slo_tpot_p90_s) == (1.0, 2.0, 0.05)
    assert sent.class_objectives == {"default": (1.0, 2.0, 0.05), "gold": (1.0, 2.0, 0.05)}


async def test_what_could_not_be_sent_is_sent_later_in_order(publisher, stream, spool):
    stream.is_away = True
    for name in "abc":
        publisher.add(record(name))
        await publisher.send_batch()
    assert len(spool) == 3
    stream.is_away = False
    await publisher.send_batch()
    assert [item.request_id for batch in stream.batches for item in batch.records] == ["a", "b", "c"]
    assert len(spool) == 0


async def test_heartbeats_are_not_worth_keeping(publisher, stream, spool):
    stream.is_away = True
    await publisher.send_batch()
    assert len(spool) == 0


async def test_a_batch_keeps_its_key_through_a_restart(publisher, stream, spool, tmp_path):
    stream.is_away = True
    publisher.add(record("a"))
    await publisher.send_batch()
    stream.is_away = False
    later = Publisher("gw", "ams", stream=stream, spool=Spool(tmp_path / "spool"), vitals=lambda: (3, 0))
    await later.send_batch()
    kept = next(batch for batch in stream.batches if batch.records)
    assert kept.sequence == 0
    assert kept.epoch <= stream.batches[0].epoch


async def test_losses_are_counted(publisher, stream, monkeypatch):
    monkeypatch.setattr(telemetry, "MAX_WAITING_RECORDS", 2)
    for name in "abc":
        publisher.add(record(name))
    await publisher.send_batch()
    assert [item.request_id for item in stream.batches[0].records] == ["b", "c"]
    assert stream.batches[0].dropped_records == 1


def test_a_full_spool_loses_its_oldest_and_says_how_many_records(tmp_path):
    spool = Spool(tmp_path, max_bytes=10)
    assert spool.put(1, 1, b"12345", 7) == 0
    assert spool.put(1, 2, b"12345", 1) == 0
    assert spool.put(1, 3, b"1", 1) == 7
    assert spool.first() == (f"{1:016d}-{2:010d}-{1:06d}.batch", b"12345")


def test_a_spool_with_too_many_files_loses_its_oldest(tmp_path):
    (tmp_path / f"{0:016d}-{9:010d}.batch").write_bytes(b"of an earlier release")
    spool = Spool(tmp_path, max_files=2)
    assert [spool.put(1, number, b"x", number) for number in range(4)] == [0, 1, 0, 1]
    assert len(Spool(tmp_path)) == 2


async def test_records_that_a_full_spool_lost_are_counted_exactly(publisher, stream, spool, monkeypatch):
    monkeypatch.setattr(spool, "_max_files", 2)
    stream.is_away = True
    for count in (3, 2, 1):
        for _ in range(count):
            publisher.add(record("r"))
        await publisher.send_batch()
    stream.is_away = False
    await publisher.send_batch()
    await publisher.send_batch()
    assert sum(len(batch.records) for batch in stream.batches) == 3
    assert stream.batches[-1].dropped_records == 3
