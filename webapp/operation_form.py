"""From the fields of the form that starts an operation to the body that the API takes. Pure."""

from typing import Any, Final

from control.domain.operations import Kind
from webapp.form_fields import Typed

KINDS: Final = (
    Kind.DRAIN.value,
    Kind.UNDRAIN.value,
    Kind.SWITCH_ROLE.value,
    Kind.RESTART.value,
    Kind.REBALANCE.value,
    Kind.PROBE_LINK.value,
)
_MEGABYTE: Final = 1_000_000
# The fields that each kind sends as they stand.
_PLAIN: Final = {
    Kind.DRAIN: ("node",),
    Kind.UNDRAIN: ("node",),
    Kind.SWITCH_ROLE: ("node", "role"),
    Kind.RESTART: ("node",),
    Kind.REBALANCE: ("site", "target"),
    Kind.PROBE_LINK: ("link",),
}
_WITH_TIMEOUT: Final = frozenset({Kind.DRAIN, Kind.SWITCH_ROLE, Kind.RESTART, Kind.REBALANCE})
_WITH_FORCE: Final = frozenset({Kind.DRAIN, Kind.SWITCH_ROLE, Kind.RESTART})


def read_request(kind: str, form: Typed) -> dict[str, Any]:
    """The body of an operation; what is no number stays text, and is refused at its field."""
    known = Kind(kind)
    body: dict[str, Any] = {"kind": known.value, "reason": form.text("reason")}
    body |= {name: form.text(name) for name in _PLAIN[known]}
    if known in _WITH_TIMEOUT and form.text("timeout_s"):
        body["timeout_s"] = form.text("timeout_s")
    if known in _WITH_FORCE:
        body["force"] = form.has("force")
    if known is Kind.PROBE_LINK and form.text("size_mb"):
        body["size_bytes"] = _bytes_of(form.text("size_mb"))
    return body


def _bytes_of(megabytes: str) -> int | str:
    try:
        return round(float(megabytes) * _MEGABYTE)
    except (ValueError, OverflowError):
        return megabytes
