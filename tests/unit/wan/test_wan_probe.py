"""What an agent measures of a link through a real relay."""

import asyncio
import contextlib
import ipaddress
from contextlib import asynccontextmanager

import pytest

from engine_agents.tasks.probes import ProbeError, measure, probe_link
from engine_agents.wan.link import ShapedLink
from engine_agents.wan.relay import Relay
from engine_agents.wan.shaping import LinkShape

HEADER = {"operation_id": 1, "position": 0, "token": "t", "fence": 1, "source": "fra"}


@asynccontextmanager
async def relay_of(**shape):
    link = ShapedLink("ams-fra", "ams", "fra", LinkShape(**{"capacity_bytes_per_s": 4e6, "rtt_s": 0.02, **shape}))
    relay = Relay([link], [ipaddress.ip_network("127.0.0.0/8")])
    host, port = await relay.start("127.0.0.1", 0)
    try:
        yield link, host, port
    finally:
        await relay.close()


async def test_a_probe_finds_about_what_the_link_gives_and_leaves_nothing_behind():
    async with relay_of() as (link, host, port):
        found = await asyncio.to_thread(measure, host, port, "ams-fra", 2_000_000)
        assert found.size_bytes == 1_750_000
        assert 0 < found.bandwidth_bytes_per_s < 2 * 4e6
        assert found.rtt_s >= 0.02
        assert set(found.to_document()) == {"size_bytes", "duration_s", "rtt_s", "bandwidth_bytes_per_s"}
        async with asyncio.timeout(20):
            while link.flows:
                await asyncio.sleep(0.01)


async def test_a_link_that_is_not_there_and_one_that_gives_too_little_are_errors(monkeypatch):
    monkeypatch.setattr("engine_agents.tasks.probes.MEASURE_FOR_S", 0.3)
    async with relay_of(rate_cap_bytes_per_s=50_000.0) as (_, host, port):
        with pytest.raises(ProbeError, match="unknown link"):
            await asyncio.to_thread(measure, host, port, "nowhere", 1_000_000)
        with pytest.raises((ProbeError, TimeoutError)):
            await asyncio.to_thread(measure, host, port, "ams-fra", 8_000_000)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\xff\xfe\n",
        b"[" * 4000 + b"\n",
        b"[]\n",
        b"{}\n",
        b"1" * 10_000,
    ],
    ids=["http", "no text", "deep", "no object", "empty object", "endless line"],
)
async def test_a_port_that_is_no_relay_fails_the_probe_and_not_the_task(monkeypatch, answer):
    outcomes = []
    monkeypatch.setattr("engine_agents.tasks.probes.report_outcome", lambda _, outcome: outcomes.append(outcome))

    async def speak(reader, writer):
        await reader.readline()
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            await reader.read()
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        relay = {"host": "127.0.0.1", "port": port}
        await asyncio.to_thread(probe_link, relay=relay, link="ams-fra", size_bytes=1000, **HEADER)
    [outcome] = outcomes
    expected = f"the relay at 127.0.0.1:{port}: it did not answer as a relay does"
    assert (outcome.verdict, outcome.error) == ("failed", expected)
