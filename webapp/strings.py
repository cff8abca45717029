"""The texts of the pages, one file for each language; a text is named by its section and key."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

LOCALES: Final = Path(__file__).parent / "locale"
# Name of a language as its speakers write it, by the name of its file.
LANGUAGES: Final[Mapping[str, str]] = {"en": "English", "zh": "简体中文"}
HTML_LANGUAGES: Final[Mapping[str, str]] = {"en": "en", "zh": "zh-Hans"}
DEFAULT_LANGUAGE: Final = "en"
_BROWSER_TABLE: Final = ".js."


class Strings:
    """All texts of one language. Calling it with a key gives the text, its placeholders filled."""

    def __init__(self, language: str, texts: Mapping[str, str]) -> None:
        self.language = language
        self.texts = texts

    def __call__(self, key: str, /, **values: Any) -> str:
        """The text under a key.

        Raises:
            KeyError: there is no such text, or a placeholder has no value.
        """
        return self.texts[key].format_map(values)

    def has(self, key: str) -> bool:
        """Whether there is such a text."""
        return key in self.texts

    def named(self, section: str, key: str, fallback: str | None = None) -> str:
        """The text of something whose names come from elsewhere; without one the fallback, else the key itself."""
        return self.texts.get(f"{section}.{key}", key if fallback is None else fallback)

    def browser(self, *sections: str) -> dict[str, str]:
        """What scripts of these sections say: the keys of `[section.js]` as `section.key`, placeholders left open."""
        return {
            key.replace(_BROWSER_TABLE, ".", 1): text
            for key, text in self.texts.items()
            if _BROWSER_TABLE in key and key.partition(".")[0] in sections
        }


def load_strings(language: str, folder: Path = LOCALES) -> Strings:
    """Read the file of a language."""
    with (folder / f"{language}.toml").open("rb") as file:
        return Strings(language, dict(_flat(tomllib.load(file))))


def choose_language(cookie: str, accept_language: str) -> str:
    """What somebody has chosen, else the first language that their browser asks for and that there is."""
    if cookie in LANGUAGES:
        return cookie
    for tag in _by_preference(accept_language):
        language = tag.partition("-")[0].lower()
        if language in LANGUAGES:
            return language
    return DEFAULT_LANGUAGE


def _by_preference(accept_language: str) -> list[str]:
    weighted = []
    for part in accept_language[:200].split(","):
        tag, _, quality = part.strip().partition(";q=")
        try:
            weighted.append((float(quality or 1), tag.strip()))
        except ValueError:
            continue
    return [tag for weight, tag in sorted(weighted, key=lambda one: -one[0]) if weight > 0]


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def placeholders(text: str) -> set[str]:
    """Names in braces."""
    return set(_names(text))


def _names(text: str) -> Iterable[str]:
    for piece in text.split("{")[1:]:
        yield piece.partition("}")[0].partition(":")[0]
