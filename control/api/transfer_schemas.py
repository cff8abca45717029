"""Bodies and replies about transfers on a link."""

from pydantic import Field

from control.api.schemas import FromDomain, ReasonIn
from control.domain.transfers import SeenTransfer, SeenTransfers


class TransferIn(ReasonIn):
    """Whether a transfer should send nothing for now, and why."""

    paused: bool


class TransferOut(FromDomain):
    """One transfer; times in seconds. `size_bytes` were sent, `queued_bytes` wait in the relay."""

    transfer_id: str
    pipeline: str
    service_class: str
    state: str = Field(description="running, waiting, paused or idle", examples=["running"])
    streams: int
    size_bytes: int
    queued_bytes: int
    age_s: float
    waited_s: float = Field(description="How long it has waited for its place on the link.")

    @classmethod
    def of(cls, transfer: SeenTransfer) -> "TransferOut":
        """A transfer."""
        return cls.model_validate(transfer)


class TransfersOut(FromDomain):
    """The transfers of a link as its relay showed them, and how old that picture is."""

    age_s: float
    items: list[TransferOut]

    @classmethod
    def of(cls, seen: SeenTransfers) -> "TransfersOut":
        """What was seen."""
        return cls(age_s=round(seen.age_s, 3), items=[TransferOut.of(one) for one in seen.transfers])
