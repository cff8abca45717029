"""Block hashes and the prefix index."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from control.domain.prefix import PrefixIndex, PrefixMatch, block_hashes, tail_hash, tail_of

TOKENS = st.lists(st.integers(0, 50_000), max_size=40)


@given(TOKENS, TOKENS)
def test_equal_hashes_mean_equal_prefixes(first: list[int], second: list[int]) -> None:
    for index, (left, right) in enumerate(zip(block_hashes(first, 4), block_hashes(second, 4), strict=False)):
        assert (left == right) == (first[: 4 * index + 4] == second[: 4 * index + 4])


@given(TOKENS)
def test_a_longer_prompt_keeps_the_hashes_of_its_start(tokens: list[int]) -> None:
    assert block_hashes([*tokens, 1, 2, 3, 4], 4)[: len(tokens) // 4] == block_hashes(tokens, 4)


@given(TOKENS)
def test_a_salt_changes_every_hash(tokens: list[int]) -> None:
    plain, salted = block_hashes(tokens, 4), block_hashes(tokens, 4, b"tenant")
    assert len(plain) == len(salted) == len(tokens) // 4
    assert not set(plain) & set(salted)


def test_the_tail_has_a_hash_only_where_there_is_one() -> None:
    assert tail_hash([1, 2, 3, 4], 4) is None
    assert tail_hash([], 4) is None
    assert tail_hash([1, 2, 3, 4, 5], 4) not in (None, tail_hash([1, 2, 3, 4, 6], 4), tail_hash([9, 2, 3, 4, 5], 4))


@given(TOKENS, st.binary(max_size=3))
def test_a_tail_is_what_is_left_behind_the_full_blocks(tokens: list[int], salt: bytes) -> None:
    full = len(tokens) // 4 * 4
    tail = tail_of(block_hashes(tokens, 4, salt), tokens[full:], salt)
    assert (tail.hash if tail else None) == tail_hash(tokens, 4, salt)
    assert (tail.token_count if tail else 0) == len(tokens) % 4


@given(TOKENS, TOKENS, st.integers(0, 40))
def test_a_known_tail_counts_for_prompts_that_go_on_from_it_and_for_no_other(
    tokens: list[int], more: list[int], kept: int
) -> None:
    index, salt = PrefixIndex(100), b"tenant"
    earlier = tokens[:kept]
    hashes = block_hashes(earlier, 4, salt)
    index.add_resident("md", hashes)
    index.add_tail("md", tail_of(hashes, earlier[4 * len(hashes) :], salt))
    prompt = [*tokens, *more]
    match = index.match("md", block_hashes(prompt, 4, salt)).resident_blocks
    following = prompt[4 * match : 4 * match + 4]
    found = index.tail_tokens("md", hashes[:match], following, salt)
    assert found == len(earlier) % 4
    assert index.tail_tokens("another", hashes[:match], following, salt) == 0
    assert index.tail_tokens("md", hashes[:match], [-1, *following], salt) == 0
    if not match:
        assert index.tail_tokens("md", (), following, b"another tenant") == 0


def test_a_tail_is_forgotten_with_the_block_before_it() -> None:
    index = PrefixIndex(2)

    def remember(first: int) -> tuple[list[bytes], list[int]]:
        tokens = [first, 2, 3, 4, 5, 6]
        hashes = block_hashes(tokens, 4)
        index.add_resident("md", hashes)
        index.add_tail("md", tail_of(hashes, tokens[4:]))
        return hashes, [5, 6, 7]

    one, two = remember(1), remember(2)
    assert [index.tail_tokens("md", *known) for known in (one, two)] == [2, 2]
    three = remember(3)
    assert [index.tail_tokens("md", *known) for known in (one, two, three)] == [0, 2, 2]
    index.forget("md", two[0])
    index.drop_node("nobody")
    assert [index.tail_tokens("md", *known) for known in (two, three)] == [0, 2]


HASHES = block_hashes(range(24), 4)


def test_bytes_in_flight_belong_to_the_node_they_travel_to() -> None:
    index = PrefixIndex(100)
    index.add_resident("md", HASHES[:2])
    index.begin_transfer("md", HASHES[:4], "t1")
    assert index.match("md", HASHES) == PrefixMatch(2, 2)
    assert (index.in_flight_blocks("md"), index.in_flight_blocks("another")) == (2, 0)
    assert index.transfers_covering("md", HASHES) == {"t1"}
    index.commit_transfer("t1")
    assert index.match("md", HASHES) == PrefixMatch(4, 0)
    assert index.transfers == 0


def test_a_failed_transfer_leaves_what_another_one_carries() -> None:
    index = PrefixIndex(100)
    index.begin_transfer("md", HASHES[:3], "t1")
    index.begin_transfer("md", HASHES[:5], "t2")
    index.roll_back_transfer("t1")
    assert index.match("md", HASHES) == PrefixMatch(0, 5)
    index.roll_back_transfer("t2")
    assert index.match("md", HASHES) == PrefixMatch(0, 0)


def test_holds_what_is_resident_to_the_last_block() -> None:
    index = PrefixIndex(100)
    assert not index.holds("md", HASHES)
    index.add_resident("md", HASHES[:4])
    index.begin_transfer("md", HASHES[:5], "t1")
    assert [index.holds("md", HASHES[:size]) for size in (0, 4, 5)] == [True, True, False]


def test_the_same_transfer_cannot_begin_twice() -> None:
    index = PrefixIndex(100)
    index.begin_transfer("md", HASHES, "t1")
    with pytest.raises(ValueError, match="t1"):
        index.begin_transfer("md", HASHES, "t1")


def test_the_end_of_a_prefix_leaves_before_its_start() -> None:
    index = PrefixIndex(3)
    index.add_resident("md", HASHES[:5])
    assert index.match("md", HASHES) == PrefixMatch(3, 0)


def test_a_dropped_node_is_forgotten_with_its_transfers() -> None:
    index = PrefixIndex(100)
    index.begin_transfer("md", HASHES, "t1")
    index.drop_node("md")
    index.commit_transfer("t1")
    assert index.match("md", HASHES) == PrefixMatch(0, 0)
    assert index.transfers == 0


class IndexMachine(RuleBasedStateMachine):
    """Against the plainest model: a set of resident blocks and a dict of transfers (capacity never reached)."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(1000)
        self.resident: set[bytes] = set()
        self.flying: dict[str, set[bytes]] = {}
        self.count = 0

    @rule(size=st.integers(0, len(HASHES)))
    def begin(self, size: int) -> None:
        self.count += 1
        self.index.begin_transfer("md", HASHES[:size], str(self.count))
        self.flying[str(self.count)] = set(HASHES[:size]) - self.resident

    @rule(pick=st.integers(0, 5), is_success=st.booleans())
    def end(self, pick: int, is_success: bool) -> None:
        if not self.flying:
            return
        key = sorted(self.flying)[pick % len(self.flying)]
        blocks = self.flying.pop(key)
        if is_success:
            self.index.commit_transfer(key)
            self.resident |= blocks
        else:
            self.index.roll_back_transfer(key)

    @rule(size=st.integers(0, len(HASHES)))
    def compute(self, size: int) -> None:
        self.index.add_resident("md", HASHES[:size])
        self.resident |= set(HASHES[:size])

    @invariant()
    def matches_are_those_of_the_model(self) -> None:
        flying = set().union(*self.flying.values()) - self.resident
        expected = [0, 0]
        for block in HASHES:
            if block not in self.resident | flying:
                break
            expected[block not in self.resident] += 1
        assert self.index.match("md", HASHES) == tuple(expected)


TestIndexAgainstModel = IndexMachine.TestCase
