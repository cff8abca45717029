"""Processor sharing in virtual time: what each job has got grows alike, so a job's end in it never moves.

dV/dt is the rate of one job: 1/τ(B) on a decode node of B sequences, min(f, C/n) on a link. The earliest end of every
server stands in a tournament tree, from which the next one is read.
"""

from control.domain.performance import decode_step_s, flow_rate_bytes_per_s
from control.twin.jit import jit
from control.twin.state import World

INFINITY = float("inf")


@jit
def job_rate(w: World, server: int) -> float:
    """What each job gets per second: tokens or bytes."""
    s = w.servers[server]
    if s.is_link == 0:
        return 1.0 / decode_step_s(s.count, s.tau0_s, s.tau1_s)
    if s.capacity_bytes_per_s <= 0.0:
        return 0.0
    return flow_rate_bytes_per_s(s.capacity_bytes_per_s, s.flow_cap_bytes_per_s, (s.count - 1) * s.streams, s.streams)


@jit
def advance(w: World, server: int, now_s: float) -> None:
    """Give every job what it has got by now."""
    s = w.servers[server]
    if s.count > 0 and now_s > s.updated_s:
        s.virtual += (now_s - s.updated_s) * job_rate(w, server)
    s.updated_s = now_s


@jit
def first_to_end(w: World, server: int) -> int:
    """The place of the job that ends first, of equals the one that came first."""
    best = 0
    for place in range(1, w.servers[server].count):
        ahead = w.finishes[server, place] - w.finishes[server, best]
        if ahead < 0.0 or (ahead == 0.0 and w.ties[server, place] < w.ties[server, best]):
            best = place
    return best


@jit
def set_alarm(w: World, server: int, at_s: float) -> None:
    """Note when a server's next job ends."""
    at = w.alarms.size // 2 + server
    w.alarms[at] = at_s
    at //= 2
    while at >= 1:
        w.alarms[at] = min(w.alarms[2 * at], w.alarms[2 * at + 1])
        at //= 2


@jit
def server_of_alarm(w: World) -> int:
    """The server whose alarm is next, of equals the one with the lowest number."""
    at = 1
    half = w.alarms.size // 2
    while at < half:
        at *= 2
        if w.alarms[at + 1] < w.alarms[at]:
            at += 1
    return at - half


@jit
def plan_alarm(w: World, server: int) -> None:
    """Find out when the next job of a server ends, as things are now."""
    s = w.servers[server]
    if s.count == 0:
        set_alarm(w, server, INFINITY)
        return
    rate = job_rate(w, server)
    if rate <= 0.0:
        set_alarm(w, server, INFINITY)
        return
    left = w.finishes[server, first_to_end(w, server)] - s.virtual
    set_alarm(w, server, s.updated_s + max(0.0, left) / rate)


@jit
def join(w: World, server: int, job: int, work: float, now_s: float) -> float:
    """Add a job; gives back the virtual time at which it began."""
    advance(w, server, now_s)
    s = w.servers[server]
    place = s.count
    w.jobs[server, place] = job
    w.finishes[server, place] = s.virtual + work
    w.ties[server, place] = w.clock[0].serial
    w.clock[0].serial += 1
    s.count += 1
    plan_alarm(w, server)
    return float(s.virtual)


@jit
def _take_out(w: World, server: int, place: int) -> None:
    s = w.servers[server]
    last = s.count - 1
    w.jobs[server, place] = w.jobs[server, last]
    w.finishes[server, place] = w.finishes[server, last]
    w.ties[server, place] = w.ties[server, last]
    s.count = last
    plan_alarm(w, server)


@jit
def leave(w: World, server: int, job: int, now_s: float) -> None:
    """Take out a job before its end."""
    advance(w, server, now_s)
    for place in range(w.servers[server].count):
        if w.jobs[server, place] == job:
            _take_out(w, server, place)
            return


@jit
def end_first(w: World, server: int, now_s: float) -> int:
    """Take out the job that has come to its end, and say which."""
    advance(w, server, now_s)
    place = first_to_end(w, server)
    job = w.jobs[server, place]
    w.servers[server].virtual = max(w.servers[server].virtual, w.finishes[server, place])
    _take_out(w, server, place)
    return int(job)
