"""A whole small fleet for tests: emulated nodes, a WAN relay and a gateway, all in this event loop on loopback.

::

    async with gateway_rig() as rig:
        await rig.configure({"routing.relay_when_transfer_exceeds_s": 0.0})
        answer = await rig.complete(prompt_of(300), max_tokens=40)
        answer.token_ids, answer.text, answer.explained["pipeline"]
        rig.link.reshape({"paused": True})     # KV stops crossing, so a relayed request stays on its relay

Sites `ams` (P, two RLD) and `fra` (two MD), link `ams-fra`. `rig.alone(prompt, …)` is the answer of one node that
shares nothing with the fleet: what every pipeline must equal.
"""

import asyncio
import ipaddress
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from control.domain.policy import DEFAULT_POLICY_DOCUMENT, apply_changes
from control.domain.topology import FleetSnapshot, Link, Node, Role, Site
from control.site_secret import SiteSecret
from control.telemetry.records import RequestRecord
from control.tracing import Tracing
from engine_agents.gateway.app import GatewayApp
from engine_agents.gateway.gateway import Gateway
from engine_agents.gateway.http_server import serving
from engine_agents.gateway.node_client import Deadlines
from engine_agents.gateway.server import listen, running_gateway
from engine_agents.nodes.emulated.config import EmulatedNode
from engine_agents.wan.link import ShapedLink
from engine_agents.wan.relay import Relay
from engine_agents.wan.shaping import LinkShape
from tests.fleet import MODEL, SECRET, NodeClient, emulated_fleet, http_client, instant_node

KV_BYTES_PER_TOKEN = 64
SETTLE_S = 20.0
RELAY_ALWAYS = {"routing.relay_when_transfer_exceeds_s": 0.0, "routing.direct_hit_rate": None}
DIRECT_ALWAYS = {"routing.relay_when_transfer_exceeds_s": 600.0}
ONE_SHOT = {**RELAY_ALWAYS, "handoff.mode": "one_shot"}
OUTLIER = {**RELAY_ALWAYS, "outlier.min_uncached_tokens": 1, "outlier.max_output_tokens": 10_000}
CATCH_UP = {**RELAY_ALWAYS, "handoff.mode": "catch_up", "handoff.catch_up_batch_tokens": 4}

_COUNTED_IN_GATEWAY = (
    "requests_in_flight",
    "leases",
    "transfers",
    "link_transfers",
    "transfers_in_background",
    "tasks",
)


@dataclass
class Answered:
    """What the gateway said to one request."""

    status: int
    headers: dict[str, str]
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    explained: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)
    chunks: list[dict[str, Any]] = field(default_factory=list)
    is_done: bool = False

    def take(self, chunk: dict[str, Any]) -> None:
        """Add a chunk of a stream."""
        self.chunks.append(chunk)
        self.error = chunk.get("error", self.error)
        self.usage = chunk.get("usage") or self.usage
        self.explained = chunk.get("pdd") or self.explained
        for choice in chunk.get("choices", ()):
            self.text += choice["text"]
            self.token_ids += choice.get("token_ids", ())
            self.finish_reason = choice["finish_reason"] or self.finish_reason


class KeptStream:
    """Where a rig's telemetry goes."""

    async def send(self, data: bytes) -> None:
        pass

    async def close(self) -> None:
        pass


