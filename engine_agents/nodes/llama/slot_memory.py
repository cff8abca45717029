"""The files through which slots are saved and restored: anonymous memory, so that nothing outlives the process."""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

SLOT_DIRECTORY = "/proc/self/fd/"  # the server opens `SLOT_DIRECTORY + name`, which is one of our memory files


class SlotMemory:
    """One memory file per slot. It is on no file system: no size limit of /dev/shm, no stranger, no clean-up."""

    def __init__(self, slots: int) -> None:
        self._files = [os.memfd_create(f"slot-{index}", os.MFD_CLOEXEC) for index in range(slots)]

    def name(self, slot: int) -> str:
        """The file name that the server knows the slot's memory by."""
        return str(self._files[slot])

    @contextmanager
    def reading(self, slot: int) -> Iterator[memoryview]:
        """What the server saved last, without a copy; every view of it must be released before the block ends."""
        size = os.fstat(self._files[slot]).st_size
        if size == 0:
            yield memoryview(b"")
            return
        with mmap.mmap(self._files[slot], size, access=mmap.ACCESS_READ) as mapping, memoryview(mapping) as view:
            yield view

    @contextmanager
    def writing(self, slot: int, size: int) -> Iterator[memoryview]:
        """A zeroed file of `size` bytes (more than 0) to be filled in place."""
        self.drop(slot)
        os.ftruncate(self._files[slot], size)
        with mmap.mmap(self._files[slot], size) as mapping, memoryview(mapping) as view:
            yield view

    def drop(self, slot: int) -> None:
        """Give the slot's memory back to the system."""
        os.ftruncate(self._files[slot], 0)

    def close(self) -> None:
        """Give all memory back; safe to call twice."""
        while self._files:
            os.close(self._files.pop())
