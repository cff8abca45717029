"""Reads and writes fleet documents as YAML, without the surprises of YAML."""

from pathlib import Path
from typing import Any

import yaml

from control.cli.errors import CommandError

_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    """Plain data only: a key that stands twice is refused, and a date stays the text that it is."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as the library has it
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} stands there twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_fleet(path: Path) -> dict[str, Any]:
    """The document in a file; `-` is standard input.

    Raises:
        CommandError: it cannot be read, or is no YAML document with sections.
    """
    try:
        text = Path("/dev/stdin").read_text() if str(path) == "-" else path.read_text()
        document = yaml.load(text, _Loader)  # noqa: S506 - a safe loader
    except OSError as error:
        raise CommandError(f"Cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, TypeError, RecursionError) as error:
        raise CommandError(f"{path} is no YAML document: {error}") from error
    if not isinstance(document, dict):
        raise CommandError(f"{path} holds no fleet document: it must have sections, such as nodes.")
    return document


def write_fleet(document: dict[str, Any]) -> str:
    """A document as YAML; `read_fleet` gives the same back."""
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120))
