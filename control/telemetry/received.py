"""Batches as the consumer reads them: the stages of a request stay as they came until somebody wants to see them."""

from typing import Any

import msgspec

from control.telemetry.records import RequestBatch, RequestRecord, SampleBatch, StageTime

_STAGES = "stages"
_NO_STAGES = msgspec.Raw(msgspec.msgpack.encode(()))


def _field(field: Any, replaced: dict[str, Any]) -> tuple[Any, ...]:
    kind = replaced.get(field.name, field.type)
    if field.name == _STAGES:
        return field.name, kind, _NO_STAGES
    if field.default_factory is not msgspec.NODEFAULT:
        return field.name, kind, msgspec.field(default_factory=field.default_factory)
    return (field.name, kind) if field.required else (field.name, kind, field.default)


def _like(struct: Any, name: str, replaced: dict[str, Any], *, gc: bool) -> Any:
    """A struct of the same form, of which some fields have another type."""
    fields = [_field(field, replaced) for field in msgspec.structs.fields(struct)]
    return msgspec.defstruct(name, fields, array_like=True, frozen=True, gc=gc)


# Neither can be part of a cycle; not to look for one takes a third of the time.
_ReceivedRecord = _like(RequestRecord, "ReceivedRecord", {_STAGES: msgspec.Raw}, gc=False)
_ReceivedBatch = _like(RequestBatch, "ReceivedBatch", {"records": tuple[_ReceivedRecord, ...]}, gc=True)  # type: ignore[valid-type]
_LooseBatch = _like(RequestBatch, "LooseBatch", {"records": tuple[msgspec.Raw, ...]}, gc=True)

_requests = msgspec.msgpack.Decoder(_ReceivedBatch)
_loose_requests = msgspec.msgpack.Decoder(_LooseBatch)
_record = msgspec.msgpack.Decoder(_ReceivedRecord)
_stages = msgspec.msgpack.Decoder(tuple[StageTime, ...])
_samples = msgspec.msgpack.Decoder(SampleBatch)
_names = tuple(field for field in RequestRecord.__struct_fields__ if field != _STAGES)


def decode_requests(raw: bytes) -> tuple[RequestBatch, int]:
    """A gateway's batch, its records with unread stages, and how many of them had wrong types.

    Raises:
        ValueError: it is not a batch at all.
    """
    try:
        return _requests.decode(raw), 0
    except msgspec.ValidationError:
        loose = _loose_requests.decode(raw)
    records = []
    for one in loose.records:
        try:
            records.append(_record.decode(one))
        except msgspec.ValidationError:
            continue
    return msgspec.structs.replace(loose, records=tuple(records)), len(loose.records) - len(records)


def decode_samples(raw: bytes) -> SampleBatch:
    """An observer's batch.

    Raises:
        ValueError: it is not one.
    """
    return _samples.decode(raw)


def whole(record: Any) -> RequestRecord | None:
    """A record with its stages; None if these are none."""
    if isinstance(record, RequestRecord):
        return record
    try:
        stages = _stages.decode(record.stages)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return RequestRecord(**{name: getattr(record, name) for name in _names}, stages=stages)
