"""The course of a roll-out: every step it may take, and those it must never take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from control.domain.guard_rules import Decision, Judgement
from control.domain.rollout import (
    MAX_LOOK_GAP_S,
    Phase,
    Rollout,
    RolloutError,
    Sight,
    abort,
    advance,
    pause,
    progress_ratio,
    promote,
    resume,
)

GOOD = Judgement(Decision.FORWARD, (), ())
MISSING = Judgement(Decision.HOLD, ("the canary has 3 requests of the 50 that a verdict needs",), ())
SUSPECT = Judgement(Decision.HOLD, ("ttft_p99 is 5 s",), (), is_suspect=True)
BAD = Judgement(Decision.ABORT, ("error_rate is 0.5",), ())
NEW = Rollout(bake_s=20.0, suspect_s=30.0)


def sight(now_s, judgement, behind=(), lacks=()):
    return Sight(now_s, now_s - 2.0, tuple(behind), judgement, tuple(lacks))


def run(rollout, *looks, start_s=1000.0, every_s=5.0):
    """Look so many times, five seconds apart; each look is a judgement, or one with who is behind."""
    for position, look in enumerate(looks):
        judgement, *behind = look if isinstance(look, tuple) else (look,)
        rollout = advance(rollout, sight(start_s + position * every_s, judgement, behind))
    return rollout


BAKING = run(NEW, GOOD, GOOD)


def test_a_good_revision_goes_from_draft_to_done():
    phases, rollout = [], NEW
    for position in range(9):
        rollout = advance(rollout, sight(1000.0 + 5 * position, GOOD))
        phases.append(rollout.phase)
    assert phases == [Phase.CANARY, *[Phase.BAKING] * 4, Phase.PROMOTING, Phase.DONE, Phase.DONE, Phase.DONE]
    assert (progress_ratio(rollout), rollout.ending) == (1.0, "every signal was within its bounds")


def test_a_draft_waits_for_something_to_compare_with_and_for_every_gateway():
    lacking = advance(NEW, sight(1000.0, MISSING, ["gateway gw has not been heard"], ["5 requests of 50"]))
    assert (lacking.phase, lacking.waiting_for) == (Phase.DRAFT, ("5 requests of 50", "gateway gw has not been heard"))
    assert run(lacking, GOOD).phase is Phase.CANARY


def test_a_canary_waits_until_every_gateway_has_it_and_the_guard_has_seen_enough():
    canary = run(NEW, GOOD)
    assert run(canary, (GOOD, "gateway gw runs r1")).phase is Phase.CANARY
    assert run(canary, MISSING).waiting_for == MISSING.reasons
    assert run(canary, GOOD).phase is Phase.BAKING


def test_time_that_nobody_watched_or_that_was_on_hold_is_no_baking():
    assert BAKING.baked_s == 0.0
    late = run(BAKING, GOOD, start_s=5000.0)
    assert late.baked_s == MAX_LOOK_GAP_S
    held = run(BAKING, MISSING, MISSING, (GOOD, "gateway gw has not been heard"), start_s=1010.0)
    assert (held.phase, held.baked_s) == (Phase.BAKING, 0.0)
    assert run(held, GOOD, start_s=1025.0).baked_s == 0.0
    assert run(held, GOOD, GOOD, start_s=1025.0).baked_s == 5.0


def test_time_of_which_no_data_tell_is_no_baking():
    rollout = BAKING
    for now_s in (1010.0, 1015.0, 1020.0):
        rollout = advance(rollout, Sight(now_s, 1006.0, (), GOOD))
    assert rollout.baked_s == 1006.0 - 1003.0
    assert advance(rollout, Sight(1025.0, None, (), GOOD)).baked_s == rollout.baked_s


@pytest.mark.parametrize("phase", ["canary", "baking", "paused"])
def test_harm_aborts_whatever_else_is_missing_and_wherever_it_is(phase):
    rollout = {"canary": run(NEW, GOOD), "baking": BAKING, "paused": pause(BAKING)}[phase]
    back = run(rollout, (BAD, "gateway gw has not been heard"), start_s=1020.0)
    assert (back.phase, back.ending, back.has_canary) == (Phase.ABORTING, "error_rate is 0.5", False)
    assert run(back, (GOOD, "gateway gw runs r1 with canary r2"), start_s=1025.0).phase is Phase.ABORTING
    assert run(back, MISSING, start_s=1025.0).phase is Phase.ABORTED


def test_what_stays_suspect_holds_and_then_aborts():
    held = run(BAKING, *[SUSPECT] * 6, start_s=1010.0)
    assert (held.phase, held.suspect_since_s) == (Phase.BAKING, 1010.0)
    assert run(held, SUSPECT, start_s=1040.0).phase is Phase.ABORTING
    assert run(held, SUSPECT, start_s=1040.0).ending.startswith("suspect for 30 s: ttft_p99")


def test_suspicion_that_was_lifted_begins_anew():
    held = run(BAKING, SUSPECT, GOOD, SUSPECT, start_s=1010.0, every_s=20.0)
    assert (held.phase, held.suspect_since_s) == (Phase.BAKING, 1050.0)


def test_a_pause_keeps_the_canary_and_goes_on_where_it_was():
    paused = pause(BAKING)
    assert (paused.phase, paused.has_canary) == (Phase.PAUSED, True)
    still = run(paused, *[GOOD] * 20, start_s=1010.0)
    assert (still.phase, still.baked_s) == (Phase.PAUSED, 0.0)
    resumed = resume(still)
    assert (resumed.phase, run(resumed, GOOD, start_s=9000.0).baked_s) == (Phase.BAKING, 0.0)
    draft = pause(NEW)
    assert not draft.has_canary
    assert (run(draft, GOOD).phase, resume(draft).phase) == (Phase.PAUSED, Phase.DRAFT)


def test_promoting_by_hand_needs_the_guards_word_or_force():
    with pytest.raises(RolloutError, match="3 requests of the 50"):
        promote(BAKING, MISSING, "why not")
    assert promote(BAKING, GOOD, "enough").phase is Phase.PROMOTING
    forced = promote(pause(BAKING), MISSING, "we know why", force=True)
    assert (forced.phase, forced.ending, forced.paused_from) == (Phase.PROMOTING, "we know why", None)


def test_aborting_by_hand_takes_back_also_what_goes_to_all_already():
    assert abort(promote(BAKING, GOOD, "enough"), "no").phase is Phase.ABORTING
    assert abort(NEW, "no").phase is Phase.ABORTED
    assert abort(pause(NEW), "no").phase is Phase.ABORTED


@pytest.mark.parametrize(
    "change",
    [pause, resume, lambda rollout: abort(rollout, "x"), lambda rollout: promote(rollout, GOOD, "x", force=True)],
)
def test_what_is_over_stays_as_it_is(change):
    done = run(promote(BAKING, GOOD, "enough"), GOOD)
    assert done.phase is Phase.DONE
    with pytest.raises(RolloutError):
        change(done)
    assert run(done, BAD, start_s=1020.0).phase is Phase.DONE


@given(st.sampled_from([GOOD, MISSING, SUSPECT, BAD]), st.lists(st.just("gw is behind"), max_size=1))
def test_the_same_look_twice_changes_nothing_more(judgement, behind):
    look = sight(1010.0, judgement, behind)
    once = advance(BAKING, look)
    if once.phase is Phase.BAKING:
        assert advance(once, look) == once


class Course(RuleBasedStateMachine):
    """Any looks and any hands, in any order."""

    def __init__(self):
        super().__init__()
        self.rollout = NEW
        self.now_s = 0.0
        self.good_s = 0.0
        self.was_forced = False

    @rule(
        judgement=st.sampled_from([GOOD, GOOD, MISSING, SUSPECT, BAD]),
        seconds=st.floats(0, 40),
        behind=st.booleans(),
        lacks=st.booleans(),
    )
    def look(self, judgement, seconds, behind, lacks):
        self.now_s += seconds
        look = sight(self.now_s, judgement, ["gw"] if behind else (), ["few"] if lacks else ())
        after = advance(self.rollout, look)
        before, self.rollout = self.rollout, after
        if after.phase is not before.phase and after.phase in {Phase.BAKING, Phase.PROMOTING}:
            assert judgement is GOOD
            assert not behind
        if after.phase in {Phase.DONE, Phase.ABORTED} and before.phase.is_open:
            assert not behind
        if judgement is GOOD and not behind and before.phase is Phase.BAKING:
            self.good_s += seconds
        if judgement is BAD and before.has_canary:
            assert after.phase is Phase.ABORTING

    @rule(hand=st.sampled_from(["pause", "resume", "promote", "force", "abort"]))
    def act(self, hand):
        changes = {
            "pause": pause,
            "resume": resume,
            "promote": lambda rollout: promote(rollout, GOOD, "asked"),
            "force": lambda rollout: promote(rollout, MISSING, "asked", force=True),
            "abort": lambda rollout: abort(rollout, "asked"),
        }
        was = self.rollout
        try:
            self.rollout = changes[hand](self.rollout)
        except RolloutError:
            assert self.rollout is was
        else:
            assert was.phase.is_open
            self.was_forced |= hand in {"promote", "force"}

    @invariant()
    def only_what_has_baked_or_was_promoted_by_hand_goes_to_all(self):
        if self.rollout.phase in {Phase.PROMOTING, Phase.DONE} and not self.was_forced:
            assert self.good_s >= self.rollout.bake_s

    @invariant()
    def a_canary_runs_only_between_its_beginning_and_its_end(self):
        if self.rollout.phase in {Phase.DRAFT, Phase.PROMOTING, Phase.ABORTING, Phase.DONE, Phase.ABORTED}:
            assert not self.rollout.has_canary


TestCourse = Course.TestCase
