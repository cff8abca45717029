"""The model's formulas against published arithmetic, which they must give exactly."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.domain.cost import (
    FleetCost,
    Objective,
    benefit_cost_ratio,
    cost_per_million_tokens,
    cost_per_token_change,
    cost_ratio,
    goodput_rps,
)
from control.domain.inventory import AttentionKind, ChipProfile
from control.domain.kv_size import AttentionShape, kv_bytes, kv_bytes_per_token
from control.domain.performance import (
    PrefillSpeed,
    chunked_prefill_cost_s,
    eager_tokens,
    prefill_s,
    relay_outruns_transfer,
    slow_start_s,
)
from control.domain.roofline import (
    Efficiency,
    ModelFigures,
    decode_coefficients_s,
    decode_step_s,
    kv_capacity_tokens,
    prefill_chunk_s,
)
from control.domain.valley import (
    PrefillCost,
    chunked_revenue_per_s,
    falls_from_zero,
    revenue_per_prefill_s,
    tail_waste_s,
)

CHIP = ChipProfile("a", 1e15, 80 * 10**9, 3e12, 4e11, 2.0)
MODEL = ModelFigures(8e9, 16e9, 131_072.0, 32 * 4096)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        # Llama-2-7B: 32 layers, 32 heads of 128, fp16. Llama-3-70B: 80 layers, 8 KV heads of 128.
        (AttentionShape(AttentionKind.MHA, 32, heads=32, head_width=128), 524_288),
        (AttentionShape(AttentionKind.GQA, 80, heads=8, head_width=128), 327_680),
        # DeepSeek-V3: 61 layers, latent 512, rotary 64, 2 bytes: 70,272 bytes.
        (AttentionShape(AttentionKind.MLA, 61, latent_width=512, rope_width=64), 70_272),
        (AttentionShape(AttentionKind.COMPRESSED, 10, width=1024, ratio=8.0, value_bytes=1.0), 1280),
    ],
)
def test_kv_bytes_per_token_follow_from_the_attention(shape, expected) -> None:
    assert kv_bytes_per_token(shape) == expected


def test_a_window_of_uncompressed_kv_comes_on_top_once() -> None:
    shape = AttentionShape(AttentionKind.COMPRESSED, 2, width=64, ratio=4.0, value_bytes=1.0, window_tokens=10)
    assert kv_bytes(100, shape) == 100 * 32 + 10 * 128
    assert kv_bytes(5, shape) == 5 * 32 + 5 * 128


def test_kv_of_a_hybrid_model_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="give its bytes per token"):
        kv_bytes_per_token(AttentionShape(AttentionKind.HYBRID, 10))


def test_eighty_prompts_of_a_compressed_model_are_23_gb_and_over_180_gbps() -> None:
    total = 80 * 65_536 * 4_390
    assert round(total / 1e9) == 23
    assert round(total * 8 / 1e9) == 184
    assert 100_000 * 50_000 == 5e9


def test_published_costs_and_bcr() -> None:
    baseline = FleetCost(88)
    low, high = (cost_ratio(FleetCost(43, 32, price), baseline) - 1.0 for price in (1.2, 1.3))
    assert round(low, 4) == -0.0750
    assert round(high, 4) == -0.0386
    lines = [cost_ratio(FleetCost(43, 32, price, line), baseline) for price, line in ((1.2, 0.35), (1.3, 0.32))]
    assert [round(ratio - 1.0, 3) for ratio in lines] == [-0.071, -0.035]
    assert round(benefit_cost_ratio(1.278, 0.929), 4) == 1.3757
    assert round(cost_per_token_change(benefit_cost_ratio(1.278, 0.929)), 3) == -0.273


def test_cost_per_million_tokens_and_goodput() -> None:
    assert cost_per_million_tokens(36.0, 1000.0) == 10.0
    requests = [(1.0, 0.01), (20.0, 0.01), (1.0, 0.2), (10.0, 0.05)]
    assert goodput_rps(requests, Objective(10.0, 0.05), 2.0) == 1.0


def test_roofline_has_a_floor_below_the_ridge_and_grows_with_context() -> None:
    efficiency = Efficiency(1.0, 1.0)
    assert prefill_chunk_s(1, 0, MODEL, CHIP, efficiency) == 16e9 / 3e12
    assert prefill_chunk_s(10, 0, MODEL, CHIP, efficiency) == prefill_chunk_s(1, 0, MODEL, CHIP, efficiency)
    long = prefill_chunk_s(8192, 0, MODEL, CHIP, efficiency)
    assert long == (2 * 8e9 * 8192 + 4 * 32 * 4096 * 8192 * 4096) / 1e15
    assert prefill_chunk_s(8192, 50_000, MODEL, CHIP, efficiency) > long


def test_decode_is_linear_in_the_batch_while_memory_binds() -> None:
    tau0, tau1 = decode_coefficients_s(1000.0, MODEL, CHIP, Efficiency(1.0, 1.0))
    for batch in (1, 8, 64):
        assert math.isclose(decode_step_s(batch, 1000.0, MODEL, CHIP, Efficiency(1.0, 1.0)), tau0 + tau1 * batch)
    assert kv_capacity_tokens(MODEL, CHIP, 1.0) == int(64e9 / 131_072)
    assert kv_capacity_tokens(ModelFigures(1e12, 2e12, 1.0), CHIP) == 0


def test_slow_start_and_outlier_rule() -> None:
    assert slow_start_s(14_600.0 * 7, 0.03) == pytest.approx(0.09)
    assert slow_start_s(0.0, 0.03) == 0.0
    assert relay_outruns_transfer(499, 0.02, 10.0)
    assert not relay_outruns_transfer(500, 0.02, 10.0)
    assert eager_tokens(1.0, 0.03, 1000) == 33
    assert eager_tokens(100.0, 0.03, 64) == 64


@given(st.integers(0, 5000), st.integers(1, 5000), st.integers(1, 2048), st.integers(0, 2048))
def test_chunked_prefill_without_floor_costs_what_one_pass_does(cached, fresh, chunk, tail) -> None:
    total = chunked_prefill_cost_s(cached, cached + fresh, PrefillSpeed(chunk, tail, 1000.0, 1e5, 0.0))
    assert total == pytest.approx(prefill_s(fresh, cached, 1000.0, 1e5), rel=1e-9)


def test_a_fully_cached_prompt_still_computes_its_last_token() -> None:
    assert chunked_prefill_cost_s(100, 100, PrefillSpeed(64, 0, 1000.0, 1e5, 0.02)) == 0.02


@pytest.mark.parametrize("cached_price", [0.10, 0.25])
def test_revenue_falls_from_zero_exactly_where_the_rule_says(cached_price) -> None:
    for attention in (0.05, 0.1, 0.2, 0.3, 0.5):
        cost = PrefillCost(1.0 - attention, attention, 0.02)
        falls = revenue_per_prefill_s(1e-6, cached_price, cost) < revenue_per_prefill_s(0.0, cached_price, cost)
        assert falls == falls_from_zero(cached_price, cost)


def test_bathtub_is_high_at_both_ends() -> None:
    cost = PrefillCost(0.6, 0.4)
    middle, high = (revenue_per_prefill_s(hit, 0.1, cost) for hit in (0.4, 0.99))
    assert revenue_per_prefill_s(0.0, 0.1, cost) > middle < high


def test_tail_chunks_dent_the_bathtub_and_joining_them_helps() -> None:
    assert tail_waste_s(8192, 8192, 10_000.0, 0.2) == 0.0
    assert tail_waste_s(8292, 8192, 10_000.0, 0.2) == pytest.approx(0.19)
    cut, joined = (PrefillSpeed(8192, least, 10_000.0, 1e6, 0.2) for least in (0, 512))
    assert chunked_revenue_per_s(0.0, 0.1, 8292, cut) < chunked_revenue_per_s(0.0, 0.1, 8292, joined)
