"""The client by which an agent calls what stands at its site."""

import ssl
from functools import cache

import httpx

from engine_agents.tasks.celery import site_secret

REQUEST_TIMEOUT_S = 3.0


def site_client(base_url: str, secret: str = "") -> httpx.Client:
    """A client that carries the site's secret, or another one that is given."""
    headers = {"Authorization": f"Bearer {secret or site_secret.current}"}
    return httpx.Client(
        base_url=base_url, headers=headers, timeout=REQUEST_TIMEOUT_S, trust_env=False, verify=_tls_context()
    )


@cache
def _tls_context() -> ssl.SSLContext:
    # Reading all certificates takes longer than the call itself, so they are read once.
    return httpx.create_ssl_context(trust_env=False)
