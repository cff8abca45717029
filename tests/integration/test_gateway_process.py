"""The gateway as a process: it says when it is ready, keeps its configuration, and sends its records to Redis."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import httpx
import msgspec
from redis.asyncio import Redis

from control.domain.policy import DEFAULT_POLICY_DOCUMENT
from control.telemetry.records import BATCH_FIELD, REQUESTS_STREAM, RequestBatch
from tests.fleet import MODEL, SECRET, prompt_of
from tests.gateways import gateway_rig
from tests.services import free_port, valkey  # noqa: F401

ROOT = Path(__file__).parents[2]
HEADERS = {"Authorization": f"Bearer {SECRET}"}


@contextlib.asynccontextmanager
async def gateway_process(data_dir, redis_url, port=0):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engine_agents.gateway", "--port", str(port), "--site", "ams", "--name", "ams-gw-01"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PDD_DATA_DIR": str(data_dir), "PDD_REDIS_URL": redis_url, "PDD_SITE_SECRET": SECRET},
        cwd=ROOT,
    )
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
        assert line.startswith("ready http://127.0.0.1:")
        yield process, line.split()[1]
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), 15)


async def batches(redis_url):
    async with Redis.from_url(redis_url) as redis:
        entries = await redis.xrange(REQUESTS_STREAM.format(site="ams"))
    return [msgspec.msgpack.decode(fields[BATCH_FIELD.encode()], type=RequestBatch) for _, fields in entries]


async def records_in(redis_url, count):
    async with asyncio.timeout(20):
        while True:
            records = [record for batch in await batches(redis_url) for record in batch.records]
            if len(records) >= count:
                return records
            await asyncio.sleep(0.05)


async def complete(http, url, seed):
    body = {"model": MODEL, "prompt": prompt_of(50, seed), "max_tokens": 4, "temperature": 0}
    response = await http.post(f"{url}/v1/completions", json=body, headers={"X-Request-Id": f"request-{seed}"})
    assert response.status_code == 200, response.text


async def test_serves_after_a_restart_without_control_and_without_redis(tmp_path, valkey):  # noqa: F811
    async with gateway_rig(tmp_path / "rig") as rig:
        document = {"revision": 7, "policy": DEFAULT_POLICY_DOCUMENT, "fleet": rig.fleet().to_document()}
        async with gateway_process(tmp_path, valkey.url) as (_, url):
            assert (await rig.http.get(f"{url}/health")).status_code == 503
            applied = await rig.http.put(f"{url}/admin/v1/config", json=document, headers=HEADERS)
            assert applied.json()["revision"] == 7
            await complete(rig.http, url, 1)
            await records_in(valkey.url, 1)
        await valkey.stop()
        async with gateway_process(tmp_path, valkey.url) as (_, url):
            await complete(rig.http, url, 2)
            spool = tmp_path / "gateway" / "spool"
            async with asyncio.timeout(20):
                while not list(spool.glob("*.batch")):
                    await asyncio.sleep(0.05)
            await valkey.start()
            records = await records_in(valkey.url, 2)
    assert [record.request_id for record in records] == ["request-1", "request-2"]
    assert {record.policy_revision for record in records} == {7}
    keys = [(batch.gateway, batch.epoch, batch.sequence) for batch in await batches(valkey.url)]
    assert len(keys) == len(set(keys))


async def test_an_idle_gateway_sends_heartbeats(tmp_path, valkey):  # noqa: F811
    async with gateway_process(tmp_path, valkey.url), asyncio.timeout(20):
        while len(await batches(valkey.url)) < 2:
            await asyncio.sleep(0.05)
    assert all(batch.records == () for batch in await batches(valkey.url))


async def test_a_taken_port_is_named(tmp_path):
    port = free_port()
    async with gateway_process(tmp_path, "redis://127.0.0.1:1/0", port):
        second = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "engine_agents.gateway", "--port", str(port), "--site", "ams", "--name", "two"),
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PDD_DATA_DIR": str(tmp_path / "two")},
            cwd=ROOT,
        )
        _, errors = await asyncio.wait_for(second.communicate(), 20)
    assert second.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in errors.decode()


async def test_an_open_stream_does_not_keep_it_from_stopping(tmp_path):
    async with gateway_rig(tmp_path / "rig", decode_step_s=0.02) as rig:
        document = {"revision": 1, "policy": DEFAULT_POLICY_DOCUMENT, "fleet": rig.fleet().to_document()}
        async with gateway_process(tmp_path, "redis://127.0.0.1:1/0") as (process, url):
            await rig.http.put(f"{url}/admin/v1/config", json=document, headers=HEADERS)
            body = {"model": MODEL, "prompt": prompt_of(50), "max_tokens": 20_000, "stream": True}
            async with rig.http.stream("POST", f"{url}/v1/completions", json=body) as response:
                lines = response.aiter_lines()
                assert (await anext(lines)).startswith("data: ")
                process.send_signal(signal.SIGTERM)
                await asyncio.wait_for(process.wait(), 15)
                with contextlib.suppress(httpx.RemoteProtocolError):
                    async for _ in lines:
                        pass
        assert process.returncode == 0
        assert await rig.settled() == {}
