"""Where characters end in joined chunks: never claimed where vLLM still holds a byte back, and found in time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_agents.gateway.characters import CharacterEnds, is_text_of
from tests.stock_vllm import VOCABULARY, DecodeStream

END = 256
FRAGMENTS = VOCABULARY.broken_words
# Words, halves that follow each other or not, single bytes of all kinds, and a special token that has no text.
TOKENS = st.one_of(
    st.sampled_from(VOCABULARY.words[:20]),
    st.sampled_from(range(FRAGMENTS[0], FRAGMENTS[-1] + 3)),
    st.sampled_from([65, 66, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0xFF]),
    st.just(END),
)
CHUNKS = st.lists(st.lists(TOKENS, min_size=1, max_size=5), max_size=30)


def decoded(token_ids) -> str:
    """What /detokenize says: special tokens are written out."""
    return VOCABULARY.decode(token_ids).decode(errors="replace")


class Follower:
    """A stream as the gateway follows it, with the truth beside it."""

    def __init__(self, whole_ids: set[int] | None = None) -> None:
        self.stream = DecodeStream()
        self.ends = CharacterEnds(set() if whole_ids is None else whole_ids)
        self.asked = 0

    def take(self, *tokens: int) -> bool:
        text = "".join(self.stream.step(token) for token in tokens)
        verdict = self.ends.follow(tokens, text)
        if verdict is not None:
            return verdict
        for ids, expected in self.ends.questions(tokens, text):
            self.asked += 1
            if is_text_of(decoded(ids), expected):
                self.ends.found()
                return True
        return False


@given(CHUNKS)
def test_an_end_is_claimed_only_where_nothing_is_held_back(chunks):
    follower = Follower()
    for chunk in chunks:
        if follower.take(*chunk):
            assert follower.stream.is_at_end


@given(CHUNKS)
def test_a_whole_word_alone_in_its_chunk_always_ends_on_a_character(chunks):
    follower = Follower()
    for chunk in chunks:
        follower.take(*chunk)
    assert follower.take(VOCABULARY.words[0])


def test_a_chunk_that_ends_inside_a_character_is_found_out():
    first, second = FRAGMENTS[0], FRAGMENTS[0] + 1
    follower = Follower()
    assert not follower.take(VOCABULARY.words[0], first)
    assert follower.take(second, VOCABULARY.words[1])
    assert follower.asked == 2


def test_known_words_need_no_question():
    known: set[int] = set()
    one, two = VOCABULARY.words[:2]
    follower = Follower(known)
    assert follower.take(one)
    assert follower.take(two)
    assert known == {one, two}
    assert follower.take(one, two, one)
    assert follower.asked == 0


def test_the_second_half_of_a_character_is_not_learned_as_whole():
    known: set[int] = set()
    follower = Follower(known)
    assert not follower.take(FRAGMENTS[0])
    assert follower.take(FRAGMENTS[0] + 1)
    assert known == set()


def test_a_special_token_delays_an_end_by_one_chunk():
    one, two = VOCABULARY.words[:2]
    follower = Follower()
    assert not follower.take(one, END)
    assert follower.take(one, two)


@pytest.mark.parametrize(("text", "is_same"), [(" a", True), ("a", True), ("  a", False), ("a ", False), ("", False)])
def test_a_space_in_front_may_be_missing_where_ids_are_decoded(text, is_same):
    assert is_text_of("a", text) is is_same
