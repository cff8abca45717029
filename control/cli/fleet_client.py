"""A thin client of the control plane's REST API, for commands on the operator's machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from control.cli.data_folder import DataFolder
from control.cli.errors import CommandError

_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class FleetAddress:
    """Where a fleet answers, and the token that opens its control plane."""

    web_url: str
    gateway_url: str
    token: str


def find_fleet(data_dir: Path, web_url: str | None = None, gateway_url: str | None = None) -> FleetAddress:
    """The fleet that runs from a data folder; given addresses win over the announced ones.

    Raises:
        CommandError: no fleet has been announced there, or its token cannot be read.
    """
    folder = DataFolder(data_dir)
    running = folder.running()
    if running is None and not (web_url and gateway_url):
        raise CommandError(f"No fleet runs from {folder.path}: start one (make up), or name its folder: --data")
    try:
        token = folder.operator_token.read_text().strip()
    except OSError as error:
        raise CommandError(f"Cannot read the operator token {folder.operator_token}: {error.strerror}") from error
    return FleetAddress(
        web_url=web_url or (running.web_url if running else ""),
        gateway_url=gateway_url or (running.gateway_url if running else ""),
        token=token,
    )


def call_api(
    address: FleetAddress, method: str, path: str, body: dict[str, Any] | None = None, **headers: str
) -> dict[str, Any]:
    """One call of `/api/v1`; the decoded reply.

    Raises:
        CommandError: nothing answers, or the call was refused; the text is the problem's own.
    """
    document: dict[str, Any] = send_request(address, method, path, json=body, headers=headers).json()
    return document


def send_request(
    address: FleetAddress,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = _TIMEOUT_S,
    **more: Any,
) -> httpx.Response:
    """One call of `/api/v1`; the reply with its headers. `more` goes to the HTTP client as it is.

    Raises:
        CommandError: nothing answers, or the call was refused; the text is the problem's own.
    """
    try:
        response = httpx.request(
            method,
            f"{address.web_url}/api/v1{path}",
            headers={"Authorization": f"Bearer {address.token}", **(headers or {})},
            timeout=timeout_s,
            trust_env=False,
            **more,
        )
    except httpx.HTTPError as error:
        raise CommandError(f"The control plane at {address.web_url} does not answer: {error}") from error
    if response.is_error:
        raise CommandError(_problem_text(response))
    return response


def fetch_all(address: FleetAddress, path: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Every item of a list, part by part.

    Raises:
        CommandError: the control plane cannot be asked.
    """
    items: list[dict[str, Any]] = []
    query = dict(params or {})
    while True:
        part = send_request(address, "GET", path, params=query).json()
        items += part["items"]
        if part["next_cursor"] is None:
            return items
        query["cursor"] = part["next_cursor"]


def fetch_nodes(address: FleetAddress) -> list[dict[str, Any]]:
    """All nodes of the fleet, each with `name`, `url`, `role` and `model`.

    Raises:
        CommandError: the control plane cannot be asked.
    """
    return fetch_all(address, "/nodes")


def fetch_policy(address: FleetAddress) -> dict[str, Any]:
    """The active policy document.

    Raises:
        CommandError: the control plane cannot be asked.
    """
    document: dict[str, Any] = call_api(address, "GET", "/policies/active")["document"]
    return document


def _problem_text(response: httpx.Response) -> str:
    try:
        problem = response.json()
        lines = [f"{problem.get('title', 'Refused')} ({response.status_code}): {problem.get('detail', '')}"]
        lines += [f"  {error['path']}: {error['message']}" for error in problem.get("errors", ())]
        return "\n".join(lines)
    except ValueError:
        return f"The control plane refused with {response.status_code}"
