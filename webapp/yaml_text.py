"""Documents as YAML: written, read without the surprises of YAML, and each problem at the line of its field. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from control.domain.policy_scopes import split_path

MAX_CHARACTERS: Final = 65_536


class _Loader(yaml.SafeLoader):
    """Plain data only: a key that stands twice is refused, and a date stays the text that it is."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as the library has it
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
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


class YamlError(ValueError):
    """A text that is no YAML document with sections; `line` counts from 1, 0 where it is not known."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class YamlText:
    """A document that was read, and the line of each path in its text."""

    document: dict[str, Any]
    lines: Mapping[tuple[str, ...], int]

    def line_of(self, path: str) -> int:
        """The line of a field, or of the nearest section around it; 1 where the document has neither."""
        keys = split_path(path) if path else ()
        for end in range(len(keys), 0, -1):
            if keys[:end] in self.lines:
                return self.lines[keys[:end]]
        return 1


def write_yaml(document: Mapping[str, Any]) -> str:
    """A document as people edit it; `read_yaml` gives the same back."""
    return str(yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=100))


def read_yaml(text: str, max_characters: int = MAX_CHARACTERS) -> YamlText:
    """Read what somebody typed.

    Raises:
        YamlError: it is too long, no YAML, or no mapping of sections.
    """
    if len(text) > max_characters:
        raise YamlError(f"More than {max_characters} characters.")
    try:
        root = yaml.compose(text, _Loader)
        document = yaml.load(text, _Loader)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(error.problem or "Is no YAML.", mark.line + 1 if mark else 0) from error
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        raise YamlError(str(error).splitlines()[0] or "Is no YAML.") from error
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise YamlError("It must be a document with sections.", 1)
    return YamlText(document, dict(_lines(root, ())))


def _lines(node: yaml.Node | None, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        here = (*path, str(key.value))
        yield here, key.start_mark.line + 1
        yield from _lines(value, here)
