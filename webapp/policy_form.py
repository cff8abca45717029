"""The policy's editor as a form: which fields a scope has, what stands in them, what was typed. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from control.domain.policy_check import class_names, leaves, member_names
from control.domain.policy_fields import (
    DEFAULT_CLASS,
    FIELD_FAMILIES,
    POLICY_FIELDS,
    PolicyField,
    family_fields,
    is_member_name,
)
from control.domain.policy_scopes import OVERRIDES, Scope, is_scope_name, may_override, overrides_of
from webapp.policy_units import NotANumberError, OutOfBoundsError, read_value, show_bounds, show_value, shown_unit

GENERAL: Final = "general"
CLASS: Final = "class"
_SCOPES: Final = {"site": Scope.SITE, "model": Scope.MODEL}


@dataclass(frozen=True, slots=True)
class FormScope:
    """Whose fields are edited: everybody's, those of a service class, or what a site or model has of its own."""

    kind: str = GENERAL
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> "FormScope":
        """Read `general`, `class:NAME`, `site:NAME` or `model:NAME`; anything else is general."""
        kind, _, name = text.partition(":")
        if kind == CLASS and is_member_name(name):
            return cls(kind, name)
        if kind in _SCOPES and is_scope_name(_SCOPES[kind], name):
            return cls(kind, name)
        return cls()

    @property
    def key(self) -> str:
        """As it stands in an address."""
        return self.kind if self.kind == GENERAL else f"{self.kind}:{self.name}"

    @property
    def is_override(self) -> bool:
        """Whether an empty field means that the general value holds."""
        return self.kind in _SCOPES

    @property
    def prefix(self) -> str:
        """What the paths of its fields begin with."""
        return f"{OVERRIDES}.{_SCOPES[self.kind].value}.{self.name}." if self.is_override else ""


