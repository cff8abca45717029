"""The draft behind the policy editor: read from its form, judged against the active revision, shown again."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqlmodel import Session

from control.domain.inventory import Kind
from control.domain.policy import FieldProblem, diff_policies, effective_values
from control.errors import ControlError, InvalidPolicyError
from control.services.fleet import load_links, load_sites
from control.services.inventory_rows import load_items
from control.services.plane import ControlPlane
from control.services.policies import (
    RevisionDraft,
    load_active,
    load_revision,
    preview_revision,
)
from control.services.policy_scopes import effective_fields
from control.services.rollout_store import find_open_rollout
from webapp.commands import curl_command
from webapp.form_fields import Typed
from webapp.policy_draft import Pending
from webapp.policy_form import (
    FormScope,
    changes_between,
    read_entry,
    scope_fields,
    scopes_of,
    sections,
)
from webapp.policy_units import show_number
from webapp.policy_view import change_views, merged_views
from webapp.visit import Visit
from webapp.yaml_text import YamlError, YamlText, read_yaml, write_yaml

VIEWS: Final = ("form", "yaml", "merged")
MAX_REASON_LENGTH: Final = 500


@dataclass(frozen=True, slots=True)
class Look:
    """How the editor is looked at: as form, YAML or merged, whose fields, merged for whom."""

    view: str = "form"
    scope: FormScope = field(default_factory=FormScope)
    site: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft as it stands: begun on `base_number`, with what could not be read kept as it was typed."""

    base_number: int
    pending: Pending = field(default_factory=Pending)
    text: str | None = None
    document: Mapping[str, Any] | None = None
    typed: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    lines: YamlText | None = None
    yaml_error: YamlError | None = None
    reason: str = ""

    def revision(self, *, apply: bool = False) -> RevisionDraft:
        """As the service takes it."""
        if self.document is not None:
            return RevisionDraft(self.reason, self.base_number, document=self.document, apply=apply)
        return RevisionDraft(
            self.reason,
            self.base_number,
            changes=dict(self.pending.changes),
            apply=apply,
            removed=tuple(self.pending.removed),
        )


def read_look(form: Typed) -> Look:
    """How a form says that the editor is looked at."""
    view = form.text("view")
    scope = FormScope.parse(form.text("new_scope") or form.text("scope"))
    return Look(view if view in VIEWS else "form", scope, form.text("merged_site"), form.text("merged_model"))


def read_draft(plane: ControlPlane, form: Typed) -> Draft:
    """The draft that a form carries: what was pending, and what its fields say now."""
    number = form.number("base_revision") or 0
    with plane.database.reading() as session:
        base = load_revision(session, number).document
        links = [link.name for link in load_links(session)]
        sites = [site.name for site in load_sites(session)]
    pending = Pending.from_text(form.raw("pending"))
    draft = Draft(number, pending, reason=form.text("reason")[:MAX_REASON_LENGTH])
    if form.text("view") == "yaml" and "yaml" in form.data:
        return _read_text(draft, form.raw("yaml").replace("\r\n", "\n"))
    scope = FormScope.parse(form.text("scope"))
    document, _ = pending.applied_to(base)
    fields = [(path, known) for path, known in scope_fields(scope, document, links, sites) if form.has(f"field.{path}")]
    texts = {path: form.text(f"field.{path}") for path, _ in fields}
    entry = read_entry(scope, fields, base, texts)
    typed = {path: texts[path] for path in entry.errors}
    merged = pending.with_entry([path for path, _ in fields], entry.changes, entry.removed)
    return replace(draft, pending=merged, typed=typed, errors={path: f"!{why}" for path, why in entry.errors.items()})


def _read_text(draft: Draft, text: str) -> Draft:
    try:
        read = read_yaml(text)
    except YamlError as error:
        return replace(draft, text=text, yaml_error=error)
    return replace(draft, text=text, document=read.document, lines=read)


def as_pending(plane: ControlPlane, draft: Draft) -> Draft:
    """A draft that was typed as YAML, as changes of single fields."""
    if draft.document is None:
        return draft
    with plane.database.reading() as session:
        base = load_revision(session, draft.base_number).document
    changes, removed = changes_between(base, draft.document)
    return replace(draft, pending=Pending(changes, tuple(removed)), document=None, text=None, lines=None)


