"""The values of OpenAI's parameters that are objects."""

from typing import Annotated, Any

import msgspec


class StreamOptions(msgspec.Struct):
    """What a stream ends with."""

    include_usage: bool | None = None


class TextFormat(msgspec.Struct, tag_field="type", tag="text", frozen=True):
    """An answer of any form."""


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object", frozen=True):
    """An answer that is a JSON object."""


class JsonSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """A JSON schema as OpenAI's clients wrap it."""

    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema", frozen=True):
    """An answer that fulfils a JSON schema."""

    json_schema: JsonSchema


class FunctionName(msgspec.Struct, frozen=True):
    """A function that a tool offers."""

    name: Annotated[str, msgspec.Meta(min_length=1)]


class NamedFunction(msgspec.Struct, tag_field="type", tag="function", frozen=True):
    """The choice of one function."""

    function: FunctionName
