"""What observers last saw of every node, as the newest live snapshot tells it."""

import logging
import time
from collections.abc import Callable

import msgspec
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from control.domain.staleness import NOTHING_SEEN, Sighting, Sightings
from control.telemetry.records import LIVE_SNAPSHOT_KEY

TIMEOUT_S = 1.0

logger = logging.getLogger(__name__)


class _Node(msgspec.Struct, frozen=True):
    name: str
    state: str
    age_s: float


class _Snapshot(msgspec.Struct, frozen=True):
    now_s: float
    nodes: tuple[_Node, ...] = ()


_decoder = msgspec.json.Decoder(_Snapshot)


def read_snapshot(raw: bytes | None, now_s: float) -> Sightings:
    """Sightings out of a snapshot as it is at a time, Unix seconds: an old snapshot makes all of them old."""
    if raw is None:
        return NOTHING_SEEN
    snapshot = _decoder.decode(raw)
    since_s = max(0.0, now_s - snapshot.now_s)
    return {node.name: Sighting(node.state, node.age_s + since_s) for node in snapshot.nodes}


def sightings_reader(redis_url: str) -> Callable[[], Sightings]:
    """A function that fetches the newest sightings; none where Redis does not answer."""
    client = Redis.from_url(
        redis_url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0)
    )

    def fetch_sightings() -> Sightings:
        try:
            raw = client.get(LIVE_SNAPSHOT_KEY)
            return read_snapshot(raw if isinstance(raw, bytes) else None, time.time())
        except (RedisError, OSError, msgspec.DecodeError) as error:
            logger.warning("no node can be judged: %s", error)
            return NOTHING_SEEN

    return fetch_sightings
