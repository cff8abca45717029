"""Serves the page's own files and the built packages, compressed, under addresses that change with their content."""

import gzip
import hashlib
import json
import mimetypes
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response

IMMUTABLE: Final = "public, max-age=31536000, immutable"
COMPRESSIBLE: Final = frozenset({".css", ".js", ".svg", ".json"})

mimetypes.add_type("text/javascript", ".js")
mimetypes.add_type("font/woff2", ".woff2")


class AssetsNotBuiltError(RuntimeError):
    """static/vendor is missing: run `npm ci && npm run build`."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


@dataclass(frozen=True, slots=True)
class Asset:
    """One file in memory with its compressed forms by content coding."""

    media_type: str
    encodings: dict[str, bytes]

    def best(self, accepted: str) -> tuple[str, bytes]:
        """The smallest form that the `Accept-Encoding` header allows, and its coding ("" for the plain file)."""
        offered = {
            part.split(";")[0].strip() for part in accepted.split(",") if not part.replace(" ", "").endswith("q=0")
        }
        return next((coding, body) for coding, body in self.encodings.items() if not coding or coding in offered)


class Assets:
    """All files there are: what is not in it cannot be asked for, so no path is ever built from a request."""

    def __init__(self, root: Path) -> None:
        """Read `root` (the folder `static`).

        Raises:
            AssetsNotBuiltError: the packages have not been built.
        """
        manifest = root / "vendor" / "manifest.json"
        if not manifest.is_file():
            raise AssetsNotBuiltError
        self._vendor: dict[str, str] = json.loads(manifest.read_text())
        own = [path for path in sorted(root.iterdir()) if path.is_file() and path.suffix != ".mjs"]
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in own))
        self.version = digest.hexdigest()[:12]
        self._files = {f"{self.version}/{path.name}": _own(path) for path in own}
        self._files |= {f"vendor/{name}": _built(root / "vendor" / name) for name in self._vendor.values()}

    def url(self, name: str) -> str:
        """Address of a file of ours, or of a built package by its plain name.

        Raises:
            KeyError: there is no such file.
        """
        path = f"vendor/{self._vendor[name]}" if name in self._vendor else f"{self.version}/{name}"
        if path not in self._files:
            raise KeyError(name)
        return f"/static/{path}"

    def router(self) -> APIRouter:
        """GET and HEAD of every file."""
        router = APIRouter(include_in_schema=False)

        @router.api_route("/static/{path:path}", methods=["GET", "HEAD"])
        def asset(path: str, request: Request) -> Response:
            found = self._files.get(path)
            if found is None:
                return Response("Not found", status_code=404, media_type="text/plain")
            coding, body = found.best(request.headers.get("accept-encoding", ""))
            headers = {"Cache-Control": IMMUTABLE, "Vary": "Accept-Encoding"}
            if coding:
                headers["Content-Encoding"] = coding
            return Response(body, media_type=found.media_type, headers=headers)

        return router


def _own(path: Path) -> Asset:
    body = path.read_bytes()
    encodings = {"gzip": gzip.compress(body, mtime=0)} if path.suffix in COMPRESSIBLE else {}
    return Asset(_media_type(path), {**encodings, "": body})


def _built(path: Path) -> Asset:
    twins = {coding: path.with_name(path.name + suffix) for coding, suffix in (("br", ".br"), ("gzip", ".gz"))}
    encodings = {coding: twin.read_bytes() for coding, twin in twins.items() if twin.is_file()}
    return Asset(_media_type(path), {**encodings, "": path.read_bytes()})


def _media_type(path: Path) -> str:
    return mimetypes.guess_type(path.name)[0] or "application/octet-stream"
