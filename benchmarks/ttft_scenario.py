"""The fixed scenario of the TTFT benchmark: agent sessions whose prefix hits are skewed as an agent trace's are. Pure.

A session is one stream of tokens of which each turn's prompt is a longer beginning. Its answers are not part of the
next prompt, as reasoning is not: at a fortieth of the trace's context sizes, answers that have to outlast a transfer
would alone push every hit below 95 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from control.cli.fleet_plan import FLOW_CAP_BYTES_PER_S, KV_BYTES_PER_TOKEN, ROUND_TRIP_S

# Lower and upper hit rate of each bucket and its share of requests, from a trace of coding-agent sessions (mean 0.93).
BUCKETS = (
    (0.0, 0.90, 0.168),
    (0.90, 0.93, 0.042),
    (0.93, 0.95, 0.055),
    (0.95, 0.97, 0.090),
    (0.97, 0.98, 0.094),
    (0.98, 0.99, 0.223),
    (0.99, 0.998, 0.329),
)
# Within the lowest bucket: one turn in five opens a session, the others bring a large tool result. With these the mean
# over all buckets is the trace's.
OPENING_SHARE = 0.21
LARGE_RESULT_HITS = (0.70, 0.90)
# 23 KB a token take 15 ms on one 12 Mbit/s flow and 7 ms of prefill. Prompts grow from about 400 tokens to about 1,500,
# so that a large result is 100-400 uncached tokens: 2-6 s on the link, 1-3 s of prefill, and answers that outlast the
# link still fit the model's 2,048.
SYSTEM_TOKENS = 64
OPENING_TOKENS = (320, 420)
MIN_PROMPT_TOKENS, MAX_PROMPT_TOKENS = 200, 1500
THINK_S = (0.3, 1.0)
# Three engines share two cores and there is one P: with two sessions at a time, P90 of a hundred requests tells who met
# whom in P's queue (it moved by a fifth between schemes on the same link), not what the link did.
SESSIONS_AT_A_TIME = 1
# An answer outlasts what RLD makes until the cut: at one token in 27 ms during the transfer, and during the catch-up,
# which at 7 ms a token takes a third of that again.
RELAY_TOKEN_S = 0.027
OUTLASTING_RATIO, OUTLASTING_TOKENS = 1.4, 24
SHORT_ANSWER_TOKENS = (24, 64)
_BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: the first `prompt_tokens` of its session, all but `new_tokens` of which were sent before."""

    prompt_tokens: int
    new_tokens: int
    output_tokens: int
    think_s: float

    @property
    def hit_rate(self) -> float:
        """Share of the prompt that an endless cache holds."""
        return 1 - self.new_tokens / self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Session:
    """One session; `index` names its token stream."""

    index: int
    turns: tuple[Turn, ...]


def plan_sessions(seed: int, requests: int) -> list[Session]:
    """Sessions with so many turns in all; the same arguments always give the same ones.

    Raises:
        ValueError: there are fewer requests than sessions at a time.
    """
    if requests < SESSIONS_AT_A_TIME:
        raise ValueError(f"there must be at least {SESSIONS_AT_A_TIME} requests")
    rng = Random(f"{seed}/ttft")
    sessions = max(SESSIONS_AT_A_TIME, round(requests * BUCKETS[0][2] * OPENING_SHARE))
    hits = _hit_rates(rng, requests, sessions)
    rng.shuffle(hits)
    hits = hits[: requests - sessions]
    return [_session(rng, index, hits[index::sessions]) for index in range(sessions)]


def mean_hit_rate(sessions: Sequence[Session]) -> float:
    """Mean over requests."""
    rates = [turn.hit_rate for session in sessions for turn in session.turns]
    return sum(rates) / len(rates)


def bucket_shares(hit_rates: Sequence[float]) -> list[float]:
    """Share of requests in each of the seven buckets."""
    counts = [0] * len(BUCKETS)
    for rate in hit_rates:
        counts[sum(rate >= low for low, _, _ in BUCKETS) - 1] += 1
    return [count / len(hit_rates) for count in counts]


def _hit_rates(rng: Random, requests: int, sessions: int) -> list[float]:
    """Hit rates of all turns but the opening ones, each bucket dealt exactly its share of all requests."""
    counts = _largest_remainder([share for _, _, share in BUCKETS], requests)
    counts[0] = max(0, counts[0] - sessions)
    counts[-1] = max(0, counts[-1] + requests - sessions - sum(counts))
    spans = [LARGE_RESULT_HITS, *((low, high) for low, high, _ in BUCKETS[1:])]
    return [rng.uniform(*span) for span, count in zip(spans, counts, strict=True) for _ in range(count)]


def _largest_remainder(shares: Sequence[float], total: int) -> list[int]:
    exact = [share * total for share in shares]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda index: counts[index] - exact[index])
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts


def _session(rng: Random, index: int, hit_rates: Sequence[float]) -> Session:
    growth = 1.0
    for rate in hit_rates:
        growth /= rate
    opening = max(MIN_PROMPT_TOKENS, min(rng.randint(*OPENING_TOKENS), int(MAX_PROMPT_TOKENS / growth)))
    length = opening
    turns = [_turn(rng, opening, opening - (SYSTEM_TOKENS if index else 0))]
    for rate in hit_rates:
        new = max(1, round(length / rate) - length)
        length += new
        turns.append(_turn(rng, length, new))
    return Session(index, tuple(turns))


def _turn(rng: Random, prompt_tokens: int, new_tokens: int) -> Turn:
    """The answer outlasts the transfer of the new tokens and of the block that the last prompt ended in."""
    sent_tokens = min(prompt_tokens, new_tokens + _BLOCK_TOKENS // 2)
    transfer_s = 3 * ROUND_TRIP_S + sent_tokens * KV_BYTES_PER_TOKEN / FLOW_CAP_BYTES_PER_S
    outlasting = OUTLASTING_TOKENS + round(OUTLASTING_RATIO * transfer_s / RELAY_TOKEN_S)
    output = max(rng.randint(*SHORT_ANSWER_TOKENS), outlasting)
    return Turn(prompt_tokens, new_tokens, output, rng.uniform(*THINK_S))
