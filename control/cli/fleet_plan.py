"""Decides what an embedded fleet consists of: its sites, nodes and link, and the processes that make it real. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from control.domain.addresses import LOOPBACK_NETWORKS
from control.domain.answer_parser import TOOL_PARSER_LABEL
from control.domain.topology import FleetSnapshot, Gateway, Link, Node, Role, Site

MODEL = "smollm2-135m"
BLOCK_TOKENS = 64
KV_BYTES_PER_TOKEN = 23_040
SITE_A, SITE_B = "ams", "fra"
SITES = (Site(SITE_A, "Amsterdam", LOOPBACK_NETWORKS), Site(SITE_B, "Frankfurt", LOOPBACK_NETWORKS))
LINK = "ams-fra"
LINK_BYTES_PER_S = 5_000_000.0
FLOW_CAP_BYTES_PER_S = 1_500_000.0
ROUND_TRIP_S = 0.03
NODES = (("ams-p-01", SITE_A, Role.PREFILL), ("ams-rld-01", SITE_A, Role.RELAY), ("fra-md-01", SITE_B, Role.MAIN))
GATEWAY = "ams-gw-01"
# Processes that serve nothing but their metrics.
METRICS_ONLY = ("worker", "telemetry", *(f"{kind}-{site.name}" for site in SITES for kind in ("agent", "observer")))


class Engine(StrEnum):
    """What the nodes are made of."""

    LLAMA = "llama"
    EMULATED = "emulated"


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """What the operator chose."""

    data_dir: Path
    engine: Engine = Engine.LLAMA
    host: str = "127.0.0.1"
    web_port: int = 8080
    gateway_port: int = 8000
    demo: bool = True
    follow_parent: bool = False

    @property
    def web_url(self) -> str:
        """The dashboard's address for this machine."""
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def gateway_url(self) -> str:
        """The gateway's address for this machine, without `/v1`."""
        return f"http://127.0.0.1:{self.gateway_port}"


def port_names(engine: Engine) -> list[str]:
    """The internal ports a fleet needs, by name."""
    hosts = [name for name, _, _ in NODES] if engine is Engine.LLAMA else ["nodes"]
    kv = [f"{name}.kv" for name, _, _ in NODES]
    metrics = [f"{name}.metrics" for name in METRICS_ONLY]
    return ["valkey", "wan", "wan.admin", *hosts, *kv, *metrics]


def plan_fleet(options: FleetOptions, ports: dict[str, int]) -> FleetSnapshot:
    """The fleet as the gateway and the control plane will know it."""

    def url(name: str) -> str:
        if options.engine is Engine.LLAMA:
            return f"http://127.0.0.1:{ports[name]}"
        return f"http://127.0.0.1:{ports['nodes']}/nodes/{name}"

    return FleetSnapshot(
        sites=SITES,
        nodes=tuple(Node(name, site, role, url(name), options.engine.value, MODEL) for name, site, role in NODES),
        links=(
            Link(
                LINK,
                SITE_A,
                SITE_B,
                LINK_BYTES_PER_S,
                ROUND_TRIP_S,
                FLOW_CAP_BYTES_PER_S,
                "127.0.0.1",
                ports["wan"],
                f"http://127.0.0.1:{ports['wan.admin']}",
            ),
        ),
        gateways=(Gateway(GATEWAY, SITE_A, options.gateway_url),),
        model=MODEL,
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        block_tokens=BLOCK_TOKENS,
        labels={TOOL_PARSER_LABEL: "hermes"},
    )


def links_document(fleet: FleetSnapshot) -> dict[str, Any]:
    """The WAN relay's configuration."""
    return {
        "links": [
            {
                "name": link.name,
                "source": link.source,
                "target": link.target,
                "capacity_bytes_per_s": link.capacity_bytes_per_s,
                "flow_cap_bytes_per_s": link.flow_cap_bytes_per_s,
                "rtt_s": link.rtt_s,
            }
            for link in fleet.links
        ]
    }


def emulated_document(fleet: FleetSnapshot, ports: dict[str, int]) -> dict[str, Any]:
    """The emulated nodes' configuration: chips that decode as fast as a small model on one core.

    A chunk of theirs takes at least as long as one of 64 tokens, so smaller last chunks are joined.
    """
    speed = {
        "prefill_tokens_per_s": 2000.0,
        "prefill_floor_s": 0.032,
        "prefill_chunk_tokens": 256,
        "tail_chunk_min_tokens": 64,
        "decode_step_s": 0.022,
        "decode_step_per_request_s": 0.001,
        "kv_bytes_per_token": fleet.kv_bytes_per_token,
    }
    return {
        "model": fleet.model,
        "nodes": [
            {"name": node.name, "kv_port": ports[f"{node.name}.kv"], "chip": {"slots": node.slots, **speed}}
            for node in fleet.nodes
        ],
    }
