"""One HTTP exchange of a driver: errors become the driver's own."""

from http import HTTPStatus
from typing import Any

import httpx

from engine_agents.drivers.driver import DriverError, StaleOrderError, UnreachableError, UnsupportedError

_ERROR_LENGTH = 200


def exchange(
    client: httpx.Client,
    method: str,
    path: str,
    *,
    json: Any = None,
    headers: dict[str, str] | None = None,
    timeout_s: float | None = None,
) -> Any:
    """The decoded reply; None where it is empty.

    Raises:
        UnreachableError: nothing listens there.
        StaleOrderError: 409, a newer order has come before.
        UnsupportedError: 501, this node cannot do it.
        DriverError: no answer, a refusal, or no JSON.
    """
    timeout = client.timeout if timeout_s is None else timeout_s
    try:
        reply = client.request(method, path, json=json, headers=headers, timeout=timeout)
    except httpx.ConnectError as error:
        raise UnreachableError(f"nothing listens at {client.base_url}") from error
    except httpx.HTTPError as error:
        raise DriverError(f"{type(error).__name__}: {error}") from error
    if reply.status_code == HTTPStatus.CONFLICT:
        raise StaleOrderError(_words_of(reply))
    if reply.status_code == HTTPStatus.NOT_IMPLEMENTED:
        raise UnsupportedError(_words_of(reply))
    if reply.is_error:
        raise DriverError(f"the node answered {reply.status_code}: {_words_of(reply)}")
    if not reply.content:
        return None
    try:
        return reply.json()
    except ValueError as error:
        raise DriverError("the node's answer is not JSON") from error


def _words_of(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"]["message"])[:_ERROR_LENGTH]
    except (ValueError, KeyError, TypeError):
        return reply.text[:_ERROR_LENGTH]
