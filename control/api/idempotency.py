"""`Idempotency-Key` for every POST of the API, in one place, so that no handler can forget it."""

import json
import logging
from collections.abc import MutableMapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control.api.dependencies import PRINCIPAL_STATE
from control.api.problems import problem_of
from control.api.show_once import secret_fields
from control.errors import BodyTooLargeError, ControlError, InvalidError
from control.services.access import Principal
from control.services.idempotency import Answer, claim_request, keep_answer, release_claim
from control.services.plane import ControlPlane
from control.store.idempotency import Claim, current_claim

KEY_HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotency-Replayed"
MAX_KEY_LENGTH = 200
MAX_BODY_BYTES = 16 * 2**20
_PREFIX = "/api/v1/"
_KEPT_HEADERS = ("content-type", "location", "etag")

log = logging.getLogger(__name__)


class Idempotency:
    """Answers a repeated POST from what was stored; stores the answer of a first one before it is sent.

    Stands behind `Guard`, which says who calls.
    """

    def __init__(self, app: ASGIApp, plane: ControlPlane) -> None:
        self._app = app
        self._plane = plane

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Requests without the header, and those of callers that are not known, go on as they are."""
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].startswith(_PREFIX):
            await self._app(scope, receive, send)
            return
        key = Headers(scope=scope).get(KEY_HEADER)
        principal = scope.get("state", {}).get(PRINCIPAL_STATE)
        if key is None or not isinstance(principal, Principal):
            await self._app(scope, receive, send)
            return
        try:
            if not (0 < len(key) <= MAX_KEY_LENGTH and key.isascii() and key.isprintable()):
                raise InvalidError(f"An {KEY_HEADER} has 1 to {MAX_KEY_LENGTH} printable ASCII characters.")
            body = await _read_body(receive)
            request = b"\n".join((scope["path"].encode(), scope["query_string"], body))
            found = await run_in_threadpool(claim_request, self._plane, principal.name, key, request)
        except ControlError as error:
            await problem_of(error)(scope, receive, send)
            return
        if isinstance(found, Answer):
            headers = {**found.headers, REPLAYED_HEADER: "true"}
            await Response(found.body, found.status, headers)(scope, receive, send)
            return
        await self._carry_out(found, scope, _replaying(body, receive), send)

    async def _carry_out(self, claim: Claim, scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Message] = []

        async def hold(message: Message) -> None:
            messages.append(message)

        set_before = current_claim.set(claim)
        try:
            await self._app(scope, receive, hold)
        except Exception:
            current_claim.reset(set_before)
            await run_in_threadpool(release_claim, self._plane, claim, refused=False)
            raise
        current_claim.reset(set_before)
        try:
            await run_in_threadpool(self._settle, claim, messages, scope.get("state", {}))
        except ControlError as error:
            log.warning("could not keep an answer for its repetition: %s", error)
        for message in messages:
            await send(message)

    def _settle(self, claim: Claim, messages: list[Message], state: MutableMapping[str, Any]) -> None:
        status: int = messages[0]["status"]
        if status >= 400:
            release_claim(self._plane, claim, refused=status < 500)
            return
        headers = Headers(raw=messages[0]["headers"])
        kept = {name: headers[name] for name in _KEPT_HEADERS if name in headers}
        body = b"".join(message.get("body", b"") for message in messages[1:]).decode(errors="replace")
        keep_answer(self._plane, claim, Answer(status, kept, without(body, secret_fields(dict(state)))))


def without(body: str, fields: tuple[str, ...]) -> str:
    """A JSON object as it may be kept: secrets are shown once."""
    if not fields:
        return body
    return json.dumps({**json.loads(body), **dict.fromkeys(fields)})


async def _read_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"".join(parts)
        parts.append(message.get("body", b""))
        size_bytes += len(parts[-1])
        if size_bytes > MAX_BODY_BYTES:
            raise BodyTooLargeError(f"A request with an {KEY_HEADER} has at most {MAX_BODY_BYTES} bytes.")
        if not message.get("more_body", False):
            return b"".join(parts)


def _replaying(body: bytes, receive: Receive) -> Receive:
    is_sent = False

    async def replay() -> Message:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
