"""What the twin costs: requests and events per CPU second, a million requests, a preview, growth with fleet and load.

Everything is on: LRU caches, KV room, flow caps, closed-loop sessions, relays with catch-up. The last line is JSON.
"""

import json
import resource
import time
from dataclasses import dataclass

from control.domain.policy import DEFAULT_POLICY_DOCUMENT, parse_policy
from control.domain.topology import Role
from control.twin.run import run_counted
from control.twin.scenario import Scenario, TwinLink, TwinNode
from control.twin.state import Physics
from control.twin.workload import AgentShape, agent_load

GBPS = 1e9 / 8
SHAPE = AgentShape()
POLICY = parse_policy(DEFAULT_POLICY_DOCUMENT)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took."""

    requests: int
    events: int
    cpu_s: float
    wall_s: float


def fleet(nodes: int) -> tuple[TwinNode, ...]:
    """P, RLD and MD as 40 : 3 : 32, as in the published case."""
    prefill, relay = max(1, round(nodes * 40 / 75)), max(1, round(nodes * 3 / 75))
    return (
        *[TwinNode(Role.PREFILL, "A", capacity_tokens=2_000_000, floor_s=0.02)] * prefill,
        *[TwinNode(Role.RELAY, "A", slots=32, tau0_s=0.02, tau1_s=0.0003)] * relay,
        *[TwinNode(Role.MAIN, "B", slots=64, capacity_tokens=4_000_000, tau0_s=0.025, tau1_s=0.0003)]
        * max(1, nodes - prefill - relay),
    )


def scenario(nodes: int, requests: int, rps: float, seed: int = 1) -> Scenario:
    """Agent sessions on a fleet over a link that is shared and whose flows are capped."""
    sessions = max(1, round(requests / 14.6))
    link = TwinLink("A", "B", rps * 0.3 * GBPS * 8, 0.03, 0.125 * GBPS * 8, 4, 256)
    physics = Physics(50_000.0, 50e9, 0.005, 0.2, 0.001, slow_start=True, detect_s=1.0)
    load = agent_load(SHAPE, sessions, rps / 14.6, seed)
    return Scenario(fleet(nodes), (link,), POLICY, physics, load)


def measure(case: Scenario) -> Cost:
    """Run it once."""
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    results, events = run_counted(case)
    return Cost(results.size, events, time.process_time() - cpu_s, time.perf_counter() - wall_s)


def main() -> None:
    """Print the table, then one line of JSON."""
    began_s = time.perf_counter()
    measure(scenario(3, 50, 1.0))
    print(f"kernel ready after {time.perf_counter() - began_s:.1f} s")
    print(f"{'nodes':>6} {'req/s':>6} {'requests':>9} {'CPU s':>7} {'requests/CPU s':>15} {'events/CPU s':>13}")
    for nodes, rps in ((3, 2.0), (15, 10.0), (75, 10.0), (75, 50.0), (75, 100.0), (300, 200.0), (1000, 600.0)):
        cost = measure(scenario(nodes, 100_000, rps))
        rates = f"{cost.requests / cost.cpu_s:>15,.0f} {cost.events / cost.cpu_s:>13,.0f}"
        print(f"{nodes:>6} {rps:>6g} {cost.requests:>9,} {cost.cpu_s:>7.2f} {rates}")
    preview = measure(scenario(75, 50 * 300, 50.0))
    million = measure(scenario(75, 1_000_000, 50.0))
    print(f"five minutes of 75 nodes at 50 requests/s: {preview.wall_s:.2f} s")
    print(f"{million.requests:,} requests: {million.cpu_s:.2f} s of CPU, {million.wall_s:.2f} s")
    figures = {
        "requests_per_cpu_s": million.requests / million.cpu_s,
        "events_per_cpu_s": million.events / million.cpu_s,
        "million_requests_s": million.wall_s * 1e6 / million.requests,
        "preview_s": preview.wall_s,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
