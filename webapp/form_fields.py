"""What somebody typed into a form, and what is wrong with it, under the name of each field."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from fastapi import Depends, Request
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile

from control.errors import ControlError

MAX_FIELDS: Final = 5_000
GENERAL: Final = ""


@dataclass(frozen=True, slots=True)
class Typed:
    """The fields of a form as text; one that was not sent is empty."""

    data: FormData = field(default_factory=FormData)

    def text(self, name: str, default: str = "") -> str:
        """One field without blanks around it; the last of several."""
        found = self.data.get(name)
        return found.strip() if isinstance(found, str) else default

    def raw(self, name: str) -> str:
        """One field as it is."""
        found = self.data.get(name)
        return found if isinstance(found, str) else ""

    def all(self, name: str) -> list[str]:
        """Every field of that name."""
        return [found for found in self.data.getlist(name) if isinstance(found, str)]

    def has(self, name: str) -> bool:
        """Whether it was sent, as a ticked box is."""
        return name in self.data

    def number(self, name: str) -> int | None:
        """One field as a whole number from 1; None where it is none."""
        text = self.text(name)
        return int(text) if text.isdecimal() and len(text) < 10 and int(text) > 0 else None

    def file(self, name: str) -> UploadFile | None:
        """An uploaded file; None where nothing was chosen."""
        found = self.data.get(name)
        return found if isinstance(found, UploadFile) and found.filename else None


async def read_form(request: Request) -> Typed:
    """The form that a request carries; empty where it carries something else."""
    return Typed(await request.form(max_fields=MAX_FIELDS, max_files=1))


FormDep = Annotated[Typed, Depends(read_form)]


def refusal(error: ControlError) -> dict[str, str]:
    """Why something was refused: each problem under its path, or one sentence under the empty one."""
    problems = {problem.path: problem.message for problem in getattr(error, "problems", ())}
    return problems or {GENERAL: error.detail}


def shorter(errors: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Errors under the last part of their path, where that part lies below a prefix; others as sentences."""
    found: dict[str, str] = {}
    for path, message in errors.items():
        if path.startswith(prefix) and path != prefix:
            found[path.removeprefix(prefix).lstrip(".")] = message
        elif path:
            found[GENERAL] = " ".join(filter(None, (found.get(GENERAL), f"{path}: {message}")))
        else:
            found[GENERAL] = message
    return found


def misfits(error: ValidationError) -> dict[str, str]:
    """What does not fit a schema, each problem under the first name of its place."""
    found: dict[str, str] = {}
    for one in error.errors(include_url=False, include_input=False, include_context=False):
        names = [str(part) for part in one["loc"] if isinstance(part, str) and "[" not in part]
        found.setdefault(names[0] if names else GENERAL, f"{one['msg']}.")
    return found
