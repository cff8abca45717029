"""What must be equal on two nodes for the KV of one to be exact on the other."""

import hashlib
from pathlib import Path

import msgspec

from engine_agents.nodes.llama.slot_file import PAYLOAD_VERSION, KvLayout


def file_digest(path: Path) -> str:
    """Size and digest of a model file, as text; reads all of it."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    return f"{path.stat().st_size}:{digest}"


def kv_fingerprint(
    *, model_digest: str, layout: KvLayout, server_version: str, system_info: str, ubatch_tokens: int
) -> str:
    """A short name for model, KV layout, server build and the CPU features it computes with."""
    parts = {
        "model": model_digest,
        "planes": [(plane.ggml_type, plane.row_bytes) for plane in layout.planes],
        "payload_version": PAYLOAD_VERSION,
        "server_version": server_version,
        "system_info": system_info,
        "ubatch_tokens": ubatch_tokens,
    }
    return "llama-" + hashlib.blake2b(msgspec.json.encode(parts), digest_size=12).hexdigest()
