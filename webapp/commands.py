"""The command that does over REST what a button of a page does."""

import json
import shlex
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

TOKEN: Final = "Authorization: Bearer $(cat .data/operator-token)"  # noqa: S105 - where a token is, not one


def curl_command(
    base: str,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> str:
    """A `curl` command for one call below `/api/v1`, to be pasted into a shell where the fleet runs.

    Args:
        base: scheme and host of this server.
        method: of the call.
        path: below `/api/v1`.
        body: sent as JSON.
        query: parameters of the address.
        headers: beside the token.
    """
    address = f"{base}/api/v1{path}" + (f"?{urlencode(query)}" if query else "")
    verb = "" if method == "GET" else f" -X {method}"
    lines = [f"curl -sS{verb} {shlex.quote(address)}", f'-H "{TOKEN}"']
    lines += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in (headers or {}).items()]
    if body is not None:
        text = json.dumps(body, ensure_ascii=False)
        lines += ['-H "Content-Type: application/json"', f"-d {shlex.quote(text)}"]
    return " \\\n  ".join(lines)
