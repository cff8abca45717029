"""Examples for the OpenAPI document: a body for each request that has one, and values for texts that name things.

Values come from one small fleet: sites `ams` and `fra`, a prefill node, a main decode node, the link between them.
"""

from typing import Any

_END = "2031-01-01T00:00:00Z"
_SITE = {"name": "ams", "label": "Amsterdam", "networks": ["10.1.0.0/16"]}
_CHIP = {
    "name": "H20",
    "peak_flops": 1.48e14,
    "memory_bytes": 96_000_000_000,
    "memory_bytes_per_s": 4.0e12,
    "interconnect_bytes_per_s": 4.5e11,
    "price_per_hour": 2.4,
}
_MODEL = {"name": "smollm2-135m", "kv_bytes_per_token": 23_040, "layers": 30, "attention": "gqa"}
_NODE = {
    "name": "ams-p-01",
    "site": "ams",
    "role": "prefill",
    "url": "http://10.1.0.11:8000",
    "engine": "vllm",
    "model": "smollm2-135m",
    "chip": "H20",
}
_LINK = {"name": "ams-fra", "source": "ams", "target": "fra", "capacity_bytes_per_s": 1.25e9, "rtt_s": 0.03}
_GATEWAY = {"name": "ams-gw-01", "site": "ams", "url": "http://10.1.0.10:8000"}
_SLO = {"indicator": "ttft", "target": 0.99, "threshold_s": 15.0, "service_class": "default"}
_REASON = {"reason": "slow link"}

BODY_EXAMPLES: dict[tuple[str, str], Any] = {
    ("post", "/sites"): _SITE,
    ("put", "/sites/{name}"): _SITE,
    ("post", "/chips"): _CHIP,
    ("put", "/chips/{name}"): _CHIP,
    ("post", "/models"): _MODEL,
    ("put", "/models/{name}"): _MODEL,
    ("post", "/nodes"): _NODE,
    ("put", "/nodes/{name}"): _NODE,
    ("post", "/links"): _LINK,
    ("put", "/links/{name}"): _LINK,
    ("put", "/links/{name}/transfers/{transfer_id}"): {"paused": True, **_REASON},
    ("post", "/gateways"): _GATEWAY,
    ("put", "/gateways/{name}"): _GATEWAY,
    ("put", "/fleet"): {"sites": [_SITE], "chips": [_CHIP]},
    ("post", "/site-secret/rotations"): {"reason": "somebody left", "grace_s": 3600},
    ("post", "/tenants"): {"name": "acme", "classes": ["default"]},
    ("post", "/policies/revisions"): {
        "reason": "slow link",
        "base_revision": 1,
        "changes": {"routing.relay_when_transfer_exceeds_s": 0.8},
        "apply": True,
    },
    ("post", "/policies/revisions/{number}/apply"): _REASON,
    ("post", "/rollouts"): {"revision": 4, "share": 0.1, "reason": "slow link"},
    ("post", "/rollouts/{number}/promote"): {"reason": "looks good, and we know why"},
    ("post", "/operations"): {"kind": "drain", "node": "ams-p-01", "reason": "new driver", "timeout_s": 120},
    ("post", "/operations/{number}/cancel"): {"reason": "the driver can wait"},
    ("post", "/operations/{number}/retry"): {"reason": "the node is back"},
    ("put", "/demo-traffic"): {"running": False},
    ("post", "/slos"): {"name": "ttft-p99", **_SLO},
    ("put", "/slos/{name}"): _SLO,
    ("post", "/users"): {"username": "olga", "role": "operator"},
    ("put", "/users/me/password"): {"current": "the one you have now", "new": "a longer one that nobody knows"},
    ("patch", "/users/{username}"): {"role": "viewer", "reason": "another team"},
    ("post", "/users/{username}/password"): {"reason": "forgotten"},
    ("post", "/tokens"): {"name": "ci", "scopes": ["read", "policies:write"], "expires_at": _END},
}