@dataclass(frozen=True, slots=True)
class FieldView:
    """One field. `text` is what stands in it, `base` what stood there; `inherited` holds where it is empty."""

    path: str
    label_key: str
    kind: str
    unit: str
    text: str
    base: str
    inherited: str
    default: str
    bounds: tuple[str, str] | None
    choices: tuple[str, ...]
    enforced_by: tuple[str, ...]
    locked_key: str
    help: str
    locked_why: str
    is_nullable: bool
    is_override: bool
    error: str = ""

    @property
    def is_changed(self) -> bool:
        """Whether it differs from the revision that it was begun on."""
        return self.text != self.base

    @property
    def slug(self) -> str:
        """Its id in the page."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.path)


@dataclass(frozen=True, slots=True)
class SectionView:
    """Fields that belong together; `name` is the class or link that they are about."""

    key: str
    name: str
    fields: tuple[FieldView, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """What a form says: values by path, paths taken out, and what is wrong, `number` or `bounds` or `value`."""

    changes: Mapping[str, Any]
    removed: Sequence[str]
    errors: Mapping[str, str]


def scope_fields(
    scope: FormScope, document: Mapping[str, Any], links: Iterable[str], sites: Iterable[str] = ()
) -> list[tuple[str, PolicyField]]:
    """The fields of a scope, each with its whole path in the document; links and sites have theirs unnamed, too."""
    if scope.kind == CLASS:
        return [(field.path, field) for field in family_fields("classes", scope.name)]
    names = list(class_names(document))
    fields = [field for field in POLICY_FIELDS if not field.path.startswith(("classes.", "guard."))]
    for name in names:
        fields += family_fields("classes", name)
    for family, known in (("link", links), ("pools", sites)):
        for name in dict.fromkeys((*known, *member_names(document, family))):
            if is_member_name(name):
                fields += family_fields(family, name)
    fields += [field for field in POLICY_FIELDS if field.path.startswith("guard.")]
    if scope.is_override:
        fields = [field for field in fields if may_override(_SCOPES[scope.kind], field)]
    return [(scope.prefix + field.path, field) for field in fields]


def sections(
    scope: FormScope,
    fields: Sequence[tuple[str, PolicyField]],
    base: Mapping[str, Any],
    document: Mapping[str, Any],
    *,
    typed: Mapping[str, str] | None = None,
    errors: Mapping[str, str] | None = None,
) -> list[SectionView]:
    """The form.

    Args:
        scope: whose fields.
        fields: what `scope_fields` gave.
        base: the document that the draft was begun on.
        document: the document as the draft has it.
        typed: texts that could not be read, kept as they were typed.
        errors: what is wrong, by path.
    """
    before, after = dict(leaves(base)), dict(leaves(document))
    grouped: dict[tuple[str, str], list[FieldView]] = {}
    for path, field in fields:
        view = _view(scope, path, field, before, after)
        view = replace(view, text=(typed or {}).get(path, view.text), error=(errors or {}).get(path, ""))
        grouped.setdefault(_section_of(field.path), []).append(view)
    return [SectionView(key, name, tuple(views)) for (key, name), views in grouped.items()]


def read_entry(
    scope: FormScope, fields: Sequence[tuple[str, PolicyField]], base: Mapping[str, Any], texts: Mapping[str, str]
) -> Entry:
    """What the texts of a form say against the document that it was begun on. A locked field is never read."""
    known = dict(leaves(base))
    changes: dict[str, Any] = {}
    removed: list[str] = []
    errors: dict[str, str] = {}
    for path, field in fields:
        if path not in texts or field.disabled_reason:
            continue
        text = texts[path]
        if text == _stored_text(scope, path, field, known):
            continue
        if not text:
            if scope.is_override or _is_member_default(field, known, path):
                removed.append(path)
            elif field.nullable:
                changes[path] = None
            else:
                errors[path] = "value"
            continue
        try:
            changes[path] = read_value(field, text)
        except NotANumberError:
            errors[path] = "number"
        except OutOfBoundsError:
            errors[path] = "bounds"
    return Entry(changes, removed, errors)


def scopes_of(document: Mapping[str, Any], sites: Iterable[str], models: Iterable[str]) -> list[tuple[str, int]]:
    """Every scope that can be chosen: its key, and how many fields it has of its own, 0 for general ones."""
    counts = {
        (override.scope, override.name): len(list(leaves(override.section)))
        for override in overrides_of(document)
        if isinstance(override.section, Mapping)
    }
    found: list[tuple[str, int]] = [(GENERAL, 0)]
    found += [(f"{CLASS}:{name}", 0) for name in class_names(document)]
    for kind, scope, names in (("site", Scope.SITE, sites), ("model", Scope.MODEL, models)):
        known = [name for other, name in counts if other is scope]
        found += [(f"{kind}:{name}", counts.get((scope, name), 0)) for name in dict.fromkeys((*names, *known))]
    return found


def _view(
    scope: FormScope, path: str, field: PolicyField, before: Mapping[str, Any], after: Mapping[str, Any]
) -> FieldView:
    general = after.get(field.path, field.default)
    return FieldView(
        path=path,
        label_key=label_key(field.path),
        kind=field.kind.value,
        unit=shown_unit(field).name,
        text=_stored_text(scope, path, field, after),
        base=_stored_text(scope, path, field, before),
        inherited=show_value(field, general) if scope.is_override else "",
        default=show_value(field, field.default),
        bounds=show_bounds(field),
        choices=field.choices,
        enforced_by=field.enforced_by,
        locked_key=label_key(field.path) if field.disabled_reason else "",
        help=field.help,
        locked_why=field.disabled_reason,
        is_nullable=field.nullable,
        is_override=scope.is_override,
    )


def label_key(path: str) -> str:
    """A field's name in the catalogue: the same for every class and link."""
    family, _, rest = path.partition(".")
    return f"{family}.{rest.partition('.')[2]}" if family in FIELD_FAMILIES else path


def find_shown(path: str) -> str:
    """The part of a path that names the field, without whom it is an override for."""
    return path.split(".", 3)[-1] if path.startswith(f"{OVERRIDES}.") else path


def _stored_text(scope: FormScope, path: str, field: PolicyField, known: Mapping[str, Any]) -> str:
    if path in known:
        return show_value(field, known[path])
    return "" if scope.is_override else show_value(field, field.default)


def _is_member_default(field: PolicyField, known: Mapping[str, Any], path: str) -> bool:
    """A named class or link falls back to the default where its field is emptied, unless empty means something."""
    return path in known and not field.nullable and field.path.split(".")[0] in FIELD_FAMILIES


def _section_of(path: str) -> tuple[str, str]:
    family, _, rest = path.partition(".")
    return (family, rest.partition(".")[0]) if family in FIELD_FAMILIES else (family, "")


def changes_between(base: Mapping[str, Any], document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The values by path that differ, and the paths that are gone."""
    before, after = dict(leaves(base)), dict(leaves(document))
    changes = {path: value for path, value in after.items() if path not in before or before[path] != value}
    return changes, sorted(before.keys() - after.keys())


def iterate_fields(views: Iterable[SectionView]) -> Iterator[FieldView]:
    """All fields of a form."""
    for section in views:
        yield from section.fields


__all__ = (
    "DEFAULT_CLASS",
    "Entry",
    "FieldView",
    "FormScope",
    "SectionView",
    "changes_between",
    "find_shown",
    "iterate_fields",
    "label_key",
    "read_entry",
    "scope_fields",
    "scopes_of",
    "sections",
)
