"""Small scenarios that together touch everything the twin can do."""

import numpy as np

from control.domain.policy import DEFAULT_POLICY_DOCUMENT, apply_changes, parse_policy
from control.domain.topology import Role
from control.twin.scenario import Fault, Scenario, TwinLink, TwinNode, Workload
from control.twin.state import TURN, FaultKind, Physics

PHYSICS = Physics(
    kv_bytes_per_token=50e3,
    direct_bytes_per_s=25e9,
    direct_setup_s=0.005,
    handoff_x0_s=0.1,
    handoff_x1_s=0.001,
    slow_start=True,
    detect_s=0.5,
)
GBPS = 1e9 / 8


def agents(seed: int, sessions: int, turns: int, per_s: float, *, grow: tuple[int, int] = (200, 6000)) -> Workload:
    """Growing sessions, the first prompt long and cold, each later one a little longer than all before it."""
    rng = np.random.default_rng(seed)
    rows = np.zeros(sessions * turns, TURN)
    for session in range(sessions):
        known = 0
        for place in range(turns):
            new = int(rng.integers(*grow)) if place else int(rng.integers(6000, 40_000))
            row = rows[session * turns + place]
            row["input_tokens"], row["reuse_tokens"], row["shared_tokens"] = known + new, known, 2000
            row["output_tokens"] = int(rng.integers(1, 700))
            row["bound_tokens"] = int(rng.choice([400, 1500]))
            row["think_s"] = float(rng.exponential(2.0))
            known += new + int(row["output_tokens"])
    starts_s = np.cumsum(rng.exponential(1.0 / per_s, sessions))
    return Workload(starts_s, np.arange(0, sessions * turns + 1, turns), rows)


def nodes(prefill: int, relay: int, main: int, **more) -> tuple[TwinNode, ...]:
    """P and RLD at ams, MD at fra."""
    return (
        *(TwinNode(Role.PREFILL, "ams", capacity_tokens=200_000, floor_s=0.05) for _ in range(prefill)),
        *(TwinNode(Role.RELAY, "ams", slots=4, tau0_s=0.02, tau1_s=0.0004) for _ in range(relay)),
        *(TwinNode(Role.MAIN, "fra", **({"slots": 8, "tau0_s": 0.025, "tau1_s": 0.0005} | more)) for _ in range(main)),
    )


def policy(**changes):
    """The default policy with some fields changed, `__` for a dot."""
    named = {path.replace("__", "."): value for path, value in changes.items()}
    return parse_policy(apply_changes(DEFAULT_POLICY_DOCUMENT, named))


def link(gbps: float, **more) -> TwinLink:
    """ams to fra."""
    return TwinLink("ams", "fra", gbps * GBPS, 0.03, **({"flow_cap_bytes_per_s": GBPS, "streams": 2} | more))


def scenario(seed: int = 1, **changes) -> Scenario:
    """A busy little fleet."""
    standard = {
        "nodes": nodes(2, 2, 3),
        "links": (link(10.0, max_transfers=6),),
        "policy": policy(),
        "physics": PHYSICS,
        "workload": agents(seed, 40, 6, 1.0),
    }
    return Scenario(**(standard | changes))


def faulty(seed: int) -> Scenario:
    """Every kind of fault, with work under way."""
    faults = (
        Fault(8.0, FaultKind.LINK_RATE, 0, 0.1),
        Fault(12.0, FaultKind.NODE_DOWN, 0),
        Fault(14.0, FaultKind.LINK_RATE, 0, 0.0),
        Fault(17.0, FaultKind.LINK_RATE, 0, 1.0),
        Fault(18.0, FaultKind.NODE_UP, 0),
        Fault(20.0, FaultKind.NODE_DOWN, 2),
        Fault(22.0, FaultKind.NODE_DOWN, 4),
        Fault(25.0, FaultKind.NODE_DOWN, 5),
        Fault(25.0, FaultKind.NODE_DOWN, 6),
        Fault(30.0, FaultKind.NODE_UP, 4),
        Fault(31.0, FaultKind.NODE_UP, 2),
        Fault(34.0, FaultKind.NODE_DOWN, 1),
        Fault(36.0, FaultKind.NODE_UP, 5),
    )
    return scenario(seed, faults=faults)


CASES = {
    "busy": scenario(1),
    "flood": scenario(2, links=(link(1.0, max_transfers=3),), workload=agents(2, 60, 5, 4.0)),
    "catch up": scenario(3, policy=policy(handoff__mode="catch_up", handoff__catch_up_batch_tokens=8)),
    "one shot": scenario(4, policy=policy(handoff__mode="one_shot")),
    "small caches": scenario(5, nodes=nodes(2, 2, 3, capacity_tokens=90_000)),
    "few places": scenario(6, nodes=nodes(2, 1, 2, slots=2), workload=agents(6, 50, 4, 2.0)),
    "short relay": scenario(7, policy=policy(handoff__relay_max_tokens=20), links=(link(2.0),)),
    "outliers": scenario(8, policy=policy(outlier__min_uncached_tokens=8000, outlier__max_output_tokens=600)),
    "always relay": scenario(9, policy=policy(routing__relay_when_transfer_exceeds_s=0, routing__direct_hit_rate=None)),
    "never relay": scenario(10, policy=policy(routing__relay_when_transfer_exceeds_s=600)),
    "resends": scenario(11, counts_in_flight=False, links=(link(2.0),)),
    "drops": scenario(12, finishes_transfers=False, links=(link(2.0),)),
    "strict": scenario(
        13,
        policy=policy(
            classes__default__ttft_p90_s=0.4, classes__default__ttft_p99_s=0.5, routing__relay_load_ceiling=0.2
        ),
    ),
    "same site": scenario(14, nodes=(*nodes(2, 2, 0), *(TwinNode(Role.MAIN, "ams") for _ in range(3))), links=()),
    "no relay": scenario(15, nodes=nodes(2, 0, 3)),
    "lanes": scenario(20, nodes=(TwinNode(Role.PREFILL, "ams", lanes=3), *nodes(1, 2, 3))),
    "no main": scenario(16, nodes=nodes(2, 2, 0)),
    "cut short": scenario(17, until_s=20.0),
    "faults": faulty(18),
    "faults again": faulty(19),
}
