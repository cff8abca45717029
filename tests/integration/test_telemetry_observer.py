"""The observer against real HTTP servers, a real relay and a real Valkey."""

import asyncio
import contextlib
import json
import os
import sys

import aiohttp
import msgspec
import pytest
from aiohttp import web
from redis.asyncio import Redis

from control.site_secret import SiteSecret
from control.telemetry.ingest import connect
from control.telemetry.records import BATCH_FIELD, SAMPLES_STREAM, SampleBatch
from engine_agents.observer.config import ObserverConfig, WatchedLink, WatchedNode
from engine_agents.observer.outbox import Outbox
from engine_agents.observer.scrape import Scraper
from engine_agents.wan.admin import build_admin_app
from engine_agents.wan.link import ShapedLink
from engine_agents.wan.relay import Relay
from engine_agents.wan.shaping import LinkShape
from tests.services import free_port

NODE = {
    "name": "ams-rld-01",
    "engine": "emulated",
    "running": 2,
    "waiting": 1,
    "slots": 4,
    "store": {"resident_tokens": 640, "capacity_tokens": 65536, "leased_bytes": 100, "leases": 1},
    "counters": {"prefill_tokens": 10, "decode_tokens": 20, "pulled_bytes": 30, "served_bytes": 40},
    "exact": True,
    "last_progress_s": 0.1,
}


@contextlib.asynccontextmanager
async def http_server(app):
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def answering(routes):
    """An app that answers each path with a JSON document, or never where it is None."""
    app = web.Application()

    def handler_of(document):
        async def handle(_):
            if document is None:
                await asyncio.Event().wait()
            return web.json_response(document)

        return handle

    for path, document in routes.items():
        app.router.add_get(path, handler_of(document))
    return app


async def scrape(config):
    async with aiohttp.ClientSession() as session:
        return await Scraper(session, "ams", config).scrape()


def watched(url, name="ams-rld-01"):
    return WatchedNode(name, "relay", url, slots=4)


async def test_a_node_is_sampled_as_it_describes_itself():
    async with http_server(answering({"/nodes/x/pdd/v1/node": NODE})) as url:
        (sample,), _ = await scrape(ObserverConfig(nodes=(watched(f"{url}/nodes/x"),)))
    assert (sample.state, sample.running, sample.waiting, sample.slots, sample.exact) == ("ready", 2, 1, 4, True)
    assert (sample.resident_tokens, sample.capacity_tokens, sample.leased_bytes) == (640, 65536, 100)
    assert (sample.prefill_tokens_total, sample.decode_tokens_total, sample.pulled_bytes_total) == (10, 20, 30)


async def test_a_stock_engine_is_sampled_by_its_load():
    async with http_server(answering({"/load": {"server_load": 3}})) as url:
        (sample,), _ = await scrape(ObserverConfig(nodes=(watched(url),)))
    assert (sample.state, sample.running, sample.slots, sample.exact) == ("ready", 3, 4, None)


async def test_work_without_progress_is_stalled():
    stalled = {**NODE, "last_progress_s": 60.0}
    async with http_server(answering({"/pdd/v1/node": stalled})) as url:
        (sample,), _ = await scrape(ObserverConfig(nodes=(watched(url),)))
    assert sample.state == "stalled"


@pytest.mark.parametrize("document", [None, {"running": "many"}, []])
async def test_a_node_that_hangs_or_talks_nonsense_is_unreachable_and_delays_no_other(document):
    async with http_server(answering({"/bad/pdd/v1/node": document, "/good/pdd/v1/node": NODE})) as url:
        config = ObserverConfig(nodes=(watched(f"{url}/bad", "bad"), watched(f"{url}/good", "good")))
        nodes, _ = await scrape(config)
    assert [(node.node, node.state) for node in nodes] == [("bad", "unreachable"), ("good", "ready")]


async def test_a_node_and_a_relay_that_are_gone_are_unreachable():
    url = f"http://127.0.0.1:{free_port()}"
    config = ObserverConfig((watched(url),), (WatchedLink("ams-fra", "ams", "fra", 1000.0, url),))
    (node,), (link,) = await scrape(config)
    assert (node.state, link.state) == ("unreachable", "unreachable")


async def test_a_real_relay_is_sampled_with_its_counters():
    shaped = ShapedLink("ams-fra", "ams", "fra", LinkShape(1000.0, 0.03, flow_cap_bytes_per_s=300.0))
    shaped.bytes_total = 70
    shaped.bytes_by.update({("relay", "default"): 40, ("direct", "default"): 20, ("relay", "gold"): 10})
    for wait_s in (0.0, 1.5):
        shaped.waits.add(wait_s)
    async with http_server(build_admin_app(Relay([shaped], []), SiteSecret("secret"))) as url:
        links = tuple(WatchedLink(name, "ams", "fra", 1000.0, url) for name in ("ams-fra", "unknown"))
        _, (known, unknown) = await scrape(ObserverConfig(links=links))
    assert (known.state, known.bytes_total, known.bytes_by_pipeline) == ("up", 70, {"relay": 50, "direct": 20})
    assert known.bytes_by_class == {"default": 60, "gold": 10}
    assert (known.queue_depth, known.longest_wait_s, known.waits_total, known.waited_s_total) == (0, 0.0, 2, 1.5)
    assert (known.rtt_s, known.flow_cap_bytes_per_s, known.rate_cap_bytes_per_s) == (0.03, 300.0, None)
    assert unknown.state == "unreachable"


async def test_rounds_wait_for_redis_in_a_bounded_box_and_drops_are_counted(valkey):
    await valkey.stop()
    async with connect(valkey.url) as redis:
        outbox = Outbox(redis, "ams", max_batches=5)
        task = asyncio.ensure_future(outbox.run())
        for sequence in range(8):
            outbox.put(SampleBatch("obs", "ams", 1, sequence, 0.0))
        assert (outbox.waiting, outbox.dropped_batches) == (5, 3)
        await asyncio.sleep(0.3)
        assert outbox.waiting == 5
        await valkey.start()
        while outbox.waiting:
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        entries = await redis.xrange(SAMPLES_STREAM.format(site="ams"))
    sent = [msgspec.msgpack.decode(fields[BATCH_FIELD.encode()], type=SampleBatch) for _, fields in entries]
    assert [batch.sequence for batch in sent] == [3, 4, 5, 6, 7]


async def test_the_process_sends_rounds_and_ends_cleanly_on_sigterm(valkey, tmp_path):
    async with (
        http_server(answering({"/pdd/v1/node": NODE})) as url,
        Redis.from_url(valkey.url) as redis,
    ):
        config = tmp_path / "observer.json"
        config.write_text(json.dumps({"nodes": [{"name": "n", "role": "relay", "url": url}], "links": []}))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "engine_agents.observer", "--site", "ams", "--config", str(config)),
            env={**os.environ, "PDD_REDIS_URL": valkey.url},
            stderr=asyncio.subprocess.PIPE,
        )
        stream = SAMPLES_STREAM.format(site="ams")
        while await redis.xlen(stream) < 2:
            await asyncio.sleep(0.05)
        process.terminate()
        _, log = await process.communicate()
        assert (process.returncode, b"Traceback" in log) == (0, False)
        entries = await redis.xrange(stream)
    batches = [msgspec.msgpack.decode(fields[BATCH_FIELD.encode()], type=SampleBatch) for _, fields in entries]
    assert [batch.sequence for batch in batches][:2] == [1, 2]
    assert {(batch.observer, batch.nodes[0].running) for batch in batches} == {("ams-observer", 2)}
