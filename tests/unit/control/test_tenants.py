"""Tenants: keys that are shown once, and gateways that are told."""

import pytest
from sqlmodel import select

from control.domain.policy import DEFAULT_POLICY_DOCUMENT, apply_changes
from control.domain.topology import FleetSnapshot
from control.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from control.services.access import Principal, Role
from control.services.audit import load_events
from control.services.fleet import load_snapshot, load_tenants
from control.services.policies import RevisionDraft, create_revision
from control.services.tenants import create_tenant, delete_tenant
from control.store.tables import TenantRow
from engine_agents.gateway.tenants import key_hash

OLGA, VERA = Principal("olga", Role.OPERATOR), Principal("vera", Role.VIEWER)


def test_a_tenant_is_told_to_every_gateway_by_the_hash_of_its_key(seeded, orders):
    tenant, key = create_tenant(seeded, OLGA, "acme")
    assert tenant.key_sha256 == key_hash(key)
    assert len(key) > 40
    [order] = orders
    assert (order.task, order.arguments["revision"]) == ("policies.push", 1)
    pushed = FleetSnapshot.from_document(order.arguments["fleet"])
    assert pushed.tenants == (tenant,)
    with seeded.database.reading() as session:
        assert load_snapshot(session) == pushed
        assert key not in str([row.model_dump() for row in session.exec(select(TenantRow))])
        events = load_events(session, 50)
    assert (events[0].action, events[0].after) == ("tenant.create", {"classes": ["default"], "salt": None})
    assert all(key not in str(event) and tenant.key_sha256 not in str(event) for event in events)


def test_a_tenant_that_is_shut_out_leaves_the_gateways(seeded, orders):
    create_tenant(seeded, OLGA, "acme")
    delete_tenant(seeded, OLGA, "acme")
    assert FleetSnapshot.from_document(orders[-1].arguments["fleet"]).tenants == ()
    with pytest.raises(NotFoundError):
        delete_tenant(seeded, OLGA, "acme")


def test_classes_are_those_of_the_active_policy(seeded):
    with pytest.raises(InvalidError, match="gold"):
        create_tenant(seeded, OLGA, "acme", ("gold",))
    document = apply_changes(DEFAULT_POLICY_DOCUMENT, {"classes.gold.ttft_p90_s": 1})
    create_revision(seeded, OLGA, RevisionDraft("a class", 1, document=document, apply=True))
    tenant, _ = create_tenant(seeded, OLGA, "acme", ("gold", "default", "gold"), salt=True)
    assert (tenant.classes, tenant.salt) == (("gold", "default"), True)


def test_refuses_names_that_are_none_doubles_and_viewers(seeded, orders):
    create_tenant(seeded, OLGA, "acme")
    with pytest.raises(ConflictError):
        create_tenant(seeded, OLGA, "acme")
    for name in ("", "Acme", "a/b", "a" * 64):
        with pytest.raises(InvalidError):
            create_tenant(seeded, OLGA, name)
    with pytest.raises(ForbiddenError):
        create_tenant(seeded, VERA, "other")
    with pytest.raises(ForbiddenError):
        delete_tenant(seeded, VERA, "acme")
    with seeded.database.reading() as session:
        assert [tenant.name for tenant in load_tenants(session)] == ["acme"]
    assert len(orders) == 1
