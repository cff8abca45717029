"""What can go wrong with an engine, and how its replies say so.

NodeError                    an engine did not do what it was asked
├── NodeUnreachableError     no connection, a broken one, or silence past the deadline
├── NodeBusyError            it takes no more work now; may carry a Retry-After
├── TransferRefusedError     a lease is gone, or a pull failed: new leases may help
└── NodeRefusedError         any other error; the same request will fail again there
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from control.domain.topology import Node

_SERVER_ERROR = 500


class NodeError(Exception):
    """An engine did not do what it was asked."""

    def __init__(self, node: str, message: str, status: int = 0, retry_after_s: int | None = None) -> None:
        super().__init__(f"{node}: {message}")
        self.node = node
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s


class NodeUnreachableError(NodeError):
    """No connection, a broken one, or silence past the deadline."""


class NodeBusyError(NodeError):
    """The node takes no more work now."""


class TransferRefusedError(NodeError):
    """A lease is gone or a pull failed."""


class NodeRefusedError(NodeError):
    """The node will not serve this request."""


def error_of_reply(node: Node, status: int, headers: Mapping[bytes, bytes], body: bytes) -> NodeError:
    """The error that a reply with a status other than 200 stands for."""
    retry_after = headers.get(b"retry-after", b"")
    seconds = int(retry_after) if retry_after.isdigit() else None
    return _error(node, status, _error_message(body) or f"answered {status}", seconds)


def error_of_event(node: Node, error: dict[str, Any] | str) -> NodeError:
    """The error that an event of a stream stands for."""
    if isinstance(error, str):
        return NodeRefusedError(node.name, error)
    code = error.get("code")
    return _error(node, code if isinstance(code, int) else _SERVER_ERROR, str(error.get("message", "failed")), None)


def error_of_pull(node: Node, error: NodeError) -> NodeError:
    """A stock vLLM that cannot pull says no more than that it failed; new leases may help."""
    if node.is_stock and isinstance(error, NodeRefusedError) and error.status == _SERVER_ERROR:
        return TransferRefusedError(error.node, error.message, error.status)
    return error


def _error(node: Node, status: int, message: str, retry_after_s: int | None) -> NodeError:
    kind: type[NodeError] = NodeRefusedError
    if status in {429, 503}:
        kind = NodeBusyError
    elif status in {410, 502}:
        kind = TransferRefusedError
    return kind(node.name, message, status, retry_after_s)


def _error_message(data: bytes) -> str:
    try:
        error = msgspec.json.decode(data)["error"]
        return str(error["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
