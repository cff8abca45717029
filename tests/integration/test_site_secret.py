"""A site's agent gives real programs a new secret over HTTP, each of which keeps its own."""

import asyncio
import time
from contextlib import asynccontextmanager

import httpx
import pytest
from aiohttp import web

from control.site_secret import RotationOrder, SiteSecret
from engine_agents.tasks.secrets import tell
from engine_agents.wan.admin import build_admin_app
from tests.fleet import SECRET
from tests.gateways import gateway_rig
from tests.services import free_port

NEW, NEXT = "n" * 43, "x" * 43


@asynccontextmanager
async def relay_admin(relay):
    runner = web.AppRunner(build_admin_app(relay, SiteSecret(SECRET)), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
async def addresses(tmp_path):
    """Where a gateway, a node and a relay take a new secret; the last one has never heard of one."""
    async with gateway_rig(tmp_path) as rig, relay_admin(rig.relay) as relay_url:
        node = rig.nodes["ams-p-01"].url
        yield f"{rig.url}/admin/v1/secret", f"{node}/pdd/v1/secret", f"{relay_url}/secret"


def order(secret, rotation, grace_s=600.0):
    return RotationOrder(secret, time.time() + grace_s, rotation)


async def put(url, secret, body):
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.put(url, headers={"Authorization": f"Bearer {secret}"}, json=body)


async def test_each_program_takes_the_new_secret_once_and_no_older_one_makes_the_next(addresses):
    agent = SiteSecret(SECRET)
    agent.rotate(NEW, time.time() + 600.0, 1)
    for url in addresses:
        for _ in range(2):
            assert await asyncio.to_thread(tell, url, order(NEW, 1), agent) == ""
        body = {"secret": NEXT, "previous_until_s": time.time() + 600.0, "rotation": 2}
        assert (await put(url, SECRET, body)).status_code == 401
        assert (await put(url, "somebody's", body)).status_code == 401
        assert (await put(url, NEW, {**body, "secret": "weak"})).status_code == 400
        assert (await put(url, NEW, {"secret": NEXT})).status_code == 400


async def test_the_old_secret_still_opens_the_rest_until_its_time_is_over(addresses):
    config = addresses[0].replace("secret", "config")
    agent = SiteSecret(SECRET)
    agent.rotate(NEW, time.time() + 600.0, 1)
    await asyncio.to_thread(tell, addresses[0], order(NEW, 1), agent)
    async with httpx.AsyncClient(trust_env=False) as http:
        for secret, status in ((SECRET, 200), (NEW, 200), ("somebody's", 401)):
            answer = await http.get(config, headers={"Authorization": f"Bearer {secret}"})
            assert answer.status_code == status


async def test_a_program_that_missed_a_rotation_is_brought_on_by_the_secret_it_is_on(addresses):
    agent = SiteSecret(SECRET)
    agent.rotate(NEW, 0.0, 1)
    await asyncio.to_thread(tell, addresses[0], order(NEW, 1, grace_s=-1.0), agent)
    agent.rotate(NEXT, 0.0, 2)
    for url in addresses:
        assert await asyncio.to_thread(tell, url, order(NEXT, 2), agent) == ""


async def test_what_cannot_be_told_is_said_and_what_has_no_secret_counts_as_told(addresses):
    agent = SiteSecret("another fleet's")
    for url in addresses:
        assert "restart it with the new one" in await asyncio.to_thread(tell, url, order(NEW, 1), agent)
    assert "ConnectError" in await asyncio.to_thread(
        tell, f"http://127.0.0.1:{free_port()}/secret", order(NEW, 1), agent
    )
    assert await asyncio.to_thread(tell, f"{addresses[1]}/elsewhere", order(NEW, 1), SiteSecret(SECRET)) == ""
