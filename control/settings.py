"""Settings of a process, read once from the environment where the process is wired."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a process may be told from outside. Empty secrets switch the guarded routes off, never open."""

    data_dir: Path
    database_url: str
    redis_url: str
    control_url: str
    site_secret: str
    web_host: str = "127.0.0.1"
    web_port: int = 8080
    session_secret: str = ""
    webhook_networks: str = ""
    metrics_address: str = ""
    otlp_endpoint: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Read PDD_DATA_DIR, PDD_DATABASE_URL, PDD_REDIS_URL, PDD_CONTROL_URL, PDD_SITE_SECRET, PDD_SESSION_SECRET.

        OTEL_EXPORTER_OTLP_ENDPOINT is where traces go over OTLP/HTTP, such as http://127.0.0.1:4318; none by default.
        PDD_METRICS_ADDRESS is the host:port for /metrics of processes that serve nothing else; none by default.
        PDD_WEBHOOK_NETWORKS names private networks in CIDR notation that alerts may be sent to.

        Raises:
            ValueError: a number is not one.
        """
        data_dir = Path(environment.get("PDD_DATA_DIR", ".data")).absolute()
        return cls(
            data_dir=data_dir,
            database_url=environment.get("PDD_DATABASE_URL", f"sqlite:///{data_dir / 'pdd.sqlite3'}"),
            redis_url=environment.get("PDD_REDIS_URL", "redis://127.0.0.1:6379/0"),
            control_url=environment.get("PDD_CONTROL_URL", "http://127.0.0.1:8080"),
            site_secret=environment.get("PDD_SITE_SECRET", ""),
            web_host=environment.get("PDD_WEB_HOST", "127.0.0.1"),
            web_port=int(environment.get("PDD_WEB_PORT", "8080")),
            session_secret=environment.get("PDD_SESSION_SECRET", ""),
            webhook_networks=environment.get("PDD_WEBHOOK_NETWORKS", ""),
            metrics_address=environment.get("PDD_METRICS_ADDRESS", ""),
            otlp_endpoint=environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", ""),
        )
