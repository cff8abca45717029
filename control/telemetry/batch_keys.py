"""Which batches of one sender have been counted: runs of sequence numbers, so that a long history stays small."""

import bisect
from dataclasses import dataclass, field
from typing import Any

MAX_EPOCHS = 4
MAX_RUNS = 64


@dataclass(slots=True)
class BatchKeys:
    """Runs of sequence numbers [first, last] by epoch, in order. An epoch is one life of the sender."""

    epochs: dict[int, list[list[int]]] = field(default_factory=dict)

    def add(self, epoch: int, sequence: int) -> bool:
        """Note a batch; False if it was noted before, or comes so late that this can no longer be told."""
        runs = self.epochs.get(epoch)
        if runs is None:
            if len(self.epochs) >= MAX_EPOCHS and epoch < min(self.epochs):
                return False
            runs = self.epochs[epoch] = []
        index = bisect.bisect_right(runs, [sequence, sequence]) - 1
        # A run that begins with this number may have sorted behind it.
        if index + 1 < len(runs) and runs[index + 1][0] == sequence:
            index += 1
        if index >= 0 and runs[index][1] >= sequence:
            return False
        self._insert(runs, index + 1, sequence)
        self._forget()
        return True

    def is_behind(self, epoch: int, sequence: int) -> bool:
        """Whether a later batch has been noted already."""
        newest = max(self.epochs, default=epoch)
        runs = self.epochs.get(newest) or [[sequence, sequence]]
        return (epoch, sequence) < (newest, runs[-1][1])

    def to_document(self) -> list[Any]:
        """As JSON."""
        return [[epoch, runs] for epoch, runs in sorted(self.epochs.items())]

    @classmethod
    def from_document(cls, document: list[Any]) -> "BatchKeys":
        """What `to_document` gave."""
        return cls({int(epoch): [list(run) for run in runs] for epoch, runs in document})

    @staticmethod
    def _insert(runs: list[list[int]], index: int, sequence: int) -> None:
        joins_before = index > 0 and runs[index - 1][1] == sequence - 1
        joins_after = index < len(runs) and runs[index][0] == sequence + 1
        if joins_before and joins_after:
            runs[index - 1][1] = runs.pop(index)[1]
        elif joins_before:
            runs[index - 1][1] = sequence
        elif joins_after:
            runs[index][0] = sequence
        else:
            runs.insert(index, [sequence, sequence])
        if len(runs) > MAX_RUNS:
            # The oldest gap counts as filled: a batch that late is lost rather than counted twice.
            runs[0][1] = runs.pop(1)[1]

    def _forget(self) -> None:
        while len(self.epochs) > MAX_EPOCHS:
            del self.epochs[min(self.epochs)]