@dataclass
class Rig:
    """A running fleet with its gateway."""

    url: str
    gateway: Gateway
    nodes: dict[str, NodeClient]
    link: ShapedLink
    relay: Relay
    relay_address: tuple[str, int]
    http: httpx.AsyncClient
    records: list[RequestRecord] = field(default_factory=list)
    revision: int = 0

    def fleet(self, urls: dict[str, str] | None = None, engine: str = "emulated") -> FleetSnapshot:
        """The fleet document; `urls` replaces addresses of nodes, `engine` is what they are taken for."""
        host, port = self.relay_address
        roles = {"ams-p": Role.PREFILL, "ams-rld": Role.RELAY, "fra-md": Role.MAIN}
        nodes = tuple(
            Node(
                name,
                name[:3],
                roles[name.rsplit("-", 1)[0]],
                (urls or {}).get(name, client.url),
                engine,
                MODEL,
                slots=client.node.engine.slots,
            )
            for name, client in self.nodes.items()
            if name != "alone"
        )
        return FleetSnapshot(
            sites=(Site("ams"), Site("fra")),
            nodes=nodes,
            links=(Link("ams-fra", "ams", "fra", 5e6, 0.002, 1.5e6, host, port),),
            model=MODEL,
            kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        )

    async def put_config(
        self,
        policy: dict[str, Any],
        fleet: FleetSnapshot,
        revision: int | None = None,
        canary: dict[str, Any] | None = None,
        **params: Any,
    ) -> httpx.Response:
        """PUT /admin/v1/config."""
        self.revision += 1
        document = {"revision": revision or self.revision, "policy": policy, "fleet": fleet.to_document()}
        document["canary"] = canary
        headers = {"Authorization": f"Bearer {SECRET}"}
        return await self.http.put(f"{self.url}/admin/v1/config", json=document, headers=headers, params=params)

    async def configure(
        self, changes: dict[str, Any], urls: dict[str, str] | None = None, engine: str = "emulated"
    ) -> None:
        """Run on the default policy with changes."""
        response = await self.put_config(apply_changes(DEFAULT_POLICY_DOCUMENT, changes), self.fleet(urls, engine))
        assert response.status_code == 200, response.text

    def body(self, prompt: Sequence[int] | str, **fields: Any) -> dict[str, Any]:
        """A completion request at temperature 0."""
        text = prompt if isinstance(prompt, str) else list(prompt)
        return {"model": MODEL, "prompt": text, "temperature": 0, "return_token_ids": True, **fields}

    async def complete(self, prompt: Sequence[int] | str, **fields: Any) -> Answered:
        """An answer in one body."""
        response = await self.http.post(
            f"{self.url}/v1/completions", json=self.body(prompt, **fields), headers={"X-PDD-Explain": "1"}
        )
        answer = Answered(response.status_code, dict(response.headers))
        document = response.json()
        if response.status_code == 200:
            answer.take(document)
        answer.error = document.get("error", {})
        return answer

    @asynccontextmanager
    async def open_stream(
        self, prompt: Sequence[int] | str, **fields: Any
    ) -> AsyncIterator[tuple[Answered, AsyncIterator[dict[str, Any]]]]:
        """A streamed answer as it grows; leaving the context closes the connection."""
        body = self.body(prompt, stream=True, **fields)
        headers = {"X-PDD-Explain": "1"}
        async with self.http.stream("POST", f"{self.url}/v1/completions", json=body, headers=headers) as response:
            answer = Answered(response.status_code, dict(response.headers))
            yield answer, _events(answer, response)

    async def stream(self, prompt: Sequence[int] | str, **fields: Any) -> Answered:
        """A streamed answer to its end."""
        async with self.open_stream(prompt, **fields) as (answer, events):
            async for _ in events:
                pass
        return answer

    async def relayed(self, prompt: Sequence[int], eager: int, **fields: Any) -> Answered:
        """A streamed answer whose KV is held up until the client has `eager` tokens of it."""
        self.link.reshape({"paused": True})
        async with self.open_stream(prompt, **fields) as (answer, events):
            async for _ in events:
                if len(answer.token_ids) >= eager:
                    break
            self.link.reshape({"paused": False})
            async for _ in events:
                pass
        return answer

    async def alone(self, prompt: Sequence[int], **fields: Any) -> tuple[list[int], str, str]:
        """Ids, text and finish reason of one node that shares nothing with the fleet."""
        reply = (await self.nodes["alone"].complete(prompt, **fields))["choices"][0]
        return reply["token_ids"], reply["text"], reply["finish_reason"]

    async def state(self) -> dict[str, Any]:
        """GET /admin/v1/state."""
        response = await self.http.get(f"{self.url}/admin/v1/state", headers={"Authorization": f"Bearer {SECRET}"})
        return response.json()

    async def busy(self) -> dict[str, Any]:
        """All that is not zero in the gateway, the nodes and the WAN relay."""
        state = await self.state()
        counts = {key: state[key] for key in _COUNTED_IN_GATEWAY}
        counts["link_queued_bytes"] = sum(state["link_queued_bytes"].values())
        counts["link_places"] = state["link_places"]
        counts["transfers_awaited"] = len(self.gateway.state.ends_of_transfers)
        counts |= {f"gateway:{name}": count for name, count in state["nodes"].items()}
        for name, client in self.nodes.items():
            node = client.node
            counts[f"admitted:{name}"] = node.admission.admitted
            counts[f"running:{name}"] = node.admission.running
            counts[f"waiting:{name}"] = node.admission.waiting
            counts[f"leases:{name}"] = len(node.leases)
            counts[f"flights:{name}"] = node.puller.blocks_in_flight
            counts[f"pulls:{name}"] = node.puller.running
            counts[f"kv_sessions:{name}"] = node.kv_server.sessions
            counts[f"pinned_bytes:{name}"] = node.engine.store.pinned_bytes
        counts["relay_handshakes"] = self.relay.handshakes
        counts["relay_transfers"] = len(self.link.transfers)
        counts["flows"] = len(self.link.flows)
        return {key: count for key, count in counts.items() if count}

    def transfers(self) -> set[str]:
        """Ids of the transfers on the link, each of which may have several flows."""
        return {flow.transfer.id for flow in self.link.flows}

    async def until(self, condition: Any) -> None:
        """Wait, generously, until something holds."""
        async with asyncio.timeout(SETTLE_S):
            while not condition():
                await asyncio.sleep(0.005)

    async def settled(self) -> dict[str, Any]:
        """What is still busy after a generous time; empty if all has come to rest."""
        deadline = asyncio.get_running_loop().time() + SETTLE_S
        while (busy := await self.busy()) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        return busy


