"""What an agent measures of a link through a real relay."""

import asyncio
import ipaddress
from contextlib import asynccontextmanager

import pytest

from engine_agents.tasks.probes import ProbeError, measure
from engine_agents.wan.link import ShapedLink
from engine_agents.wan.relay import Relay
from engine_agents.wan.shaping import LinkShape


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
