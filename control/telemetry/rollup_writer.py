"""Keeps the sums in SQL up to date with the streams: each entry counts once, whatever dies in between.

What is not saved yet is thrown away whenever a save fails or another consumer has been at work; it is read again from
the streams, behind the entry up to which SQL is known to be right.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError
from sqlalchemy.exc import SQLAlchemyError

from control.domain.rollups import Rollups
from control.errors import DatabaseUnavailableError
from control.store.rollups import (
    Position,
    Progress,
    SourceFacts,
    add_counts,
    add_rollups,
    advance_positions,
    delete_old_rollups,
    load_progress,
    save_sources,
)
from control.store.samples import Sample, add_samples, delete_old_samples
from control.store.session import Database
from control.telemetry.batch_keys import BatchKeys
from control.telemetry.folding import Received
from control.telemetry.records import BATCH_FIELD, RequestBatch, SampleBatch
from control.telemetry.rollups import (
    RollupBuffer,
    SourceState,
    link_document,
    link_from_document,
    source_document,
)

SAVE_EVERY_S = 5.0
SWEEP_EVERY_S = 60.0
PAGE_ENTRIES = 100
MAX_CELLS = 20_000
FROM_START = "0-0"
LINK = "link"

logger = logging.getLogger(__name__)

Batch = RequestBatch | SampleBatch
Decode = Callable[[str, bytes], tuple[Batch, int]]


class Entry(NamedTuple):
    """One entry of a stream; `batch` is None if it could not be read, which counts as one malformed record."""

    stream: str
    entry_id: str
    batch: Batch | None
    malformed: int


@dataclass(frozen=True, slots=True)
class _Save:
    """All that one transaction writes."""

    before: Mapping[str, Position]
    after: Mapping[str, Position]
    buffer: RollupBuffer
    sources: list[SourceFacts]
    samples: list[Sample]
    now_s: float
    sweep: bool


class RollupWriter:
    """Takes entries of the streams in order and saves what they add up to."""

    def __init__(self, database: Database, streams: list[str], decode: Decode, clock: Callable[[], float]) -> None:
        """`decode` makes an entry's bytes a batch and counts its malformed records; it raises ValueError."""
        self._database = database
        self._streams = streams
        self._decode = decode
        self._clock = clock
        self._buffer = RollupBuffer()
        self._saved: dict[str, Position] = {}
        self._positions: dict[str, Position] = {}
        self._swept_at_s = 0.0
        self.is_in_step = False
        self.saves: Counter[str] = Counter()
        self.saved_at_s: float | None = None

    def take(self, entries: Sequence[Entry], received: Received) -> None:
        """Count entries in order, unless they were counted or this writer is out of step.

        `received` has the batches of requests among them.
        """
        if self.is_in_step:
            self._take(entries, received)

    async def run(self, redis: Redis, read_to: Mapping[str, str]) -> None:
        """Keep step with a consumer for ever. `read_to` says, at any moment, up to which entry it has read."""
        is_failing = False
        while True:
            try:
                await self.keep_step(redis, read_to)
                if is_failing:
                    logger.info("rollups are written again")
                is_failing = False
            except (RedisError, OSError, DatabaseUnavailableError, SQLAlchemyError) as error:
                self.is_in_step = False
                if not is_failing:
                    logger.warning("rollups cannot be written, trying again: %s", type(error).__name__)
                is_failing = True
            await asyncio.sleep(SAVE_EVERY_S)

    async def keep_step(self, redis: Redis, read_to: Mapping[str, str]) -> None:
        """Save what has come, or find the way back into step.

        Raises:
            RedisError, OSError, DatabaseUnavailableError, SQLAlchemyError: try again; nothing is lost.
        """
        if not self.is_in_step:
            await self._load(redis)
            await self._catch_up(redis, read_to)
        await self.save()

    async def save(self) -> bool:
        """Write what has been counted since the last save.

        Returns:
            False if another consumer has written meanwhile: this one is out of step then.

        Raises:
            DatabaseUnavailableError, SQLAlchemyError: it may or may not be written; this writer is out of step.
        """
        buffer, self._buffer = self._buffer, replace(self._buffer, rollups=Rollups(), left_out=Counter())
        now_s = self._clock()
        sweep = now_s - self._swept_at_s >= SWEEP_EVERY_S
        samples = buffer.samples.drain()
        work = _Save(dict(self._saved), dict(self._positions), buffer, _source_facts(buffer), samples, now_s, sweep)
        try:
            is_saved = await asyncio.to_thread(self._write, work)
        except BaseException:
            self.is_in_step = False
            self.saves["failed"] += 1
            raise
        if not is_saved:
            logger.info("another consumer writes the rollups too: reading again from where it got to")
            self.is_in_step = False
            self.saves["overtaken"] += 1
            return False
        self.saves["written"] += 1
        self.saved_at_s = now_s
        self._saved = dict(work.after)
        self._swept_at_s = now_s if sweep else self._swept_at_s
        return True

    def _write(self, work: _Save) -> bool:
        at = datetime.fromtimestamp(work.now_s, UTC)
        with self._database.unit_of_work(lambda _: None) as unit:
            if not advance_positions(unit.session, work.before, work.after, at):
                unit.session.rollback()
                return False
            add_rollups(unit.session, work.buffer.rollups, work.now_s)
            save_sources(unit.session, work.sources)
            add_counts(unit.session, +work.buffer.left_out)
            add_samples(unit.session, work.samples)
            if work.sweep:
                delete_old_rollups(unit.session, work.now_s)
                delete_old_samples(unit.session, work.now_s)
        return True

    async def _load(self, redis: Redis) -> None:
        progress = await asyncio.to_thread(self._load_progress)
        self._buffer = _restored(progress)
        self._saved = {stream: progress.positions[stream] for stream in self._streams if stream in progress.positions}
        self._positions = {}
        for stream in self._streams:
            first, added = await _entries_gone_and_added(redis, stream)
            known = self._saved.get(stream)
            if known is None or added < known.entries:
                # Never read, or the stream began anew: what it holds now is all there is.
                self._positions[stream] = Position(FROM_START if known is None else known.last_id, first)
                continue
            gone = max(first - known.entries, 0)
            self._buffer.left_out["trimmed"] += gone
            self._positions[stream] = Position(known.last_id, known.entries + gone)

    def _load_progress(self) -> Progress:
        with self._database.reading() as session:
            return load_progress(session)

    async def _catch_up(self, redis: Redis, read_to: Mapping[str, str]) -> None:
        """Count all that the consumer has read and SQL does not hold; from then on `take` is called in order."""
        while True:
            behind = [stream for stream in self._streams if self._is_behind(stream, read_to)]
            if not behind:
                self.is_in_step = True
                return
            for stream in behind:
                await self._read_page(redis, stream, read_to[stream])
            if self._buffer.size > MAX_CELLS and not await self.save():
                return

    def _is_behind(self, stream: str, read_to: Mapping[str, str]) -> bool:
        return stream in read_to and _order(self._positions[stream].last_id) < _order(read_to[stream])

    async def _read_page(self, redis: Redis, stream: str, until: str) -> None:
        after = f"({self._positions[stream].last_id}"
        entries: Any = await redis.xrange(stream, min=after, max=until, count=PAGE_ENTRIES)
        read = [read_entry(self._decode, stream, entry_id.decode(), fields) for entry_id, fields in entries]
        self._take(read, received_of(read, self._clock()))
        if len(entries) < PAGE_ENTRIES:
            self._positions[stream] = replace(self._positions[stream], last_id=until)

    def _take(self, entries: Sequence[Entry], received: Received) -> None:
        is_wanted = []
        for entry in entries:
            is_new = self._advance(entry)
            if isinstance(entry.batch, SampleBatch):
                if is_new:
                    self._buffer.take_samples(entry.batch, received.now_s)
            elif entry.batch is not None:
                is_wanted.append(is_new)
        self._buffer.take_received(received, is_wanted)

    def _advance(self, entry: Entry) -> bool:
        """Go on to an entry; False if it was counted before."""
        position = self._positions[entry.stream]
        if _order(entry.entry_id) <= _order(position.last_id):
            return False
        self._positions[entry.stream] = Position(entry.entry_id, position.entries + 1)
        self._buffer.left_out["malformed"] += entry.malformed
        return True


