"""The twin told plainly: the same model as the kernel's in objects and one heap, to be read and to be compared with.

One `_Fleet` holds nodes, links and sessions. A request lives in its session; each method is one thing that happens to
it. It is some fifty times slower than the kernel, and gives the same figures to the bit.
"""

import heapq
import math
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from control.domain.handoff import HandoffStep, choose_handoff_mode, next_handoff_step
from control.domain.performance import (
    PrefillSpeed,
    chunked_prefill_cost_s,
    decode_step_s,
    expected_left_bytes,
    handoff_stall_s,
    predict_transfer_s,
    slow_start_s,
)
from control.domain.routing import Pipeline, Reason, RouteInputs, choose_pipeline, node_score, relay_at_ceiling
from control.domain.topology import Role
from control.twin.reference_parts import Link, Node, Server, Session, Transfer
from control.twin.scenario import Scenario, in_kernel_order, rules_of
from control.twin.state import RESULT, FaultKind

PREFILL_SMOOTHING = 0.2
_STARTS, _SCHEDULED, _JOB_ENDS = range(3)


def simulate_plainly(scenario: Scenario) -> npt.NDArray[Any]:
    """What becomes of each turn, as the kernel gives it."""
    fleet = _Fleet(scenario)
    fleet.run()
    return fleet.results


