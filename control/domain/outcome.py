"""How a request can end: one closed set for logs, metric labels, records and reports."""

from enum import StrEnum


class Outcome(StrEnum):
    """The end of a request as its client saw it."""

    COMPLETED = "completed"
    CLIENT_CLOSED = "client_closed"
    REJECTED = "rejected"
    SHED = "shed"
    FAILED = "failed"
