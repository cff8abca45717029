"""How long an answer may become, judged beforehand."""

from random import Random

import pytest

from control.domain.output_bound import (
    HISTORY_ANSWERS,
    MIN_ANSWERS,
    BoundSource,
    OutputBound,
    OutputHistory,
    likely_output_tokens,
    output_bound,
)


@pytest.mark.parametrize(
    ("asked", "room", "likely", "expected"),
    [
        (64, 1000, None, OutputBound(64, BoundSource.CLIENT)),
        (64, 1000, 5, OutputBound(64, BoundSource.CLIENT)),
        (64, 30, None, OutputBound(30, BoundSource.CLIENT)),
        (None, 1000, 40, OutputBound(40, BoundSource.HISTORY)),
        (None, 30, 40, OutputBound(30, BoundSource.HISTORY)),
        (None, 1000, None, OutputBound(1000, BoundSource.UNKNOWN)),
    ],
)
def test_the_clients_word_counts_before_history_and_history_before_room(asked, room, likely, expected):
    assert output_bound(asked, room, likely) == expected


def test_a_few_answers_say_nothing():
    assert likely_output_tokens([5] * (MIN_ANSWERS - 1)) is None
    assert likely_output_tokens([5] * MIN_ANSWERS) == 5


def test_nine_of_ten_answers_are_not_longer_than_the_guess():
    answers = [Random(3).randrange(1, 2000) for _ in range(200)]
    guess = likely_output_tokens(answers)
    assert sum(answer <= guess for answer in answers) >= 180
    assert guess in answers


def test_a_tenant_is_judged_by_its_own_recent_answers():
    history = OutputHistory()
    for _ in range(MIN_ANSWERS):
        history.add("terse", 8)
        history.add("chatty", 900)
    assert (history.likely_tokens("terse"), history.likely_tokens("chatty")) == (8, 900)
    assert history.likely_tokens("new") is None
    for _ in range(HISTORY_ANSWERS):
        history.add("terse", 300)
    assert history.likely_tokens("terse") == 300
