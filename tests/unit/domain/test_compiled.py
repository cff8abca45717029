"""The rules that the twin shares with the gateway, as they stand for whoever compiles them."""

from control.domain import handoff, performance, prefill, routing
from control.domain.compiled import COMPILED_RULES


def test_every_rule_that_decides_on_a_live_request_is_there_for_the_twin() -> None:
    shared = {
        routing.choose_pipeline,
        routing.node_score,
        routing.relay_at_ceiling,
        handoff.choose_handoff_mode,
        handoff.next_handoff_step,
        prefill.next_chunk_end,
        performance.decode_step_s,
        performance.flow_rate_bytes_per_s,
        performance.predict_transfer_s,
        performance.expected_left_bytes,
    }
    assert shared <= set(COMPILED_RULES)