class _Fleet:
    def __init__(self, scenario: Scenario) -> None:
        self.rules, self.load = rules_of(scenario), scenario.workload
        order = in_kernel_order(scenario.nodes)
        self.nodes = [Node(number, scenario.nodes[place]) for number, place in enumerate(order)]
        self.links = [Link(len(order) + number, spec) for number, spec in enumerate(scenario.links)]
        self.between = {(link.spec.source, link.spec.target): link for link in self.links}
        first = self.load.first_turn
        self.sessions = [Session(number, int(first[number])) for number in range(len(first) - 1)]
        self.results = np.zeros(self.load.turns.size, RESULT)
        self.relay_running = dict.fromkeys(scenario.site_names, 0)
        self.relay_slots = dict.fromkeys(scenario.site_names, 0)
        for node in self.nodes:
            if node.spec.role is Role.RELAY:
                self.relay_slots[node.spec.site] += node.spec.slots
        self.full_sites: set[str] = set()
        self.prefill_s_per_token = 0.0
        self.transfers: list[Transfer] = []
        self._agenda: list[tuple[float, int, int, int, Callable[[float], None]]] = []
        self._order, self._ties = count(), count()
        for fault in scenario.faults:
            self._schedule(fault.at_s, self._fault_action(fault.kind, fault.target, fault.value, order))
        for session in self.sessions:
            start_s = float(self.load.starts_s[session.number])
            begin = self._for_session(session, self._begin_turn)
            heapq.heappush(self._agenda, (start_s, _STARTS, session.number, 0, begin))

    def run(self) -> None:
        while self._agenda and self._agenda[0][0] <= self.rules.until_s:
            now_s, _, _, _, action = heapq.heappop(self._agenda)
            action(now_s)

    # What happens when

    def _schedule(self, at_s: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self._agenda, (at_s, _SCHEDULED, next(self._order), 0, action))

    @staticmethod
    def _for_session(session: Session, act: Callable[[Session, float], None]) -> Callable[[float], None]:
        """The action, void once the request has gone another way."""
        generation = session.generation
        return lambda now_s: act(session, now_s) if session.generation == generation else None

    def _set_alarm(self, server: Server) -> None:
        server.alarm += 1
        alarm, at_s = server.alarm, server.next_end_s()

        def ring(now_s: float) -> None:
            if server.alarm == alarm:
                self._job_ends(server, now_s)

        if at_s < math.inf:
            heapq.heappush(self._agenda, (at_s, _JOB_ENDS, server.number, alarm, ring))

    def _join(self, server: Server, job: Any, work: float, now_s: float) -> float:
        server.advance(now_s)
        server.jobs[job] = (server.virtual + work, next(self._ties))
        self._set_alarm(server)
        return server.virtual

    def _leave(self, server: Server, job: Any, now_s: float) -> None:
        server.advance(now_s)
        del server.jobs[job]
        self._set_alarm(server)

    def _job_ends(self, server: Server, now_s: float) -> None:
        server.advance(now_s)
        job = min(server.jobs, key=lambda one: server.jobs[one])
        server.virtual = max(server.virtual, server.jobs.pop(job)[0])
        self._set_alarm(server)
        if isinstance(server, Link):
            self._transfer_sent(job, now_s)
            self._fill_link(server, now_s)
        elif isinstance(server, Node) and server.spec.role is Role.MAIN:
            self._end_turn(job, now_s + self._round_trip_s(job) / 2.0, now_s)
        else:
            self._relay_has_made_all(job, now_s)

    # The plan

    def _begin_turn(self, session: Session, now_s: float) -> None:
        turn, out = self.load.turns[session.turn], self.results[session.turn]
        session.input_tokens = max(1, int(turn["input_tokens"]))
        session.reuse_tokens = min(int(turn["reuse_tokens"]), session.input_tokens)
        session.output_tokens = max(1, int(turn["output_tokens"]))
        session.made_before = 0
        out["arrived_s"] = now_s
        out["input_tokens"], out["output_tokens"] = session.input_tokens, session.output_tokens
        self._plan(session, now_s)

    def _resident(self, session: Session, node: Node) -> int:
        kept = session.kept_on(node)
        shared = int(self.load.turns[session.turn]["shared_tokens"])
        return min(session.reuse_tokens, max(shared, kept.tokens if kept else 0))

    def _matched(self, session: Session, node: Node) -> int:
        if node.spec.role is Role.RELAY:
            return 0
        kept = session.kept_on(node)
        if node.spec.role is Role.MAIN and self.rules.counts_in_flight and kept is not None:
            return max(self._resident(session, node), min(session.reuse_tokens, kept.coming_tokens))
        return self._resident(session, node)

    def _choose_node(self, session: Session, role: Role, site: str | None = None) -> Node | None:
        nodes = [
            node
            for node in self.nodes
            if node.spec.role is role and node.is_up and node.spec.slots > 0 and site in {None, node.spec.site}
        ]
        if len(nodes) <= 1:
            return nodes[0] if nodes else None
        mean_load = 0.0
        for node in nodes:
            mean_load += node.load / node.spec.slots
        mean_load /= len(nodes)

        def score(node: Node) -> float:
            matched = self._matched(session, node)
            return node_score(node.load / node.spec.slots, matched, session.input_tokens, mean_load, self.rules.nodes)

        return max(nodes, key=score)

    def _link(self, session: Session) -> Link | None:
        assert session.prefill is not None
        assert session.main is not None
        return self.between.get((session.prefill.spec.site, session.main.spec.site))

    def _predict_transfer_s(self, session: Session, resident: int, known: int, now_s: float) -> float:
        link = self._link(session)
        if link is None or session.main is None:
            return 0.0
        ahead_bytes, kept = 0.0, session.kept_on(session.main)
        if known > resident and kept is not None:
            transfer = kept.transfer
            while transfer is not None:
                if transfer.link is not None:
                    elapsed_s = now_s - transfer.marked_s
                    ahead_bytes += expected_left_bytes(transfer.size_bytes, transfer.rate_bytes_per_s, elapsed_s)
                transfer = transfer.after
        send_bytes = (session.input_tokens - known) * self.rules.physics.kv_bytes_per_token
        return predict_transfer_s(send_bytes, ahead_bytes, link.expected_rate(), link.spec.rtt_s)

    def _plan(self, session: Session, now_s: float) -> None:
        session.generation += 1
        session.stage, session.relay_state, session.main_state = "prefill", "", ""
        session.relay_made = session.caught_up = session.last_pending = session.batches = 0
        session.mode = session.batch_upto = session.transfer = None
        session.planned_s = now_s
        prefill = session.prefill = self._choose_node(session, Role.PREFILL)
        if prefill is None:
            self._refuse(session, Reason.NO_PREFILL, now_s)
            return
        site = prefill.spec.site
        session.cached_tokens = self._resident(session, prefill)
        session.relay = self._choose_node(session, Role.RELAY, site)
        main = session.main = self._choose_node(session, Role.MAIN)
        resident = self._resident(session, main) if main else 0
        known = self._matched(session, main) if main else 0
        transfer_s = self._predict_transfer_s(session, resident, known, now_s) if main else 0.0
        prefill_s = (session.input_tokens - session.cached_tokens) * self.prefill_s_per_token
        slots = self.relay_slots[site]
        inputs = RouteInputs(
            input_tokens=session.input_tokens,
            resident_tokens=resident,
            in_flight_tokens=known - resident,
            max_output_tokens=max(1, int(self.load.turns[session.turn]["bound_tokens"]) - session.made_before),
            predicted_transfer_s=transfer_s,
            predicted_direct_ttft_s=prefill_s + transfer_s,
            relay_utilization=self.relay_running[site] / slots if slots else 0.0,
            relay_was_at_ceiling=site in self.full_sites,
            has_main=main is not None,
            has_relay=session.relay is not None,
            parameter_forces_direct=False,
        )
        ceiling = self.rules.route.relay_load_ceiling
        is_full = relay_at_ceiling(inputs.relay_utilization, inputs.relay_was_at_ceiling, ceiling)
        pipeline, reason = choose_pipeline(inputs, self.rules.route)
        (self.full_sites.add if is_full else self.full_sites.discard)(site)
        if pipeline is Pipeline.NONE:
            self._refuse(session, reason, now_s)
            return
        session.pipeline = pipeline
        self._start(session, inputs, reason, now_s)

    def _start(self, session: Session, inputs: RouteInputs, reason: Reason, now_s: float) -> None:
        out, prefill = self.results[session.turn], session.prefill
        assert prefill is not None
        out["pipeline"], out["reason"], out["cached_tokens"] = session.pipeline, reason, session.cached_tokens
        out["lag_tokens"] = max(0, session.cached_tokens - inputs.resident_tokens)
        prefill.load += 1
        if session.pipeline is not Pipeline.DIRECT and session.relay is not None:
            session.relay.load += 1
            session.relay_state = "planned"
        if session.pipeline is not Pipeline.OUTLIER and session.main is not None:
            out["sent_tokens"] += inputs.uncached_tokens
            session.main.load += 1
            session.main_state = "kv comes"
            self._mark_transfer(session, inputs.uncached_tokens, now_s)
        spec = prefill.spec
        speed = PrefillSpeed(
            spec.chunk_tokens, spec.tail_chunk_min_tokens, spec.tokens_per_s, spec.attention_tokens, spec.floor_s
        )
        work_s = chunked_prefill_cost_s(session.cached_tokens, session.input_tokens, speed)
        lane = min(range(spec.lanes), key=lambda one: prefill.busy_until_s[one])
        ready_s = max(now_s, prefill.busy_until_s[lane]) + work_s
        prefill.busy_until_s[lane] = ready_s
        kept = session.kept_on(prefill)
        if kept is not None and id(kept) in prefill.order:
            prefill.order.move_to_end(id(kept))
        self._schedule(ready_s, self._for_session(session, self._prefilled))

    def _refuse(self, session: Session, reason: Reason, now_s: float) -> None:
        out = self.results[session.turn]
        out["shed"], out["pipeline"], out["reason"], out["end_s"] = 1, Pipeline.NONE, reason, now_s
        self._begin_next(session, now_s)

    # Prefill, and KV on its way

    def _prefilled(self, session: Session, now_s: float) -> None:
        prefill, physics = session.prefill, self.rules.physics
        assert prefill is not None
        session.stage = "running"
        prefill.load -= 1
        session.keep(prefill, session.input_tokens)
        uncached = session.input_tokens - session.cached_tokens
        if uncached > 0:
            sample, known = (now_s - session.planned_s) / uncached, self.prefill_s_per_token
            self.prefill_s_per_token = sample if known == 0.0 else known + PREFILL_SMOOTHING * (sample - known)
        if session.relay_state == "planned" and session.relay is not None:
            session.relay_state = "kv comes"
            self.relay_running[session.relay.spec.site] += 1
            size_bytes = session.input_tokens * physics.kv_bytes_per_token
            way_s = physics.direct_setup_s + size_bytes / physics.direct_bytes_per_s
            self._schedule(now_s + way_s, self._for_session(session, self._relay_ready))
        if session.transfer is not None:
            self._set_up(session.transfer, now_s)

    def _mark_transfer(self, session: Session, send_tokens: int, now_s: float) -> None:
        source, target, link = session.prefill, session.main, self._link(session)
        assert source is not None
        assert target is not None
        kept = session.claim(target)
        size_bytes = send_tokens * self.rules.physics.kv_bytes_per_token
        transfer = Transfer(session, kept, link, source, target, session.input_tokens, size_bytes, now_s)
        if link is not None:
            transfer.rate_bytes_per_s = link.expected_rate()
            link.flows += link.spec.streams
        if kept is not None:
            if self.rules.counts_in_flight and kept.transfer is not None:
                transfer.after = kept.transfer
                kept.transfer.before = transfer
            target.order.pop(id(kept), None)
            kept.coming_tokens = max(kept.coming_tokens, transfer.upto_tokens)
            kept.transfer = transfer
        session.transfer = transfer
        self.transfers.append(transfer)

    def _set_up(self, transfer: Transfer, now_s: float) -> None:
        physics, link = self.rules.physics, transfer.link
        transfer.began_s = now_s
        delay_s = 0.0
        if link is None:
            delay_s = physics.direct_setup_s + transfer.size_bytes / physics.direct_bytes_per_s
        elif transfer.size_bytes > 0.0:
            delay_s = 2.0 * link.spec.rtt_s
            if physics.slow_start:
                delay_s += slow_start_s(transfer.size_bytes / link.spec.streams, link.spec.rtt_s)
        self._schedule(now_s + delay_s, lambda at_s: self._transfer_begins(transfer, at_s))

    def _transfer_begins(self, transfer: Transfer, now_s: float) -> None:
        link = transfer.link
        if transfer.is_dropped:
            return
        if link is None or transfer.size_bytes <= 0.0:
            self._transfer_sent(transfer, now_s)
        elif len(link.jobs) < link.spec.max_transfers:
            self._join(link, transfer, transfer.size_bytes, now_s)
        else:
            link.queue.append(transfer)

    def _fill_link(self, link: Link, now_s: float) -> None:
        while link.queue and len(link.jobs) < link.spec.max_transfers:
            transfer = link.queue.popleft()
            self._join(link, transfer, transfer.size_bytes, now_s)

    def _transfer_sent(self, transfer: Transfer, now_s: float) -> None:
        transfer.is_sent = True
        landing = transfer if transfer.after is None else None
        while landing is not None:
            session, later = landing.session, landing.before
            self._close_transfer(landing)
            if landing.kept is not None and landing.kept.node is landing.target:
                landing.target.settle(landing.kept, landing.upto_tokens)
            if session.transfer is landing and session.stage == "running":
                session.transfer = None
                self.results[session.turn]["transfer_s"] = now_s - landing.began_s
                self._ask_main(session, now_s)
            landing = later if later is not None and later.is_sent else None

    def _close_transfer(self, transfer: Transfer) -> None:
        self.transfers.remove(transfer)
        if transfer.link is not None:
            transfer.link.flows -= transfer.link.spec.streams
        kept = transfer.kept
        if kept is not None and kept.node is transfer.target and kept.transfer is transfer:
            kept.coming_tokens, kept.transfer = 0, None
        if transfer.after is not None:
            transfer.after.before = None
        if transfer.before is not None:
            transfer.before.after = None

    def _drop_transfer(self, transfer: Transfer, now_s: float) -> None:
        transfer.is_dropped = True
        self._close_transfer(transfer)
        kept, link = transfer.kept, transfer.link
        if kept is not None and kept.node is transfer.target and kept.coming_tokens == 0:
            transfer.target.settle(kept, 0)
        if link is None:
            return
        if transfer in link.queue:
            link.queue.remove(transfer)
        if transfer in link.jobs:
            self._leave(link, transfer, now_s)
            self._fill_link(link, now_s)

    # Relay decode

    def _relay_ready(self, session: Session, now_s: float) -> None:
        relay = session.relay
        if session.relay_state != "kv comes" or relay is None:
            return
        if not relay.queue and relay.has_room(session.need_tokens):
            self._begin_relay(session, now_s)
        else:
            session.relay_state = "waits"
            relay.queue.append(session)

    def _begin_relay(self, session: Session, now_s: float) -> None:
        relay = session.relay
        assert relay is not None
        self._take_place(session, relay)
        session.relay_state = "decodes"
        most = math.inf if session.pipeline is Pipeline.OUTLIER else self.rules.relay_max_tokens
        session.relay_work = int(min(session.output_tokens, most))
        session.relay_from = self._join(relay, session, float(session.relay_work), now_s)
        self._first_token(session, relay, now_s, 0.0)

    def _made_on_relay(self, session: Session, now_s: float) -> int:
        if session.relay_state == "decodes" and session.relay is not None:
            session.relay.advance(now_s)
            made = math.floor(session.relay.virtual - session.relay_from)
            session.relay_made = min(session.relay_work, max(0, made))
        return session.relay_made

    def _leave_relay(self, session: Session, now_s: float) -> None:
        state, relay = session.relay_state, session.relay
        if state in {"", "left"} or relay is None:
            return
        self._made_on_relay(session, now_s)
        session.relay_state = "left"
        if state == "stopped":
            return
        relay.load -= 1
        if state != "planned":
            self.relay_running[relay.spec.site] -= 1
        if state == "waits":
            relay.queue.remove(session)
        if state == "decodes":
            self._leave(relay, session, now_s)
            self._give_place_back(session, relay)
            self._fill_relay(relay, now_s)

    def _fill_relay(self, relay: Node, now_s: float) -> None:
        while relay.queue and relay.has_room(relay.queue[0].need_tokens):
            self._begin_relay(relay.queue.popleft(), now_s)

    def _relay_has_made_all(self, session: Session, now_s: float) -> None:
        relay = session.relay
        assert relay is not None
        session.relay_made, session.relay_state = session.relay_work, "stopped"
        relay.load -= 1
        self.relay_running[relay.spec.site] -= 1
        self._give_place_back(session, relay)
        self._fill_relay(relay, now_s)
        if session.relay_work >= session.output_tokens:
            self._end_turn(session, now_s, now_s)
        elif session.main_state == "admitted" and session.batch_upto is None:
            self._hand_over(session, now_s)

    # Main decode

    def _ask_main(self, session: Session, now_s: float) -> None:
        main = session.main
        assert main is not None
        if not main.queue and main.has_room(session.need_tokens):
            self._admit_to_main(session, now_s)
        else:
            session.main_state = "waits"
            main.queue.append(session)

    def _admit_to_main(self, session: Session, now_s: float) -> None:
        main = session.main
        assert main is not None
        session.main_state = "admitted"
        kept = session.kept_on(main)
        if kept is not None:
            main.forget(kept)
        self._take_place(session, main)
        if session.relay_state in {"decodes", "stopped"}:
            self._hand_over(session, now_s)
            return
        self._leave_relay(session, now_s)
        self._begin_main(session, now_s)

    def _hand_over(self, session: Session, now_s: float) -> None:
        knobs, physics, relay = self.rules.handoff, self.rules.physics, session.relay
        assert relay is not None
        made = self._made_on_relay(session, now_s)
        pending = made - session.caught_up
        if session.mode is None:
            session.mode = choose_handoff_mode(pending, relay.spec.site in self.full_sites, knobs)
        step = next_handoff_step(session.mode, pending, session.last_pending, session.batches, knobs)
        round_trip_s = self._round_trip_s(session)
        stall_s = handoff_stall_s(pending, round_trip_s, physics.handoff_x0_s, physics.handoff_x1_s)
        if step is HandoffStep.CUT or session.relay_state == "stopped":
            self._leave_relay(session, now_s)
            self.results[session.turn]["stall_s"] += stall_s
            self._schedule(now_s + stall_s, self._for_session(session, self._begin_main))
            return
        session.last_pending = pending
        session.batches += 1
        session.batch_upto = made
        self._schedule(now_s + stall_s, self._for_session(session, self._caught_up))

    def _caught_up(self, session: Session, now_s: float) -> None:
        session.caught_up, session.batch_upto = session.batch_upto or 0, None
        self._hand_over(session, now_s)

    def _begin_main(self, session: Session, now_s: float) -> None:
        main = session.main
        assert main is not None
        session.main_state = "decodes"
        session.main_from = self._join(main, session, float(session.output_tokens - session.relay_made), now_s)
        self._first_token(session, main, now_s, self._round_trip_s(session) / 2.0)

    def _leave_main(self, session: Session, kept_tokens: int, now_s: float) -> None:
        state, main = session.main_state, session.main
        if not state or main is None:
            return
        main.load -= 1
        session.main_state = ""
        if state == "waits":
            main.queue.remove(session)
        if state in {"admitted", "decodes"}:
            self._give_place_back(session, main)
            if kept_tokens:
                session.keep(main, kept_tokens)
            while main.queue and main.has_room(main.queue[0].need_tokens):
                self._admit_to_main(main.queue.popleft(), now_s)

    # Both

    @staticmethod
    def _take_place(session: Session, node: Node) -> None:
        node.reserved += 1
        node.active_tokens += session.need_tokens
        node.make_room()

    @staticmethod
    def _give_place_back(session: Session, node: Node) -> None:
        node.reserved -= 1
        node.active_tokens -= session.need_tokens

    def _round_trip_s(self, session: Session) -> float:
        link = self._link(session)
        return link.spec.rtt_s if link is not None else 0.0

    def _first_token(self, session: Session, node: Node, now_s: float, way_s: float) -> None:
        out = self.results[session.turn]
        if out["ttft_s"] == 0.0:
            step_s = decode_step_s(len(node.jobs), node.spec.tau0_s, node.spec.tau1_s)
            out["ttft_s"] = now_s + step_s + way_s - out["arrived_s"]

    def _end_turn(self, session: Session, end_s: float, now_s: float) -> None:
        out = self.results[session.turn]
        out["end_s"] = end_s
        out["eager_tokens"] += session.relay_made
        if out["output_tokens"] > 1:
            out["tpot_s"] = (end_s - out["arrived_s"] - out["ttft_s"]) / (out["output_tokens"] - 1)
        answered = session.output_tokens - 1 if session.main_state == "decodes" else 0
        self._leave_main(session, session.input_tokens + answered, now_s)
        if session.transfer is not None and not self.rules.finishes_transfers:
            self._drop_transfer(session.transfer, now_s)
        self._begin_next(session, end_s)

    def _begin_next(self, session: Session, end_s: float) -> None:
        session.transfer, session.stage = None, "idle"
        session.generation += 1
        session.turn += 1
        if session.turn < self.load.first_turn[session.number + 1]:
            think_s = float(self.load.turns[session.turn]["think_s"])
            self._schedule(end_s + think_s, self._for_session(session, self._begin_turn))

    # Faults

    def _fault_action(self, kind: FaultKind, target: int, value: float, order: list[int]) -> Callable[[float], None]:
        def degrade(now_s: float) -> None:
            link = self.links[target]
            link.advance(now_s)
            link.capacity_bytes_per_s = link.spec.capacity_bytes_per_s * value
            self._set_alarm(link)

        def mend(now_s: float) -> None:
            node = self.nodes[order.index(target)]
            node.is_up, node.busy_until_s = True, [now_s] * node.spec.lanes

        def lose(now_s: float) -> None:
            node = self.nodes[order.index(target)]
            if node.is_up:
                node.is_up = False
                self._lose_node(node, now_s)

        return {FaultKind.LINK_RATE: degrade, FaultKind.NODE_UP: mend, FaultKind.NODE_DOWN: lose}[kind]

    def _lose_node(self, node: Node, now_s: float) -> None:
        for transfer in list(self.transfers):
            if node in {transfer.source, transfer.target} and not transfer.is_dropped:
                lost: Transfer | None = transfer
                while lost is not None:
                    lost.session.lost_transfer |= lost.session.transfer is lost
                    following = lost.before
                    self._drop_transfer(lost, now_s)
                    lost = following
        for session in self.sessions:
            for kept in session.ways.get(node.spec.role, ()):
                if kept.node is node:
                    node.forget(kept)
        for session in self.sessions:
            if session.stage in {"prefill", "running"} and self._needs(session, node):
                self._start_anew(session, now_s)

    @staticmethod
    def _needs(session: Session, node: Node) -> bool:
        needs = {
            Role.PREFILL: session.prefill is node and session.stage == "prefill",
            Role.RELAY: session.relay is node and session.relay_state in {"planned", "kv comes", "waits", "decodes"},
            Role.MAIN: session.main is node and session.main_state != "",
        }
        return session.lost_transfer or needs[node.spec.role]

    def _start_anew(self, session: Session, now_s: float) -> None:
        out, made = self.results[session.turn], 0
        if session.stage == "prefill" and session.prefill is not None:
            session.prefill.load -= 1
        if session.main_state == "decodes" and session.main is not None:
            session.main.advance(now_s)
            made = math.floor(session.main.virtual - session.main_from)
            made = max(0, min(session.output_tokens - session.relay_made, made))
            self._leave(session.main, session, now_s)
        self._leave_relay(session, now_s)
        self._leave_main(session, 0, now_s)
        out["eager_tokens"] += session.relay_made
        out["resumes"] += 1
        made += session.relay_made
        session.made_before += made
        session.reuse_tokens = session.input_tokens
        session.input_tokens += made
        session.output_tokens = max(1, session.output_tokens - made)
        session.stage, session.relay_state, session.transfer = "lost", "", None
        session.lost_transfer = False
        session.relay_made = 0
        session.generation += 1
        self._schedule(now_s + self.rules.physics.detect_s, self._for_session(session, self._plan))
