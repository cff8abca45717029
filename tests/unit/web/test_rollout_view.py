import pytest

from control.domain.rollout import Phase
from webapp.rollout_view import rollout_steps


@pytest.mark.parametrize(
    ("phase", "paused_from", "states"),
    [
        (Phase.DRAFT, None, ["now", "next", "next", "next"]),
        (Phase.BAKING, None, ["done", "done", "now", "next"]),
        (Phase.PAUSED, Phase.CANARY, ["done", "now", "next", "next"]),
        (Phase.PROMOTING, None, ["done", "done", "done", "now"]),
        (Phase.DONE, None, ["done"] * 4),
        (Phase.ABORTED, None, ["done", "done", "done", "failed"]),
    ],
)
def test_steps_stand_where_the_roll_out_is(phase, paused_from, states):
    assert [step.state for step in rollout_steps(phase, paused_from)] == states
