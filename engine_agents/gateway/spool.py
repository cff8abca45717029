"""Batches that could not be sent, kept in files until they can; bounded, the oldest leave first."""

from pathlib import Path

MAX_SPOOL_BYTES = 32 << 20
MAX_SPOOL_FILES = 20_000
_SUFFIX = ".batch"


class Spool:
    """One file per batch, named so that their order is the order of sending. Not for use by two processes at once."""

    def __init__(self, folder: Path, max_bytes: int = MAX_SPOOL_BYTES, max_files: int = MAX_SPOOL_FILES) -> None:
        """Take over what an earlier process left.

        Raises:
            OSError: the folder cannot be made or read.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._sizes = {path.name: path.stat().st_size for path in sorted(folder.glob(f"*{_SUFFIX}"))}
        self._bytes = sum(self._sizes.values())

    def __len__(self) -> int:
        return len(self._sizes)

    def put(self, epoch: int, sequence: int, data: bytes, records: int) -> int:
        """Keep a batch of so many records; gives back how many records had to leave with older batches.

        Raises:
            OSError: it cannot be written.
        """
        name = f"{epoch:016d}-{sequence:010d}-{records:06d}{_SUFFIX}"
        partial = self._folder / f"{name}.partial"
        partial.write_bytes(data)
        partial.replace(self._folder / name)
        self._sizes[name] = len(data)
        self._bytes += len(data)
        left = 0
        while len(self._sizes) > 1 and (self._bytes > self._max_bytes or len(self._sizes) > self._max_files):
            oldest = next(iter(self._sizes))
            self.remove(oldest)
            left += _records_in(oldest)
        return left

    def first(self) -> tuple[str, bytes] | None:
        """The oldest batch and its name; None if the spool is empty.

        Raises:
            OSError: it cannot be read.
        """
        name = next(iter(self._sizes), None)
        return None if name is None else (name, (self._folder / name).read_bytes())

    def remove(self, name: str) -> None:
        """Forget a batch that was sent."""
        self._bytes -= self._sizes.pop(name, 0)
        (self._folder / name).unlink(missing_ok=True)


def _records_in(name: str) -> int:
    """How many records a batch has; a file of an earlier release does not say, and held at least one."""
    parts = name.removesuffix(_SUFFIX).split("-")
    return int(parts[2]) if len(parts) > 2 and parts[2].isdecimal() else 1
