"""The node's errors in OpenAI's shape: one table from what went wrong to what the client is told."""

from dataclasses import dataclass

from starlette.responses import JSONResponse

from engine_agents.nodes.admission import QueueFullError
from engine_agents.nodes.engine import PromptRefusedError
from engine_agents.nodes.kv_errors import FingerprintMismatchError, KvError, LeaseUnknownError, StoreFullError


class RequestError(Exception):
    """A request that cannot be served as it is."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class LeaseRoomError(Exception):
    """The prompt's KV does not fit beside what is pinned, so it cannot be leased."""


class PrefixGoneError(Exception):
    """More of the prompt would have to be computed than the request allows."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """What the client is told."""

    status: int
    type: str
    message: str
    code: str | None = None
    param: str | None = None
    retry_after_s: int | None = None

    def body(self) -> dict[str, object]:
        """OpenAI's error object."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The same as an HTTP response."""
        headers = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        return JSONResponse(self.body(), self.status, headers)


_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    410: "gone_error",
    502: "bad_gateway_error",
    503: "overloaded_error",
}

_TABLE: tuple[tuple[type[Exception], int, str], ...] = (
    (PromptRefusedError, 400, "invalid_prompt"),
    (FingerprintMismatchError, 409, "fingerprint_mismatch"),
    (LeaseUnknownError, 410, "lease_gone"),
    (PrefixGoneError, 410, "prefix_gone"),
    (StoreFullError, 503, "store_full"),
    (LeaseRoomError, 503, "store_full"),
    (QueueFullError, 503, "queue_full"),
    (KvError, 502, "pull_failed"),
)


def error_reply(error: Exception) -> ErrorReply:
    """The reply to an error; what is in no table is the server's own fault and says nothing of its inside."""
    if isinstance(error, RequestError):
        kind = _TYPES.get(error.status, "invalid_request_error")
        return ErrorReply(error.status, kind, str(error), error.code, error.param)
    for known, status, code in _TABLE:
        if isinstance(error, known):
            retry_after_s = 1 if status == 503 else None
            return ErrorReply(status, _TYPES[status], str(error) or code, code, retry_after_s=retry_after_s)
    return ErrorReply(500, "internal_error", "internal error", "internal_error")
