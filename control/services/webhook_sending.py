"""Sends one signed message to one receiver, to the very address that was checked; follows no redirect."""

import asyncio
import json
import socket
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from control.domain.alert_messages import signature
from control.domain.webhook_targets import Address, Network, Target, first_allowed, parse_target

TIMEOUT_S = 3.0
TIMESTAMP_HEADER = "X-PDD-Timestamp"
SIGNATURE_HEADER = "X-PDD-Signature"
DELIVERY_HEADER = "X-PDD-Delivery"


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent where. `delivery` is the same each time it is sent again."""

    url: str
    secret: str
    delivery: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What came of it: the status, or an error where there was none."""

    status: int | None
    error: str = ""

    @property
    def is_delivered(self) -> bool:
        """Whether the receiver has taken it."""
        return self.status is not None and 200 <= self.status < 300


Post = Callable[[Message], Receipt]


def post_message(message: Message, networks: Sequence[Network], now_s: float) -> Receipt:
    """Send it and wait for the status, `TIMEOUT_S` at most for all of it; the answer's body is not read.

    Call it where no event loop runs.
    """
    try:
        return asyncio.run(_post_in_time(message, networks, now_s))
    except TimeoutError:
        return Receipt(None, f"took longer than {TIMEOUT_S:g} s")
    except (httpx.HTTPError, ssl.SSLError) as error:
        return Receipt(None, type(error).__name__)
    except OSError:
        return Receipt(None, "The host's name cannot be resolved.")
    except ValueError as error:
        return Receipt(None, str(error))


async def _post_in_time(message: Message, networks: Sequence[Network], now_s: float) -> Receipt:
    async with asyncio.timeout(TIMEOUT_S):
        target = parse_target(message.url)
        address = first_allowed(await _resolve(target), networks)
        return await _post(message, target, address, int(now_s))


async def _post(message: Message, target: Target, address: Address, timestamp: int) -> Receipt:
    body = json.dumps(message.body, separators=(",", ":")).encode()
    headers = {
        "Host": target.authority,
        "Content-Type": "application/json",
        "User-Agent": "pdd-alerts",
        TIMESTAMP_HEADER: str(timestamp),
        SIGNATURE_HEADER: f"sha256={signature(message.secret, timestamp, body)}",
        DELIVERY_HEADER: message.delivery,
    }
    host = f"[{address}]" if address.version == 6 else str(address)
    url = f"{target.scheme}://{host}:{target.port}{target.path}"
    # The certificate is that of the name, although the connection goes to the address.
    extensions = {"sni_hostname": target.host}
    async with (
        httpx.AsyncClient(verify=target.scheme == "https", trust_env=False, follow_redirects=False) as client,
        client.stream("POST", url, content=body, headers=headers, extensions=extensions) as response,
    ):
        return Receipt(response.status_code, "" if response.is_success else f"answered {response.status_code}")


async def _resolve(target: Target) -> list[str]:
    """A host's addresses. In a thread that nobody waits for, as a resolver may take its time."""
    resolver = ThreadPoolExecutor(1, thread_name_prefix="resolve")
    try:
        found = await asyncio.get_running_loop().run_in_executor(resolver, _look_up, target.host, target.port)
    finally:
        resolver.shutdown(wait=False)
    return [str(entry[4][0]) for entry in found]


def _look_up(host: str, port: int) -> list[Any]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