async def _events(answer: Answered, response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    if response.status_code != 200:
        answer.error = json.loads(await response.aread())["error"]
        return
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            answer.is_done = True
        elif line.startswith("data: "):
            answer.take(json.loads(line.removeprefix("data: ")))
            yield answer.chunks[-1]


def rig_nodes(**fields: Any) -> list[EmulatedNode]:
    """The nodes of a rig; `fields` go to all of them."""
    names = ("ams-p-01", "ams-rld-01", "ams-rld-02", "fra-md-01", "fra-md-02", "alone")
    return [instant_node(name, **fields) for name in names]


@asynccontextmanager
async def serving_gateway(gateway: Gateway) -> AsyncIterator[str]:
    """The gateway's HTTP face on a free port; gives its URL."""
    listener = listen("127.0.0.1", 0)
    host, port = listener.getsockname()
    async with serving(GatewayApp(gateway, SiteSecret(SECRET)), listener):
        yield f"http://{host}:{port}"


@asynccontextmanager
async def gateway_rig(
    tmp_path: Path,
    nodes: list[EmulatedNode] | None = None,
    shape: LinkShape | None = None,
    *,
    tracing: Tracing | None = None,
    node_tracing: Tracing | None = None,
    **node_fields: Any,
) -> AsyncIterator[Rig]:
    """A fleet at rest, its gateway not yet configured. Relay decode takes 2 ms per token, so that it can be watched."""
    fields = {"decode_step_s": 0.002, **node_fields}
    link = ShapedLink("ams-fra", "ams", "fra", shape or LinkShape(capacity_bytes_per_s=1e9, rtt_s=0.002))
    relay = Relay([link], [ipaddress.ip_network("127.0.0.0/8")])
    address = await relay.start("127.0.0.1", 0)
    try:
        async with (
            emulated_fleet(*(nodes or rig_nodes(**fields)), tracing=node_tracing) as fleet,
            http_client() as http,
            running_gateway(
                "ams-gw-01",
                "ams",
                data_dir=tmp_path,
                site_secret=SiteSecret(SECRET),
                stream=KeptStream(),
                deadlines=Deadlines(connect_s=2.0, reply_s=30.0, gap_s=10.0),
                tracing=tracing,
            ) as gateway,
            serving_gateway(gateway) as url,
        ):
            rig = Rig(url, gateway, fleet, link, relay, address, http)
            keep = gateway.publisher.add

            def add(record: RequestRecord) -> None:
                rig.records.append(record)
                keep(record)

            gateway.publisher.add = add  # type: ignore[method-assign]
            yield rig
            link.reshape({"paused": False})
    finally:
        await relay.close()
