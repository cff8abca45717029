"""The course of operations, over every interleaving of claims, reports, timeouts and cancellations."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from control.domain.operation_plans import plan_drain, plan_moves, plan_restart, plan_switch, plan_undrain
from control.domain.operations import (
    Kind,
    OperationState,
    Report,
    Stage,
    StepState,
    Verdict,
    can_claim,
    cancel,
    claim,
    expire,
    progress_ratio,
    remaining_s,
    settle,
    start,
)
from control.domain.topology import Node, NodeState, Role

LEASE_S = 15.0
NODES = [Node(f"n{i}", "ams", Role.PREFILL, f"http://127.0.0.1:{i}", "emulated", "m") for i in range(3)]
PLANS = {
    Kind.DRAIN: lambda: plan_drain(NODES[0]),
    Kind.UNDRAIN: lambda: plan_undrain(NODES[0]),
    Kind.SWITCH_ROLE: lambda: plan_switch(NODES[0], Role.RELAY),
    Kind.RESTART: lambda: plan_restart(NODES[0]),
    Kind.REBALANCE: lambda: plan_moves([(NODES[0], Role.RELAY), (NODES[1], Role.MAIN)]),
}


class Course(RuleBasedStateMachine):
    """Drives one operation against a fleet that does what done steps say; tokens of all claims stay in play."""

    @initialize(kind=st.sampled_from(sorted(PLANS)))
    def begin(self, kind):
        self.operation = start(kind, PLANS[kind]())
        self.now_s, self.fence = 1000.0, 0
        self.issued = []
        self.fleet = {node.name: (node.role, node.state) for node in NODES}
        self.before = dict(self.fleet)

    def apply_effect(self, position):
        """What the step that was just done did to the fleet."""
        step = self.operation.steps[position]
        role, state = self.fleet.get(step.plan.subject, (None, None))
        match step.plan.stage:
            case Stage.HOLD:
                self.fleet[step.plan.subject] = (role, NodeState.DRAINING)
            case Stage.SWITCH:
                self.fleet[step.plan.subject] = (Role(step.plan.arguments["role"]), state)
            case Stage.ADMIT:
                self.fleet[step.plan.subject] = (role, NodeState.READY)
            case Stage.RESTORE:
                before = step.plan.arguments
                self.fleet[step.plan.subject] = (Role(before["role"]), NodeState(before["state"]))

    @rule(seconds=st.sampled_from([0.1, 5.0, 20.0, 400.0]))
    def wait(self, seconds):
        self.now_s += seconds

    @precondition(lambda self: can_claim(self.operation, self.now_s))
    @rule()
    def claim_step(self):
        self.fence += 1
        token = f"t{self.fence}"
        self.issued.append((self.operation.position, token))
        self.operation = claim(self.operation, self.now_s, token=token, fence=self.fence, lease_s=LEASE_S)

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), verdict=st.sampled_from(Verdict), lease=st.sampled_from([None, LEASE_S]))
    def report(self, data, verdict, lease):
        position, token = data.draw(st.sampled_from(self.issued))
        step = self.operation.steps[position]
        role, state = self.fleet.get(step.plan.subject, (Role.PREFILL, NodeState.READY))
        progress = {"role": role.value, "state": state.value} if step.plan.stage is Stage.HOLD else {}
        settled = settle(
            self.operation, position, token, Report(verdict, progress, "it failed"), self.now_s, lease_s=lease
        )
        assert (settled is not None) == (step.state.is_active and step.token == token)
        if settled is None:
            return
        self.operation = settled
        if verdict is Verdict.DONE:
            self.apply_effect(position)

    @rule()
    def time_out(self):
        before = self.operation
        self.operation = expire(before, self.now_s, "nobody answered")
        if self.operation is not before:
            failed = next(
                s for s in self.operation.steps if s.state is StepState.FAILED and s.finished_at_s == self.now_s
            )
            assert "took longer than" in failed.error
            assert failed.plan.stage in self.operation.error

    @rule()
    def stop(self):
        self.operation = cancel(self.operation, self.now_s)

    @invariant()
    def only_the_current_step_is_worked_on(self):
        active = [i for i, step in enumerate(self.operation.steps) if step.state.is_active]
        assert active in ([], [self.operation.position])
        holders = [step for step in self.operation.steps if step.token is not None]
        assert all(step.state.is_active for step in holders)

    @invariant()
    def it_is_open_exactly_while_a_step_is_not_settled(self):
        assert self.operation.state.is_open == (self.operation.current is not None)
        assert (remaining_s(self.operation, self.now_s, {}) is None) != self.operation.state.is_open
        assert 0 <= progress_ratio(self.operation) <= 1

    @invariant()
    def it_ends_done_only_if_all_was_done(self):
        if self.operation.state is OperationState.DONE:
            assert all(step.state is StepState.DONE for step in self.operation.steps)
        if self.operation.state is OperationState.FAILED:
            assert self.operation.error

    @invariant()
    def an_ended_operation_leaves_a_legal_fleet(self):
        if self.operation.state.is_open:
            return
        undo_failed = any(s.plan.undoes and s.state is StepState.FAILED for s in self.operation.steps)
        if undo_failed:
            return  # said in the error; in the real engine control restores by itself
        for node, (role, state) in self.fleet.items():
            if self.operation.kind is Kind.DRAIN and self.operation.state is not OperationState.CANCELLED:
                assert state in {NodeState.DRAINING, NodeState.READY}
                continue
            assert state is NodeState.READY
            if not self.was_admitted(node):
                assert role is self.before[node][0]

    def was_admitted(self, node):
        return any(
            step.plan.stage is Stage.ADMIT and step.plan.subject == node and step.state is StepState.DONE
            for step in self.operation.steps
        )


TestCourse = Course.TestCase
TestCourse.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def run(operation, verdicts, now_s=0.0):
    """Claim and settle step after step with these verdicts."""
    for fence, verdict in enumerate(verdicts, start=1 + max(step.fence for step in operation.steps)):
        operation = claim(operation, now_s, token=str(fence), fence=fence, lease_s=LEASE_S)
        progress = {}
        if operation.current.plan.stage is Stage.HOLD:
            progress = {"role": "prefill", "state": "ready"}
        operation = settle(operation, operation.position, str(fence), Report(verdict, progress, "no"), now_s)
    return operation


def test_a_switch_of_roles_drains_switches_warms_and_admits():
    operation = run(start(Kind.SWITCH_ROLE, PLANS[Kind.SWITCH_ROLE]()), [Verdict.DONE] * 8)
    assert [step.plan.stage for step in operation.steps] == [
        Stage.HOLD,
        Stage.CONVERGE,
        Stage.EMPTY,
        Stage.SWITCH,
        Stage.ASSIGN,
        Stage.WARM,
        Stage.ADMIT,
        Stage.CONVERGE,
    ]
    assert operation.state is OperationState.DONE


def test_a_switch_that_fails_to_warm_gives_the_node_back_as_it_was():
    operation = run(start(Kind.SWITCH_ROLE, PLANS[Kind.SWITCH_ROLE]()), [Verdict.DONE] * 5 + [Verdict.FAILED])
    assert operation.state is OperationState.UNDOING
    restore, assign = operation.steps[-2:]
    assert (restore.plan.stage, restore.plan.arguments) == (Stage.RESTORE, {"role": "prefill", "state": "ready"})
    assert (assign.plan.stage, assign.plan.arguments["role"]) == (Stage.ASSIGN, "prefill")
    operation = run(operation, [Verdict.DONE, Verdict.DONE])
    assert operation.state is OperationState.FAILED
    assert operation.error == "warm of n0: no"
    states = {(step.plan.stage, step.plan.undoes): step.state for step in operation.steps}
    assert states[Stage.HOLD, False] is states[Stage.SWITCH, False] is states[Stage.ASSIGN, False] is StepState.UNDONE


def test_a_rebalance_that_fails_keeps_the_nodes_that_were_switched_before():
    operation = run(start(Kind.REBALANCE, PLANS[Kind.REBALANCE]()), [Verdict.DONE] * 10 + [Verdict.FAILED])
    undoing = [step for step in operation.steps if step.plan.undoes]
    assert [(step.plan.stage, step.plan.subject) for step in undoing] == [(Stage.RESTORE, "n1")]


def test_a_drain_that_fails_leaves_the_node_drained_and_one_that_is_cancelled_gives_it_back():
    held = run(start(Kind.DRAIN, PLANS[Kind.DRAIN]()), [Verdict.DONE])
    failed = run(held, [Verdict.FAILED])
    assert (failed.state, [s for s in failed.steps if s.plan.undoes]) == (OperationState.FAILED, [])
    cancelled = cancel(held, 1.0)
    assert (cancelled.state, cancelled.current.plan.stage) == (OperationState.UNDOING, Stage.RESTORE)
    assert run(cancelled, [Verdict.DONE]).state is OperationState.CANCELLED


def test_a_report_under_an_old_token_changes_nothing():
    operation = start(Kind.UNDRAIN, PLANS[Kind.UNDRAIN]())
    first = claim(operation, 0.0, token="a", fence=1, lease_s=LEASE_S)
    second = claim(first, LEASE_S, token="b", fence=2, lease_s=LEASE_S)
    assert second.current.attempt == 2
    assert settle(second, 0, "a", Report(Verdict.DONE), 16.0) is None
    assert settle(second, 0, "b", Report(Verdict.DONE), 16.0) is not None
    assert settle(second, 7, "b", Report(Verdict.DONE), 16.0) is None


def test_a_step_that_somebody_holds_cannot_be_claimed_and_a_fence_never_falls():
    operation = claim(start(Kind.UNDRAIN, PLANS[Kind.UNDRAIN]()), 0.0, token="a", fence=5, lease_s=LEASE_S)
    with pytest.raises(ValueError, match="no step can be claimed"):
        claim(operation, 1.0, token="b", fence=6, lease_s=LEASE_S)
    with pytest.raises(ValueError, match="only rises"):
        claim(operation, LEASE_S, token="b", fence=5, lease_s=LEASE_S)


def test_a_timeout_names_the_stage_the_node_the_time_and_what_is_known():
    operation = run(start(Kind.DRAIN, PLANS[Kind.DRAIN]()), [Verdict.DONE, Verdict.DONE])
    operation = claim(operation, 10.0, token="x", fence=99, lease_s=LEASE_S)
    assert expire(operation, 309.0, "2 requests") is operation
    expired = expire(operation, 310.0, "2 requests")
    assert expired.error == "empty of n0 took longer than 300 s: 2 requests"


def test_what_is_left_shrinks_with_the_steps_that_are_done():
    operation = start(Kind.UNDRAIN, PLANS[Kind.UNDRAIN]())
    typical = {Stage.ADMIT: 1.0, Stage.CONVERGE: 4.0}
    assert remaining_s(operation, 0.0, typical) == 5.0
    half = run(operation, [Verdict.DONE])
    assert (remaining_s(half, 0.0, typical), progress_ratio(half)) == (4.0, 0.5)
    assert remaining_s(replace(half, state=OperationState.DONE), 0.0, typical) is None
