"""A process of emulated nodes, from the outside."""

import asyncio
import signal

import httpx
import msgspec
import pytest

from engine_agents.nodes.emulated.config import load_host
from tests.fleet import NodeClient, emulated_process, http_client, instant_node, prompt_of


async def test_one_process_hosts_many_nodes_and_ends_on_sigterm(tmp_path):
    async with http_client() as http, emulated_process(["a", "b"], tmp_path) as host:
        assert list(host.urls) == ["a", "b"]
        a, b = (NodeClient(host.urls[name], http) for name in ("a", "b"))
        prompt = prompt_of(100)
        alone = await b.complete(prompt, max_tokens=8, cache_salt="alone")
        pulled = await b.complete(prompt, max_tokens=8, kv_transfer_params=await a.lease(prompt))
        assert pulled["pdd"]["pulled_tokens"] == 100
        assert pulled["choices"] == alone["choices"]
        async with asyncio.timeout(10):
            while (await a.get("/pdd/v1/leases")).json()["leases"]:
                await asyncio.sleep(0.01)
        host.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await host.process.wait() == 0


async def test_a_stream_that_is_open_does_not_keep_the_process_alive(tmp_path):
    node = instant_node("slow", decode_step_s=0.05)
    async with http_client() as http, emulated_process([node], tmp_path) as host:
        client = NodeClient(host.urls["slow"], http)
        async with client.open_stream(prompt_of(10), max_tokens=10_000) as chunks:
            await anext(chunks)
            host.process.terminate()
            async with asyncio.timeout(10):
                assert await host.process.wait() == 0
            with pytest.raises((httpx.HTTPError, ConnectionError)):
                [chunk async for chunk in chunks]


def test_the_file_may_be_just_a_list_of_nodes(tmp_path):
    path = tmp_path / "nodes.json"
    path.write_text('[{"name": "a", "kv_port": 9101, "chip": {"slots": 2, "prefill_tokens_per_s": 1000}}]')
    host = load_host(path)
    (spec,) = host.specs()
    assert (spec.name, spec.kv_port, spec.engine.slots) == ("a", 9101, 2)
    assert host.host == "127.0.0.1"


@pytest.mark.parametrize("node", ['{"name": "a", "slots": 2}', '{"name": "a", "chip": {"slot": 2}}'])
def test_a_file_with_an_unknown_field_is_refused(tmp_path, node):
    path = tmp_path / "nodes.json"
    path.write_text(f"[{node}]")
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        load_host(path)
