import re

import pytest

from control.domain.inventory import Kind
from webapp.operation_form import KINDS

ADDRESSES = (
    "/policies",
    "/policies?view=yaml",
    "/policies?view=merged",
    "/policies?scope=site:ams",
    "/policies?scope=class:default",
    "/policies/revisions/1",
    "/policies/running",
    "/operations",
    "/operations/list",
    "/operations/workers",
    *(f"/operations/form?kind={kind}" for kind in KINDS),
    "/alerts",
    "/alerts?tab=rules",
    "/alerts?tab=silences&matchers=site%3Dams",
    "/alerts?tab=webhooks",
    "/alerts/now",
    "/alerts/slos/form",
    "/alerts/rules/form",
    "/alerts/rules/form?name=valley",
    "/audit",
    "/audit/table?actor=x",
    "/audit/verify",
    "/access",
    *(f"/inventory?kind={kind}" for kind in Kind),
    *(f"/inventory/item?kind={kind}" for kind in Kind),
    "/inventory/item?kind=sites&name=ams",
)


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_every_page_and_fragment_comes_whole_in_every_language(admin, language):
    admin.cookies.set("pdd_language", language)
    for address in ADDRESSES if language == "en" else ADDRESSES[::3]:
        reply = await admin.get(address)
        assert reply.status_code == 200, address
        assert not re.search(r"\sstyle=|\son\w+=", reply.text), address
        assert not re.search(r"<script(?![^>]*(src=|application/json))", reply.text), address


async def test_what_cannot_be_meant_in_an_address_falls_back(admin):
    for address in (
        "/policies?view=x&scope=site:..",
        "/operations?kind=x&state=x&start=x",
        "/alerts?tab=x",
        "/audit?since=x&until=2026-13-01",
        "/inventory?kind=x&site=nowhere",
    ):
        assert (await admin.get(address)).status_code == 200, address
    assert (await admin.get("/operations/7")).status_code == 404
    assert (await admin.get("/policies/revisions/7")).status_code == 404
