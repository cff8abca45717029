"""Who comes in and what is remembered of them: the routers of accounts, tokens, sessions and the audit trail."""

from fastapi import APIRouter

from control.api import audit, tokens, users

router = APIRouter()
for _module in (users, tokens, audit):
    router.include_router(_module.router)
