"""The secret that a site's programs share, and how they change it while they run: for a while two are accepted."""

import hashlib
import hmac
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from control.settings import Settings

ROTATED_FILE = "site-secret.json"
_SECRET = re.compile(r"[!-~]{32,256}")


class WeakSecretError(ValueError):
    """A site's secret has 32 to 256 printable ASCII characters without spaces."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


@dataclass(frozen=True, slots=True)
class _Rotated:
    """What the file holds; `configured_sha256` says over which configured secret it was made."""

    secret: str
    previous: str
    previous_until_s: float
    rotation: int
    configured_sha256: str


class RotationOrder(msgspec.Struct, frozen=True):
    """What a program is told: a new secret, and until when (seconds of the epoch) the present one still counts."""

    secret: str
    previous_until_s: float
    rotation: int


class SiteSecret:
    """The configured secret, until a rotation has put another one in its place.

    With a path, rotations are kept in a private file, which all programs of one data folder share: what one of them is
    told, all know. A newly configured secret makes the file void.
    """

    def __init__(self, configured: str, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._configured = configured
        self._path = path
        self._clock = clock
        self._stamp: tuple[int, int] | None = None
        self._rotated: _Rotated | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """That of a process."""
        return cls(settings.site_secret, settings.data_dir / ROTATED_FILE)

    @property
    def is_set(self) -> bool:
        """Without a secret, what it guards is shut."""
        return bool(self._configured)

    @property
    def current(self) -> str:
        """What to send."""
        rotated = self._refresh()
        return rotated.secret if rotated else self._configured

    @property
    def rotation(self) -> int:
        """Number of the rotation that it comes from; 0 for the configured one."""
        rotated = self._refresh()
        return rotated.rotation if rotated else 0

    @property
    def known(self) -> tuple[str, ...]:
        """All that somebody who missed a rotation may still be on, the current one first."""
        rotated = self._refresh()
        return (rotated.secret, rotated.previous, self._configured) if rotated else (self._configured,)

    def accepts(self, authorization: str | None) -> bool:
        """Whether a header carries the secret, or the one before it within its time."""
        if self.accepts_rotation(authorization):
            return True
        rotated = self._refresh()
        is_in_time = rotated is not None and self._clock() < rotated.previous_until_s
        return is_in_time and rotated is not None and _carries(authorization, rotated.previous)

    def accepts_rotation(self, authorization: str | None) -> bool:
        """Whether a header carries the secret itself: who has only the one before must not be able to make the next."""
        return self.is_set and _carries(authorization, self.current)

    def rotate(self, secret: str, previous_until_s: float, rotation: int) -> bool:
        """Take a new secret; the present one is accepted until a moment (seconds of the epoch). Whether it was new.

        Raises:
            WeakSecretError: it is none.
            OSError: it cannot be kept; then nothing has changed.
        """
        if _SECRET.fullmatch(secret) is None:
            raise WeakSecretError
        if hmac.compare_digest(secret, self.current):
            return False
        rotated = _Rotated(secret, self.current, previous_until_s, rotation, _hash(self._configured))
        self._write(rotated)
        self._rotated = rotated
        return True

    def _refresh(self) -> _Rotated | None:
        if self._path is None:
            return self._rotated
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return self._rotated
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self._stamp:
            self._rotated = _read(self._path, _hash(self._configured))
            self._stamp = stamp
        return self._rotated

    def _write(self, rotated: _Rotated) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(f".{os.getpid()}.new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            json.dump(asdict(rotated), stream)
        fresh.replace(self._path)


def parse_rotation(body: bytes) -> RotationOrder:
    """Read what a program is told.

    Raises:
        ValueError: it is not that; the text repeats nothing of it.
    """
    try:
        return msgspec.json.decode(body, type=RotationOrder)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ValueError("a rotation has secret, previous_until_s and rotation") from None


def _read(path: Path, configured_sha256: str) -> _Rotated | None:
    """What a file holds; None where it was made over another secret, or is none of ours."""
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        rotated = _Rotated(**document)
    except (OSError, TypeError, ValueError):
        return None
    return rotated if rotated.configured_sha256 == configured_sha256 else None


def _carries(authorization: str | None, secret: str) -> bool:
    return hmac.compare_digest((authorization or "").encode(), f"Bearer {secret}".encode())


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
