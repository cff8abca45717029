"""The canary that gateways should have now: the open roll-out's, in a phase that has one."""

from dataclasses import dataclass
from typing import Any

from sqlmodel import Session

from control.domain.canary import Canary, plan_trial
from control.domain.policy_scopes import merge_policy
from control.services.rollout_store import StoredRollout, find_open_rollout
from control.store.tables import PolicyRevisionRow


@dataclass(frozen=True, slots=True)
class CanaryPolicy:
    """Which requests are the canary, and the policy that they run under."""

    canary: Canary
    document: dict[str, Any]

    def for_site(self, site: str) -> dict[str, Any]:
        """What a gateway of a site gets."""
        return {**self.canary.to_document(), "policy": merge_policy(self.document, site).document}


def load_canary(session: Session) -> CanaryPolicy | None:
    """What some requests should run under; None where all run under the active revision."""
    stored = find_open_rollout(session)
    if stored is None or not stored.rollout.has_canary:
        return None
    base = session.get_one(PolicyRevisionRow, stored.row.base_revision)
    candidate = session.get_one(PolicyRevisionRow, stored.row.revision)
    return CanaryPolicy(canary_of(stored), plan_trial(base.document, candidate.document).document)


def canary_of(stored: StoredRollout) -> Canary:
    """Which requests are the canary of a roll-out."""
    row = stored.row
    return Canary(row.revision, row.canary_site, row.canary_share, f"rollout-{row.id}-r{row.revision}")