_MOMENT = "2030-01-02T03:04:05Z"
# By the name of a property; "Schema.property" comes first where a name means different things.
TEXT_EXAMPLES: dict[str, Any] = {
    "BurnOut.pair": "1h and 5m",
    "ChipIn.name": "H20",
    "ChipOut.name": "H20",
    "GatewayIn.name": "ams-gw-01",
    "GatewayOut.name": "ams-gw-01",
    "EntranceOut.name": "ams-gw-01",
    "LinkIn.name": "ams-fra",
    "LinkOut.name": "ams-fra",
    "ModelIn.name": "smollm2-135m",
    "ModelOut.name": "smollm2-135m",
    "SiteIn.name": "ams",
    "SiteOut.name": "ams",
    "SloOut.name": "ttft-p99",
    "SloOut.source": "operator",
    "CanaryOut.site": None,
    "RolloutIn.site": "ams",
    "RolloutOut.ending": "every signal was within its bounds",
    "SignalOut.unit": "s",
    "SignalOut.signal": "ttft_p99",
    "OperationOut.target": "node/ams-p-01",
    "OperationPreviewOut.target": "node/ams-p-01",
    "TenantCreatedOut.name": "acme",
    "TenantIn.name": "acme",
    "TenantOut.name": "acme",
    "ProblemTypeOut.title": "It has changed meanwhile",
    "activated_at": _MOMENT,
    "actor": "olga",
    "admin_url": "http://10.1.0.9:9101",
    "applied_at": _MOMENT,
    "at": _MOMENT,
    "chip": "H20",
    "created_at": _MOMENT,
    "created_by": "olga",
    "current": "the one you have now",
    "description": "First tokens come in time.",
    "detail": "The change was made against revision 3; 4 is active now.",
    "disabled_at": None,
    "engine": "vllm",
    "error": "",
    "expires_at": _END,
    "finished_at": _MOMENT,
    "gateway": "ams-gw-01",
    "health": "healthy",
    "label": "Amsterdam",
    "last_used_at": _MOMENT,
    "link": "ams-fra",
    "measured_at": _MOMENT,
    "model": "smollm2-135m",
    "name": "ams-p-01",
    "new": "a longer one that nobody knows",
    "next_cursor": "YW1zLXAtMDE",
    "node": "ams-p-01",
    "path": "routing.relay_when_transfer_exceeds_s",
    "quantisation": "fp8",
    "reason": "slow link",
    "relay_host": "10.1.0.9",
    "revoked_at": None,
    "service_class": "default",
    "site": "ams",
    "source": "ams",
    "started_at": _MOMENT,
    "subject": "ams-p-01",
    "target": "fra",
    "traffic": "live",
    "updated_at": _MOMENT,
    "updated_by": "olga",
    "url": "http://10.1.0.11:8000",
    "username": "olga",
}


def add_examples(document: dict[str, Any], prefix: str) -> None:
    """Put the examples into the document, in place; `prefix` is what its paths begin with."""
    for name, schema in document["components"]["schemas"].items():
        for property_name, inner in schema.get("properties", {}).items():
            if "examples" in inner or "const" in inner or "enum" in inner or not _is_text(inner):
                continue
            key = f"{name}.{property_name}"
            if key in TEXT_EXAMPLES or property_name in TEXT_EXAMPLES:
                inner["examples"] = [TEXT_EXAMPLES.get(key, TEXT_EXAMPLES.get(property_name))]
    for path, item in document["paths"].items():
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content is not None:
                known = BODY_EXAMPLES.get((method, path.removeprefix(prefix)))
                content["example"] = known if known is not None else sample_of(content["schema"], document)


def sample_of(schema: dict[str, Any], document: dict[str, Any]) -> Any:
    """A value of a schema, from its own examples as far as it has some; of an object only what is required."""
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for key in ("examples", "enum"):
        if key in schema:
            return schema[key][0]
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return sample_of(schema[key][0], document)
    if schema.get("format") == "date-time":
        return _END
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        return {name: sample_of(properties[name], document) for name in schema.get("required", [])}
    if schema.get("type") == "array":
        return [sample_of(schema["items"], document)]
    if schema.get("type") in {"integer", "number"}:
        return schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
    return {"boolean": True, "null": None}.get(schema.get("type", ""), "text")


def _is_text(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "string" or any(_is_text(one) for one in schema.get("anyOf", []))
