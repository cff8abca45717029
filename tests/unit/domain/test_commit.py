"""The commit protocol: every interleaving of relay, main, cuts and failures gives the one true answer."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from control.domain.commit import Commit, EngineOverrunError, Flush, Piece, Side

EOS = 0
# Token → bytes; some tokens are a part of a character, as in a byte-level vocabulary.
VOCABULARY = {
    EOS: b"",
    1: b"a",
    2: b" b",
    3: b"STOP",
    4: b"ST",
    5: b"OP",
    9: b"STO",
    10: b"P",
    6: b"\xf0\x9f",
    7: b"\x8e\x89",
    8: "é".encode(),
}


class Model:
    """A greedy model: the next token depends on the position alone, and it ends with EOS.

    An engine that stops inside a character either sends what it has of it, or leaves it out as stock vLLM does.
    """

    def __init__(self, script: list[int], *, sends_halves: bool) -> None:
        self.script = [*script, EOS]
        self.sends_halves = sends_halves

    def stream(self, start: int, limit: int) -> list[Piece]:
        """Pieces from token `start`, as an engine that was given `start` tokens sends them."""
        pieces, pending = [], b""
        for made, token in enumerate(self.script[start : start + limit], start=1):
            pending += VOCABULARY[token]
            finish = "stop" if token == EOS else "length" if made == limit else None
            is_sent = is_complete(pending) or (finish and self.sends_halves)
            text = pending.decode("utf-8", errors="replace") if is_sent else ""
            pending = b"" if text else pending
            pieces.append(Piece((token,), text, finish))
        return pieces

    def answer(self, max_tokens: int, stop: tuple[str, ...]) -> tuple[list[int], str, str]:
        """The same answer by one engine alone, in the plainest words."""
        ids, text = [], ""
        for piece in self.stream(0, max_tokens):
            ids += piece.token_ids
            text += piece.text
            found = min((at for at in (text.find(word) for word in stop) if at >= 0), default=-1)
            if found >= 0:
                return ids, text[:found], "stop"
        return ids, text, "stop" if ids[-1] == EOS else "length"


def merged(pieces: list[Piece]) -> Piece:
    """The pieces as one chunk of an engine whose server fell behind: the text may end before the ids do."""
    ids = tuple(token for piece in pieces for token in piece.token_ids)
    text = "".join(piece.text for piece in pieces)
    return Piece(ids, text, pieces[-1].finish, is_whole=bool(pieces[-1].text))


def is_complete(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# A whole character of two tokens is one unit, so that scripts are valid text.
UNITS = st.sampled_from([[1], [2], [3], [4], [5], [8], [9], [10], [6, 7]])
SCRIPTS = st.lists(UNITS, max_size=25).map(lambda units: [token for unit in units for token in unit])


class CommitMachine(RuleBasedStateMachine):
    """Turns open at any time, old ones go on sending, any of them may fail."""

    turns = Bundle("turns")

    @initialize(
        script=SCRIPTS,
        max_tokens=st.integers(1, 30),
        stop=st.sampled_from([(), ("STOP",), ("TO", "b S")]),
        sends_halves=st.booleans(),
    )
    def start(self, script: list[int], max_tokens: int, stop: tuple[str, ...], sends_halves: bool) -> None:
        self.model = Model(script, sends_halves=sends_halves)
        self.expected = self.model.answer(max_tokens, stop)
        self.unstopped_ids, _, _ = self.model.answer(max_tokens, ())
        self.commit = Commit(max_tokens, stop)
        self.has_merged = False
        self.ids: list[int] = []
        self.text = ""
        self.finish: str | None = None
        self.owner = None

    @rule(target=turns, side=st.sampled_from(Side), cap=st.integers(1, 30))
    def open_turn(self, side: Side, cap: int):
        turn = self.commit.open(side)
        if turn is None:
            assert self.commit.is_done
            return (None, [])
        assert turn.start == len(self.ids), "a cut is where the client's stream stands"
        limit = min(cap, self.commit.remaining_tokens) if side is Side.RELAY else self.commit.remaining_tokens
        self.owner = (turn, self.model.stream(turn.start, limit))
        return self.owner

    @precondition(lambda self: self.owner is not None)
    @rule(count=st.integers(1, 4))
    def the_owner_sends(self, count: int) -> None:
        self.send(*self.owner, count)

    @precondition(lambda self: self.owner is not None and self.owner[1])
    @rule(count=st.integers(2, 5))
    def the_owner_sends_several_in_one(self, count: int) -> None:
        turn, pieces = self.owner
        piece = merged(pieces[:count])
        del pieces[:count]
        self.has_merged = True
        self.take(self.commit.accept(turn, piece))

    @rule(source=turns, count=st.integers(1, 4))
    def a_late_engine_sends(self, source, count: int) -> None:
        self.send(*source, count)

    def send(self, turn, pieces: list[Piece], count: int) -> None:
        for _ in range(min(count, len(pieces))):
            self.take(self.commit.accept(turn, pieces.pop(0)))

    def take(self, flush: Flush | None) -> None:
        if flush is None:
            return
        assert self.finish is None, "nothing follows the end"
        self.ids += flush.token_ids
        self.text += flush.text
        self.finish = flush.finish

    @invariant()
    def what_the_client_has_is_the_start_of_the_one_true_answer(self) -> None:
        if not hasattr(self, "commit"):
            return
        assert self.ids == self.unstopped_ids[: len(self.ids)]
        assert self.expected[1].startswith(self.text)
        assert 0 <= self.commit.eager_tokens <= self.commit.output_tokens
        if self.finish is not None:
            self.assert_is_expected()

    def teardown(self) -> None:
        """Whatever happened, a main node finishes the answer."""
        if not hasattr(self, "commit"):
            return
        turn = self.commit.open(Side.MAIN)
        if turn is not None:
            for piece in self.model.stream(turn.start, self.commit.remaining_tokens):
                self.take(self.commit.accept(turn, piece))
        assert self.commit.is_done
        self.assert_is_expected()

    def assert_is_expected(self) -> None:
        """A stop string found inside a chunk of several tokens leaves the ids of that chunk."""
        ids, text, finish = self.expected
        assert (self.text, self.finish) == (text, finish)
        assert self.ids[: len(ids)] == ids
        assert len(self.ids) == len(ids) or self.has_merged


CommitMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
TestCommitProtocol = CommitMachine.TestCase


def test_late_relay_tokens_are_dropped_after_the_cut() -> None:
    commit = Commit(10)
    relay = commit.open(Side.RELAY)
    commit.accept(relay, Piece((1,), "a"))
    main = commit.open(Side.MAIN)
    assert main.start == 1
    assert commit.accept(relay, Piece((2,), "b")) is None
    assert commit.accept(main, Piece((3,), "c")) == Flush((3,), "c")
    assert commit.eager_tokens == 1


def test_half_a_character_is_not_part_of_the_cut() -> None:
    commit = Commit(10)
    relay = commit.open(Side.RELAY)
    commit.accept(relay, Piece((1,), "a"))
    assert commit.accept(relay, Piece((6,), "")) == Flush((), "")
    assert commit.open(Side.MAIN).start == 1


def test_a_stop_string_is_found_across_the_cut_and_never_shown() -> None:
    commit = Commit(10, ["STOP"])
    relay = commit.open(Side.RELAY)
    assert commit.accept(relay, Piece((4,), "xST")) == Flush((4,), "x")
    main = commit.open(Side.MAIN)
    assert commit.accept(main, Piece((5,), "OPy")) == Flush((5,), "", "stop")


def test_the_relays_own_cap_does_not_end_the_answer() -> None:
    commit = Commit(10)
    relay = commit.open(Side.RELAY)
    assert commit.accept(relay, Piece((1,), "a", "length")) == Flush((1,), "a")
    assert not commit.is_done
    assert commit.open(Side.MAIN).start == 1


def test_the_end_on_the_relay_before_the_cut_wins() -> None:
    commit = Commit(10)
    relay = commit.open(Side.RELAY)
    assert commit.accept(relay, Piece((1, EOS), "a", "stop")).finish == "stop"
    assert commit.open(Side.MAIN) is None


def test_an_engine_that_makes_too_much_is_an_error() -> None:
    commit = Commit(2)
    turn = commit.open(Side.MAIN)
    with pytest.raises(EngineOverrunError, match="2 tokens"):
        commit.accept(turn, Piece((1, 2, 3), "abc"))


@pytest.mark.parametrize("stop", ["S", "STOP", "STSTOP"])
def test_a_stop_string_that_comes_letter_by_letter_is_held_back(stop: str) -> None:
    commit = Commit(40, [stop])
    turn = commit.open(Side.MAIN)
    flushes = [commit.accept(turn, Piece((number,), letter)) for number, letter in enumerate("a ST" + stop + " b")]
    shown = "".join(flush.text for flush in flushes if flush)
    assert shown == ("a ST" + stop)[: ("a ST" + stop).index(stop)]
    assert commit.finish == "stop"


def test_text_of_an_unfinished_chunk_waits_and_is_made_again_after_a_cut() -> None:
    commit = Commit(10)
    relay = commit.open(Side.RELAY)
    assert commit.accept(relay, Piece((1,), "a")) == Flush((1,), "a")
    assert commit.accept(relay, Piece((2, 6), " b", is_whole=False)) == Flush((), "")
    main = commit.open(Side.MAIN)
    assert main.start == 1
    assert commit.accept(main, Piece((2,), " b")) == Flush((2,), " b")


def test_text_of_an_unfinished_chunk_goes_out_with_the_rest_of_its_character() -> None:
    commit = Commit(10)
    relay = commit.open(Side.RELAY)
    commit.accept(relay, Piece((2, 6), " b", is_whole=False))
    assert commit.accept(relay, Piece((7,), "\N{PARTY POPPER}")) == Flush((2, 6, 7), " b\N{PARTY POPPER}")


def test_a_cap_inside_a_character_moves_no_cut_when_the_engine_leaves_the_half_out() -> None:
    commit = Commit(10)
    relay = commit.open(Side.RELAY)
    commit.accept(relay, Piece((1,), "a"))
    commit.accept(relay, Piece((6,), "", "length"))
    assert commit.open(Side.MAIN).start == 1
