import asyncio
import os
import signal
import sys

import pytest

from control.cli.errors import CommandError
from control.cli.process_spec import LogProbe, ProcessSpec, restart_delay_s
from control.cli.supervisor import Supervisor

SLEEPER = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER


def spec(name, code, **more):
    return ProcessSpec(name, (sys.executable, "-c", code), probe=LogProbe("up"), **more)


@pytest.fixture
async def said():
    return []


@pytest.fixture
async def supervisor(tmp_path, said):
    made = Supervisor(tmp_path, tmp_path, os.environ, said.append)
    yield made
    made.kill()
    await made.stop()


def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pid_of(supervisor, name):
    return supervisor._children[name].process.pid


async def test_starts_each_process_after_those_it_needs(supervisor, tmp_path, said):
    check = (
        f"import pathlib, time; assert 'up' in pathlib.Path({str(tmp_path / 'first.log')!r}).read_text(); " + SLEEPER
    )
    await supervisor.start([spec("second", check, needs=("first",)), spec("first", SLEEPER)])
    assert [line.split()[0] for line in said] == ["first", "second"]


async def test_tells_the_end_of_the_log_when_a_start_fails(supervisor):
    with pytest.raises(CommandError, match=r"(?s)broken ended with exit code 3.*the reason"):
        await supervisor.start([spec("broken", "import sys; print('the reason'); sys.exit(3)"), spec("fine", SLEEPER)])


async def test_tells_when_a_process_is_not_ready_in_time(supervisor):
    with pytest.raises(CommandError, match="was not ready within 0 s"):
        await supervisor.start([spec("slow", "import time; time.sleep(60)", ready_timeout_s=0.2)])


async def test_starts_a_process_again_when_it_dies(supervisor, said):
    await supervisor.start([spec("worker", SLEEPER)])
    first = pid_of(supervisor, "worker")
    os.kill(first, signal.SIGKILL)
    while "worker is back" not in said:
        await asyncio.sleep(0.02)
    assert any("worker ended (killed by SIGKILL)" in line for line in said)
    assert pid_of(supervisor, "worker") != first


async def test_stops_every_process_even_one_that_ignores_the_request(supervisor, said):
    await supervisor.start([spec("polite", SLEEPER), spec("stubborn", STUBBORN)])
    pids = [pid_of(supervisor, "polite"), pid_of(supervisor, "stubborn")]
    await supervisor.stop()
    assert not any(exists(pid) for pid in pids)
    assert "stubborn did not stop when asked; killed" in said


async def test_stopping_takes_the_workers_of_a_process_along(supervisor, tmp_path):
    log = tmp_path / "family.log"
    code = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {SLEEPER!r}])\n"
        "print(child.pid, flush=True)\nprint('up', flush=True)\nchild.wait()\n"
    )
    await supervisor.start([spec("family", code)])
    worker = int(log.read_text().split()[0])
    await supervisor.stop()
    while exists(worker):
        await asyncio.sleep(0.02)


async def test_stops_the_last_wave_after_the_others(supervisor, tmp_path):
    order = tmp_path / "order"
    code = (
        "import signal, sys, time\n"
        f"def end(*_):\n    open({str(order)!r}, 'a').write(sys.argv[1])\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('up', flush=True)\ntime.sleep(60)\n"
    )
    argv = (sys.executable, "-c", code)
    await supervisor.start(
        [
            ProcessSpec("store", (*argv, "S"), probe=LogProbe("up"), stop_wave=0),
            ProcessSpec("client", (*argv, "C"), probe=LogProbe("up"), stop_wave=1),
        ]
    )
    await supervisor.stop()
    assert order.read_text() == "CS"


def test_restarts_wait_longer_the_more_often_a_process_dies_but_never_too_long():
    assert [restart_delay_s(count) for count in (0, 1, 2, 50)] == [0.5, 1.0, 2.0, 30.0]
