"""How a request is refused: one exception that carries the status and OpenAI's error fields, and its JSON shape."""

import msgspec


class RefusalError(Exception):
    """The request cannot be served; the text is for its client and holds nothing of the prompt.

    `allow` names the methods that the address takes, for a 405.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
        allow: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
        self.allow = allow

    def body(self) -> bytes:
        """The error in OpenAI's shape."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


def invalid(message: str, param: str | None = None, code: str | None = None) -> RefusalError:
    """A 400: the client has to change its request."""
    return RefusalError(400, message, param=param, code=code)


def unavailable(message: str, code: str, retry_after_s: int = 1) -> RefusalError:
    """A 503: the same request may succeed after `retry_after_s` seconds."""
    return RefusalError(503, message, kind="server_error", code=code, retry_after_s=retry_after_s)


def failed_upstream(message: str) -> RefusalError:
    """A 502: the engines could not answer, and nothing was left to try."""
    return RefusalError(502, message, kind="server_error", code="engine_failed")
