"""`pdd leases`: KV that prefill nodes hold for consumers, and giving back what nobody reads."""

from pathlib import Path
from typing import Any

import httpx

from control.cli.data_folder import DataFolder
from control.cli.errors import CommandError

_TIMEOUT_S = 15.0


def ask_gateway(data_dir: Path, node: str, release_older_than_s: float | None) -> dict[str, Any]:
    """The leases of one prefill node, or of all where `node` is empty.

    With an age, unread leases at least as old are given back instead.

    Raises:
        CommandError: no fleet runs from the folder, or its gateway refused.
    """
    folder = DataFolder(data_dir)
    running = folder.running()
    if running is None:
        raise CommandError(f"No fleet runs from {folder.path}: start one (make up), or name its folder: --data")
    params: dict[str, str | float] = {"node": node} if node else {}
    if release_older_than_s is not None:
        params["older_than_s"] = release_older_than_s
    try:
        response = httpx.request(
            "GET" if release_older_than_s is None else "DELETE",
            f"{running.gateway_url}/admin/v1/leases",
            params=params,
            headers={"Authorization": f"Bearer {folder.site_secret}"},
            timeout=_TIMEOUT_S,
            trust_env=False,
        )
    except httpx.HTTPError as error:
        raise CommandError(f"The gateway at {running.gateway_url} does not answer: {error}") from error
    if response.is_error:
        raise CommandError(f"The gateway refused with {response.status_code}: {response.text[:200]}")
    document: dict[str, Any] = response.json()
    return document


def render(document: dict[str, Any]) -> str:
    """The same in lines for people."""
    lines = [f"{name} does not answer" for name in document["silent_nodes"]]
    if "leases" not in document:
        return "\n".join([f"{document['released']} released, {document['released_bytes']} bytes", *lines])
    for lease in document["leases"]:
        state = "being read" if lease["attached"] else "stranded"
        lines.append(
            f"{lease['node']}  {lease['id']}  {lease['tokens']} tokens  {lease['size_bytes']} bytes  "
            f"{lease['age_s']:.1f} s  {state}"
        )
    return "\n".join(lines) or "No prefill node holds a lease."