def read_entry(decode: Decode, stream: str, entry_id: str, fields: Mapping[bytes, bytes]) -> Entry:
    """An entry of a stream."""
    try:
        return Entry(stream, entry_id, *decode(stream, fields[BATCH_FIELD.encode()]))
    except (ValueError, KeyError):
        return Entry(stream, entry_id, None, 1)


def received_of(entries: Iterable[Entry], now_s: float) -> Received:
    """The batches of requests among some entries."""
    batches = [entry.batch for entry in entries if entry.batch is not None and not isinstance(entry.batch, SampleBatch)]
    return Received(batches, now_s)


def _order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)


async def _entries_gone_and_added(redis: Redis, stream: str) -> tuple[int, int]:
    """How many entries a stream has lost at its beginning, and how many it was ever given."""
    try:
        info: Any = await redis.xinfo_stream(stream)
    except ResponseError:
        return 0, 0  # nobody has sent anything yet
    added = int(info["entries-added"])
    return added - int(info["length"]), added


def _restored(progress: Progress) -> RollupBuffer:
    buffer = RollupBuffer()
    for facts in progress.sources:
        if facts.kind == LINK:
            buffer.links[facts.name] = link_from_document(facts.sent_at_s, facts.state)
        elif facts.kind in {"gateway", "observer"}:
            state = SourceState(facts.site, facts.sent_at_s, BatchKeys.from_document(facts.state))
            buffer.sources[facts.kind, facts.name] = state  # type: ignore[index] # the line above says which
    return buffer


def _source_facts(buffer: RollupBuffer) -> list[SourceFacts]:
    senders = [
        SourceFacts(kind, name, state.site, state.sent_at_s, source_document(state))
        for (kind, name), state in buffer.sources.items()
    ]
    links = [SourceFacts(LINK, name, "", state.at_s, link_document(state)) for name, state in buffer.links.items()]
    return [*senders, *links]
