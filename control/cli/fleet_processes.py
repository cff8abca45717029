"""Decides which processes make an embedded fleet real, and what each is told. Pure."""

from dataclasses import dataclass

from control.cli.data_folder import Secrets
from control.cli.fleet_plan import SITES, Engine, FleetOptions
from control.cli.process_spec import HttpProbe, LogProbe, ProcessSpec
from control.domain.topology import FleetSnapshot

VALKEY = "valkey"
_CELERY_OPTIONS = ("--loglevel=INFO", "--without-gossip", "--without-mingle", "--without-heartbeat")
_CELERY_READY = LogProbe(" ready.")


@dataclass(frozen=True, slots=True)
class Commands:
    """Programs that the processes are made of."""

    python: str
    valkey: str

    def module(self, name: str, *arguments: object) -> tuple[str, ...]:
        """A Python module run as a program."""
        return (self.python, "-m", name, *map(str, arguments))


def site_environment(options: FleetOptions, secrets: Secrets, ports: dict[str, int]) -> dict[str, str]:
    """What a process at a site is told: nothing about SQL or sessions."""
    return {
        "PDD_DATA_DIR": str(options.data_dir),
        "PDD_REDIS_URL": f"redis://:{secrets.redis_password}@127.0.0.1:{ports[VALKEY]}/0",
        "PDD_CONTROL_URL": options.web_url,
        "PDD_SITE_SECRET": secrets.site_secret,
        "PYTHONUNBUFFERED": "1",
    }


def metrics_environment(name: str, ports: dict[str, int]) -> dict[str, str]:
    """Where a process that serves nothing else serves its metrics."""
    return {"PDD_METRICS_ADDRESS": f"127.0.0.1:{ports[f'{name}.metrics']}"}


def control_environment(options: FleetOptions, secrets: Secrets, ports: dict[str, int]) -> dict[str, str]:
    """What a process of the control plane is told."""
    return {
        **site_environment(options, secrets, ports),
        "PDD_DATABASE_URL": f"sqlite:///{options.data_dir / 'pdd.sqlite3'}",
        "PDD_SESSION_SECRET": secrets.session_secret,
        "PDD_WEB_HOST": options.host,
        "PDD_WEB_PORT": str(options.web_port),
    }


def store_process(options: FleetOptions, commands: Commands) -> ProcessSpec:
    """Valkey: broker, streams and live feed. It stops last."""
    argv = (commands.valkey, str(options.data_dir / "valkey" / "valkey.conf"))
    return ProcessSpec(VALKEY, argv, probe=LogProbe("Ready to accept connections"), stop_wave=0)


def node_processes(
    options: FleetOptions, fleet: FleetSnapshot, commands: Commands, secrets: Secrets, ports: dict[str, int]
) -> list[ProcessSpec]:
    """The engines: one process per llama node, or one for all emulated nodes."""
    environment = site_environment(options, secrets, ports)
    if options.engine is Engine.EMULATED:
        config = options.data_dir / "nodes.json"
        argv = commands.module("engine_agents.nodes.emulated", "--config", config, "--port", ports["nodes"])
        probe = HttpProbe(f"{fleet.nodes[0].url}/health")
        return [ProcessSpec("nodes", argv, environment, probe)]
    return [
        ProcessSpec(
            node.name,
            commands.module(
                "engine_agents.nodes.llama",
                "--host",
                "127.0.0.1",
                "--port",
                ports[node.name],
                "--kv-port",
                ports[f"{node.name}.kv"],
                "--name",
                node.name,
            ),
            {**environment, "OMP_WAIT_POLICY": "PASSIVE"},
            HttpProbe(f"{node.url}/health"),
        )
        for node in fleet.nodes
    ]


def site_processes(
    options: FleetOptions, fleet: FleetSnapshot, commands: Commands, secrets: Secrets, ports: dict[str, int]
) -> list[ProcessSpec]:
    """Everything else that runs at the sites: WAN relay, gateway, agents, observers."""
    environment = site_environment(options, secrets, ports)
    gateway = fleet.gateways[0]
    wan = commands.module(
        "engine_agents.wan",
        "--port",
        ports["wan"],
        "--admin-port",
        ports["wan.admin"],
        "--config",
        options.data_dir / "links.json",
    )
    processes = [
        ProcessSpec("wan", wan, environment, HttpProbe(f"http://127.0.0.1:{ports['wan.admin']}/health")),
        ProcessSpec(
            "gateway",
            commands.module(
                "engine_agents.gateway",
                "--host",
                options.host,
                "--port",
                options.gateway_port,
                "--site",
                gateway.site,
                "--name",
                gateway.name,
            ),
            environment,
            HttpProbe(f"{options.gateway_url}/health"),
        ),
    ]
    for site in fleet.sites:
        agent = commands.module(
            "celery",
            "-A",
            "engine_agents.tasks",
            "worker",
            "-Q",
            f"site.{site.name}",
            "-n",
            f"agent-{site.name}@pdd",
            *_CELERY_OPTIONS,
        )
        processes.append(
            ProcessSpec(
                f"agent-{site.name}",
                agent,
                environment | metrics_environment(f"agent-{site.name}", ports),
                _CELERY_READY,
                needs=(VALKEY,),
            )
        )
        processes.append(
            ProcessSpec(
                f"observer-{site.name}",
                commands.module("engine_agents.observer", "--site", site.name),
                environment | metrics_environment(f"observer-{site.name}", ports),
                needs=(VALKEY,),
            )
        )
    return processes


def control_processes(
    options: FleetOptions, commands: Commands, secrets: Secrets, ports: dict[str, int]
) -> list[ProcessSpec]:
    """The control plane and the page."""
    environment = control_environment(options, secrets, ports)
    sites = [part for site in SITES for part in ("--site", site.name)]
    worker = commands.module(
        "celery", "-A", "control.worker", "worker", "-B", "-Q", "control", "-n", "control@pdd", *_CELERY_OPTIONS
    )
    return [
        ProcessSpec("web", commands.module("webapp"), environment, HttpProbe(f"{options.web_url}/health"), (VALKEY,)),
        ProcessSpec(
            "worker", worker, environment | metrics_environment("worker", ports), _CELERY_READY, needs=(VALKEY,)
        ),
        ProcessSpec(
            "telemetry",
            commands.module("control.telemetry.ingest", *sites),
            environment | metrics_environment("telemetry", ports),
            needs=(VALKEY,),
        ),
    ]


def demo_process(options: FleetOptions, commands: Commands, secrets: Secrets, ports: dict[str, int]) -> ProcessSpec:
    """The demo traffic, which the page can stop and start."""
    # The emulated tokenizer makes about three tokens of what a real one makes one of.
    scale = 1.0 if options.engine is Engine.LLAMA else 0.35
    url = f"{options.gateway_url}/v1"
    argv = commands.module("control.cli.main", "load", url, "--demo", "--sessions", 2, "--scale", scale)
    return ProcessSpec("demo", argv, site_environment(options, secrets, ports), stop_wave=2)
