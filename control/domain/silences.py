"""Matchers on the labels of alerts, for silences and receivers."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from fnmatch import fnmatchcase

MAX_SILENCE = timedelta(days=30)
MAX_MATCHERS = 20


class Operator(StrEnum):
    """How a label is compared."""

    EQUAL = "="
    NOT_EQUAL = "!="
    LIKE = "~"


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on one label; a label that an alert does not have is the empty text. `~` takes `*` and `?`."""

    label: str
    operator: Operator
    value: str

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet it."""
        found = labels.get(self.label, "")
        if self.operator is Operator.LIKE:
            return fnmatchcase(found, self.value)
        return (found == self.value) is (self.operator is Operator.EQUAL)

    def to_document(self) -> dict[str, str]:
        """As JSON."""
        return {name: str(value) for name, value in asdict(self).items()}

    @classmethod
    def from_document(cls, document: Mapping[str, str]) -> "Matcher":
        """What `to_document` gave."""
        return cls(document["label"], Operator(document["operator"]), document["value"])


def match_all(matchers: Iterable[Matcher], labels: Mapping[str, str]) -> bool:
    """Whether labels meet every one."""
    return all(matcher.matches(labels) for matcher in matchers)
