"""Starts the few processes that a measurement needs: nodes, WAN relay and, where it is wanted, a configured gateway."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from control.cli.data_folder import Secrets, write_private
from control.cli.fleet_plan import LINK, Engine, FleetOptions, emulated_document, links_document, plan_fleet, port_names
from control.cli.fleet_processes import Commands, node_processes, site_processes
from control.cli.log_files import last_lines
from control.cli.ports import choose_ports
from control.cli.process_spec import TcpProbe
from control.cli.supervisor import Supervisor
from control.domain.topology import FleetSnapshot, Node, Role

ROOT = Path(__file__).resolve().parent.parent
BUSY_LOAD = 0.7
# What one core of the reference machine does with the embedded model, so that a trial without it has the same shape.
LLAMA_SPEED = {"prefill_tokens_per_s": 140.0, "decode_step_s": 0.024, "decode_step_per_request_s": 0.003}


@dataclass(frozen=True, slots=True)
class SmallFleet:
    """A running fleet without control plane, agents and Valkey, so that two cores serve the engines."""

    snapshot: FleetSnapshot
    site_secret: str
    logs: Path

    def end_of_log(self, process: str) -> str:
        """The last lines that a process has logged."""
        return "\n".join(f"    {line}" for line in last_lines(self.logs / f"{process}.log"))

    @property
    def gateway_url(self) -> str:
        """The gateway's base address, without `/v1`."""
        return self.snapshot.gateways[0].url

    def node(self, role: Role) -> Node:
        """The only node of a role."""
        return self.snapshot.nodes_of(role)[0]

    @property
    def authorization(self) -> dict[str, str]:
        """The header that the admin APIs of gateway, relay and nodes want."""
        return {"Authorization": f"Bearer {self.site_secret}"}

    async def configure(self, http: aiohttp.ClientSession, policy: Mapping[str, Any]) -> None:
        """Give the gateway the fleet and a policy document."""
        config = {"revision": 1, "policy": policy, "fleet": self.snapshot.to_document()}
        url = f"{self.gateway_url}/admin/v1/config"
        async with http.put(url, json=config, headers=self.authorization) as response:
            response.raise_for_status()

    async def fetch_link(self, http: aiohttp.ClientSession) -> dict[str, Any]:
        """The WAN relay's counters of the link."""
        async with http.get(f"{self.snapshot.links[0].admin_url}/links") as response:
            response.raise_for_status()
            links: list[dict[str, Any]] = await response.json()
        return next(link for link in links if link["name"] == LINK)

    async def change_link(self, http: aiohttp.ClientSession, **fields: float) -> None:
        """Change the link's shape while it carries transfers."""
        url = f"{self.snapshot.links[0].admin_url}/links/{LINK}"
        async with http.put(url, json=fields, headers=self.authorization) as response:
            response.raise_for_status()

    async def fetch_quiet_link(self, http: aiohttp.ClientSession) -> dict[str, Any]:
        """The counters once every transfer has ended, those that outlive their request too."""
        while (link := await self.fetch_link(http))["flows"]:  # noqa: ASYNC110 - another process ends them
            await asyncio.sleep(0.2)
        return link


@asynccontextmanager
async def running_fleet(
    engine: Engine, *, main_site: str, roles: tuple[Role, ...] = tuple(Role), with_gateway: bool = True
) -> AsyncIterator[SmallFleet]:
    """A fleet with cold caches whose main decode stands at the given site; it ends with the context.

    Raises:
        CommandError: a process did not come up; the text holds the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="pdd-bench-") as name:
        folder = Path(name)
        ports = choose_ports([*port_names(engine), "gateway"], {})
        options = FleetOptions(data_dir=folder, engine=engine, gateway_port=ports["gateway"])
        snapshot = _placed(plan_fleet(options, ports), main_site, roles)
        write_private(folder / "links.json", json.dumps(links_document(snapshot)))
        if engine is Engine.EMULATED:
            write_private(folder / "nodes.json", json.dumps(_emulated_nodes(snapshot, ports)))
        secrets, commands = Secrets.fresh(), Commands(sys.executable, "")
        wanted = {"wan", "gateway"} if with_gateway else {"wan"}
        specs = [
            *node_processes(options, snapshot, commands, secrets, ports),
            *(
                # A gateway is healthy only once it is configured, which needs the nodes to be up first.
                replace(spec, probe=TcpProbe(options.gateway_port)) if spec.name == "gateway" else spec
                for spec in site_processes(options, snapshot, commands, secrets, ports)
                if spec.name in wanted
            ),
        ]
        logs = folder / "logs"
        logs.mkdir()
        supervisor = Supervisor(ROOT, logs, _base_environment(), say)
        try:
            await supervisor.start(specs)
            yield SmallFleet(snapshot, secrets.site_secret, logs)
        finally:
            await supervisor.stop()


def say(text: str) -> None:
    """Tell whoever watches; the report alone goes to standard output."""
    print(text, file=sys.stderr, flush=True)


def tell_if_busy() -> None:
    """A machine that works on something else gives figures about that."""
    load = os.getloadavg()[0]
    if load > BUSY_LOAD:
        say(f"this machine is busy (load {load:.1f}): the figures will say more about that than about the fleet")


def _placed(snapshot: FleetSnapshot, main_site: str, roles: tuple[Role, ...]) -> FleetSnapshot:
    nodes = tuple(
        replace(node, site=main_site) if node.role is Role.MAIN else node
        for node in snapshot.nodes
        if node.role in roles
    )
    return replace(snapshot, nodes=nodes)


def _emulated_nodes(snapshot: FleetSnapshot, ports: dict[str, int]) -> dict[str, Any]:
    document = emulated_document(snapshot, ports)
    return {**document, "nodes": [{**node, "chip": node["chip"] | LLAMA_SPEED} for node in document["nodes"]]}


def _base_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PDD_")}