def judge_draft(visit: Visit, draft: Draft) -> dict[str, Any]:
    """What a draft would change, and all that keeps it from being applied."""
    t = visit.t
    changes: list[Any] = []
    problems: dict[str, str] = {}
    is_stale = False
    with visit.plane.database.reading() as session:
        active = load_active(session).revision.number
        is_stale = active != draft.base_number
        rollout = find_open_rollout(session)
        if draft.yaml_error is None:
            on_base = replace(draft, base_number=active).revision() if not is_stale else draft.revision()
            try:
                changes = _preview(session, on_base, is_stale=is_stale)
            except InvalidPolicyError as error:
                problems = at_paths(error.problems, error.detail)
            except ControlError as error:
                problems = {"": error.detail}
    problems = {**problems, **{path: _say(t, why) for path, why in draft.errors.items()}}
    blockers = list(_blockers(t, draft, problems, changes))
    if rollout is not None:
        blockers.append(t("rolling.blocks", number=rollout.row.revision))
    body: dict[str, Any] = {"reason": draft.reason or "…", "base_revision": draft.base_number, "apply": True}
    if draft.document is not None:
        body["document"] = dict(draft.document)
    else:
        body["changes"] = dict(draft.pending.changes)
        if draft.pending.removed:
            body["remove"] = list(draft.pending.removed)
    return {
        "changes": change_views(changes),
        "problems": problems,
        "blockers": blockers,
        "is_stale": is_stale,
        "active_number": active,
        "command": curl_command(visit.base, "POST", "/policies/revisions", body) if changes else "",
    }


def _preview(session: Session, draft: RevisionDraft, *, is_stale: bool) -> list[Any]:
    if draft.document is None and not draft.changes and not draft.removed:
        return []
    if not is_stale:
        return preview_revision(session, draft)[1]
    # What it would change of the revision that it was begun on; applying it will show both sides.
    base = load_revision(session, draft.base_revision or 0).document
    pending = Pending(draft.changes or {}, draft.removed)
    document, problems = (dict(draft.document), []) if draft.document is not None else pending.applied_to(base)
    if problems:
        raise InvalidPolicyError(problems=problems)
    return diff_policies(base, document)


def _blockers(t: Any, draft: Draft, problems: Mapping[str, str], changes: list[Any]) -> Any:
    if draft.yaml_error is not None:
        yield t("policies.block_yaml")
    if problems:
        yield t("policies.block_invalid", count=len(problems))
    elif not changes and draft.yaml_error is None:
        yield t("policies.block_nothing")
    if not draft.reason:
        yield t("policies.block_reason")


def _say(t: Any, why: str) -> str:
    """Words for what is wrong with a field; the policy's own sentences stand as they are."""
    return str(t(f"policies.wrong_{why[1:]}")) if why.startswith("!") else why


def at_paths(problems: Any, detail: str) -> dict[str, str]:
    """Problems under the paths of their fields; one sentence where there are none."""
    return {problem.path: problem.message for problem in problems} or {"": detail}


def editor_context(plane: ControlPlane, draft: Draft, look: Look) -> dict[str, Any]:
    """What the editor shows of a draft."""
    with plane.database.reading() as session:
        base = load_revision(session, draft.base_number).document
        links = [link.name for link in load_links(session)]
        sites = [site.name for site in load_sites(session)]
        models = [model.name for model in load_items(session, Kind.MODEL)]
    document: dict[str, Any]
    problems: list[FieldProblem]
    if draft.document is not None:
        document, problems = dict(draft.document), []
    else:
        document, problems = draft.pending.applied_to(base)
    typed = {**draft.typed, **_unreadable(draft, problems)}
    fields = scope_fields(look.scope, document, links, sites) if look.view == "form" else []
    errors = {**{problem.path: problem.message for problem in problems}, **draft.errors}
    values = effective_values(base)
    text = draft.text if draft.text is not None else write_yaml(document) if look.view == "yaml" else ""
    return {
        "draft": draft,
        "look": look,
        "sections": sections(look.scope, fields, base, document, typed=typed, errors=errors),
        "scopes": scopes_of(document, sites, models),
        "sites": sites,
        "models": models,
        "merged": _merged(document, look) if look.view == "merged" else [],
        "yaml_text": text,
        "guard": {
            "share": show_number(float(values["guard.canary_share"]) * 100),
            "bake_s": show_number(float(values["guard.bake_s"])),
        },
        "rollout_problem": "",
    }


def _unreadable(draft: Draft, problems: list[FieldProblem]) -> dict[str, str]:
    """Values that the policy refuses stay in their fields."""
    wanted = {problem.path for problem in problems}
    return {path: str(value) for path, value in draft.pending.changes.items() if path in wanted and value is not None}


def _merged(document: Mapping[str, Any], look: Look) -> list[Any]:
    _, fields = effective_fields(document, look.site or None, look.model or None)
    return merged_views(fields)
