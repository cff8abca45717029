"""What observers last saw of every node and of the transfers on links, as the newest live snapshot tells it."""

import logging
import time
from collections.abc import Callable

import msgspec
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from control.domain.staleness import NOTHING_SEEN, Sighting, Sightings
from control.domain.transfers import SeenTransfer, SeenTransfers
from control.telemetry.records import LIVE_SNAPSHOT_KEY

TIMEOUT_S = 1.0

logger = logging.getLogger(__name__)


class _Seen(msgspec.Struct, frozen=True):
    name: str
    state: str
    age_s: float


class _Snapshot(msgspec.Struct, frozen=True):
    now_s: float
    nodes: tuple[_Seen, ...] = ()
    links: tuple[_Seen, ...] = ()
    transfers: dict[str, tuple[SeenTransfer, ...]] = {}


_decoder = msgspec.json.Decoder(_Snapshot)


def read_snapshot(raw: bytes | None, now_s: float) -> Sightings:
    """Sightings out of a snapshot as it is at a time, Unix seconds: an old snapshot makes all of them old."""
    if raw is None:
        return NOTHING_SEEN
    snapshot = _decoder.decode(raw)
    since_s = max(0.0, now_s - snapshot.now_s)
    return {node.name: Sighting(node.state, node.age_s + since_s) for node in snapshot.nodes}


def read_transfers(raw: bytes | None, link: str, now_s: float) -> SeenTransfers | None:
    """What a snapshot says is under way on a link at a time, Unix seconds; None where it does not know the link."""
    if raw is None:
        return None
    snapshot = _decoder.decode(raw)
    known = next((one for one in snapshot.links if one.name == link), None)
    if known is None:
        return None
    age_s = known.age_s + max(0.0, now_s - snapshot.now_s)
    return SeenTransfers(age_s, known.state == "up", snapshot.transfers.get(link, ()))


def sightings_reader(redis_url: str) -> Callable[[], Sightings]:
    """A function that fetches the newest sightings; none where Redis does not answer."""
    fetch = _snapshot_fetcher(redis_url)

    def fetch_sightings() -> Sightings:
        try:
            return read_snapshot(fetch(), time.time())
        except (RedisError, OSError, msgspec.DecodeError) as error:
            logger.warning("no node can be judged: %s", error)
            return NOTHING_SEEN

    return fetch_sightings


def transfers_reader(redis_url: str) -> Callable[[str], SeenTransfers | None]:
    """A function that fetches what is under way on a link; None where Redis does not answer."""
    fetch = _snapshot_fetcher(redis_url)

    def fetch_transfers(link: str) -> SeenTransfers | None:
        try:
            return read_transfers(fetch(), link, time.time())
        except (RedisError, OSError, msgspec.DecodeError) as error:
            logger.warning("the transfers of %s are not known: %s", link, error)
            return None

    return fetch_transfers


def _snapshot_fetcher(redis_url: str) -> Callable[[], bytes | None]:
    client = Redis.from_url(
        redis_url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0)
    )

    def fetch() -> bytes | None:
        raw = client.get(LIVE_SNAPSHOT_KEY)
        return raw if isinstance(raw, bytes) else None

    return fetch
