"""How a request moves from relay decode to main decode: in one shot, or by catching up in batches."""

import math
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

from control.domain.compiled import compiled


class HandoffMode(IntEnum):
    """The two ways to hand over; AUTO lets `choose_handoff_mode` decide."""

    AUTO = 1
    ONE_SHOT = 2
    CATCH_UP = 3

    @cached_property
    def wire(self) -> str:
        """The name in policies, records and pages."""
        return self.name.lower()


class HandoffKnobs(NamedTuple):
    """The part of a policy that handoffs obey."""

    mode: HandoffMode
    one_shot_max_tokens: int
    catch_up_batch_tokens: int


class HandoffStep(IntEnum):
    """What to do next with the eager tokens that MD does not have yet."""

    CUT = 1
    BATCH = 2


MAX_CATCH_UP_BATCHES = 8


@compiled
def choose_handoff_mode(eager_tokens: int, relay_is_at_ceiling: bool, knobs: HandoffKnobs) -> HandoffMode:
    """One shot for few tokens, or to free a crowded relay soonest; catch-up where the pause would be felt."""
    if knobs.mode != HandoffMode.AUTO:
        return knobs.mode
    if relay_is_at_ceiling or eager_tokens <= knobs.one_shot_max_tokens:
        return HandoffMode.ONE_SHOT
    return HandoffMode.CATCH_UP


@compiled
def next_handoff_step(
    mode: HandoffMode, pending_tokens: int, last_pending_tokens: int, batches: int, knobs: HandoffKnobs
) -> HandoffStep:
    """Whether to cut now or to send another batch while the relay goes on.

    `pending_tokens` were made since the last batch, `last_pending_tokens` went with it (0 before the first). The
    sequence m_{k+1} = S(m_k)/τ_R shrinks only if x1 < τ_R, so it ends when it stops shrinking, or after eight.
    """
    if mode != HandoffMode.CATCH_UP or pending_tokens <= knobs.catch_up_batch_tokens:
        return HandoffStep.CUT
    if batches >= MAX_CATCH_UP_BATCHES or (batches and pending_tokens >= last_pending_tokens):
        return HandoffStep.CUT
    return HandoffStep.BATCH


def recompute_limit_tokens(
    expected_tokens: int, compute_s_per_token: float, transfer_s_per_token: float, setup_s: float
) -> int | None:
    """How many tokens MD may compute at an extend before pulling the prompt's KV again is the faster way.

    `expected_tokens` are the eager tokens it lacks anyway; more means that it evicted what it had pulled. None: where
    sending a token's KV takes longer than computing it, or no speed is known, there is no limit.
    """
    saved_s = compute_s_per_token - transfer_s_per_token
    if saved_s <= 0.0:
        return None
    return expected_tokens + math.ceil(setup_s / saved_s)
