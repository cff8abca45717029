"""What can go wrong on purpose, and the one table that says how each refusal looks from outside.

ControlError
├── InvalidError               the request cannot be obeyed as it stands
│   └── InvalidPolicyError     … because of fields of its policy
├── UnauthenticatedError       nobody is signed in
├── ForbiddenError             somebody is, and may not do this
│   └── CsrfError              … because the form's token is missing or old
├── NotFoundError
├── ConflictError              it contradicts what is stored
│   ├── InUseError             … because others need what it takes away
│   └── RolloutOpenError       … because a roll-out is under way
├── StaleRevisionError         it was made against something that has changed meanwhile
├── PreconditionRequiredError  it does not say what it was made against
├── IdempotencyKeyReusedError  the key belongs to another request
├── RequestInProgressError     the same request is being carried out
├── AnswerLostError            the same request was carried out, and nobody knows the answer
├── TooManyStreamsError        close an event stream first
├── BodyTooLargeError
├── TooManyAttemptsError       wait before the next sign-in
└── DatabaseUnavailableError   nothing can be read or stored at the moment
"""

from collections.abc import Sequence
from dataclasses import dataclass

from control.domain.policy import FieldProblem


class ControlError(Exception):
    """Base of every refusal; its text is meant for whoever asked, `retry_after_s` for a machine that asks again."""

    retry_after_s: int | None = None

    def __init__(self, detail: str | None = None) -> None:
        self.detail = detail or (self.__doc__ or "")
        super().__init__(self.detail)


class InvalidError(ControlError):
    """The request cannot be obeyed as it stands."""

    def __init__(self, detail: str | None = None, problems: Sequence[FieldProblem] = ()) -> None:
        super().__init__(detail)
        self.problems = tuple(problems)


class InvalidPolicyError(InvalidError):
    """The policy has fields that cannot be obeyed."""


class UnauthenticatedError(ControlError):
    """Sign in, or send a valid token."""


class ForbiddenError(ControlError):
    """Your role does not allow this."""


class CsrfError(ForbiddenError):
    """The X-CSRF-Token header is missing or belongs to another session."""


class NotFoundError(ControlError):
    """There is no such thing."""


class ConflictError(ControlError):
    """The request contradicts what is stored."""


class InUseError(ConflictError):
    """Others need it."""

    def __init__(self, detail: str, problems: Sequence[FieldProblem]) -> None:
        super().__init__(detail)
        self.problems = tuple(problems)


class RolloutOpenError(ConflictError):
    """A roll-out is under way; wait for its end, or promote or abort it first."""


class StaleRevisionError(ControlError):
    """It has changed since you read it."""


class PreconditionRequiredError(ControlError):
    """Say what the change was made against: If-Match, or base_revision where there is one."""


class IdempotencyKeyReusedError(ControlError):
    """This Idempotency-Key belongs to another request of yours: the same key needs the same path, query and body."""


class RequestInProgressError(ControlError):
    """The same request is being carried out: ask again for its answer."""

    retry_after_s = 1


class AnswerLostError(ControlError):
    """The same request was carried out, but its answer was lost: look at what it was to change."""


class TooManyStreamsError(ControlError):
    """Too many event streams are open; close one, or come back later."""

    retry_after_s = 5


class BodyTooLargeError(ControlError):
    """The body is too large."""


class TooManyAttemptsError(ControlError):
    """Too many failed sign-ins."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"Too many failed sign-ins; try again in {retry_after_s} s.")
        self.retry_after_s = retry_after_s


class DatabaseUnavailableError(ControlError):
    """The database cannot be reached or is busy; nothing was stored. Try again."""

    retry_after_s = 2


@dataclass(frozen=True, slots=True)
class Face:
    """How an error looks from outside: HTTP status, stable slug, short title."""

    status: int
    slug: str
    title: str


FACES: dict[type[ControlError], Face] = {
    InvalidError: Face(422, "invalid", "The request is not valid"),
    InvalidPolicyError: Face(422, "invalid-policy", "The policy is not valid"),
    UnauthenticatedError: Face(401, "unauthenticated", "Sign in first"),
    ForbiddenError: Face(403, "forbidden", "Not allowed"),
    CsrfError: Face(403, "csrf-failed", "The form has expired"),
    NotFoundError: Face(404, "not-found", "Not found"),
    ConflictError: Face(409, "conflict", "It contradicts what is stored"),
    InUseError: Face(409, "in-use", "It is in use"),
    RolloutOpenError: Face(409, "rollout-open", "A roll-out is under way"),
    StaleRevisionError: Face(412, "stale-revision", "It has changed meanwhile"),
    PreconditionRequiredError: Face(428, "precondition-required", "Say what it was made against"),
    IdempotencyKeyReusedError: Face(422, "idempotency-key-reused", "The key belongs to another request"),
    RequestInProgressError: Face(409, "request-in-progress", "The request is being carried out"),
    AnswerLostError: Face(409, "answer-lost", "The answer was lost"),
    TooManyStreamsError: Face(429, "too-many-streams", "Too many streams"),
    BodyTooLargeError: Face(413, "body-too-large", "The body is too large"),
    TooManyAttemptsError: Face(429, "too-many-attempts", "Too many attempts"),
    DatabaseUnavailableError: Face(503, "database-unavailable", "The database is not available"),
    ControlError: Face(500, "internal", "Something went wrong"),
}


def face_of(error: ControlError) -> Face:
    """The face of the nearest class in the error's family."""
    return next(FACES[family] for family in type(error).__mro__ if family in FACES)
