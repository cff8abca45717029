from pathlib import Path

import pytest

from engine_agents.nodes.llama.fingerprint import file_digest, kv_fingerprint
from engine_agents.nodes.llama.server import ModelNotFoundError, ServerSettings, start_server
from engine_agents.nodes.llama.slot_file import KvLayout, Plane

BASE = {
    "model_digest": "3:abc",
    "layout": KvLayout((Plane(1, 384), Plane(1, 384))),
    "server_version": "1",
    "system_info": "AVX2 = 1",
    "ubatch_tokens": 32,
}


def test_equal_parts_give_equal_fingerprints() -> None:
    assert kv_fingerprint(**BASE) == kv_fingerprint(**BASE)


@pytest.mark.parametrize(
    "change",
    [
        {"model_digest": "3:abd"},
        {"layout": KvLayout((Plane(1, 384), Plane(1, 768)))},
        {"layout": KvLayout((Plane(8, 384), Plane(1, 384)))},
        {"server_version": "2"},
        {"system_info": "AVX512 = 1"},
        {"ubatch_tokens": 64},
    ],
    ids=lambda change: next(iter(change)),
)
def test_any_difference_gives_another_fingerprint(change: dict) -> None:
    assert kv_fingerprint(**BASE | change) != kv_fingerprint(**BASE)


def test_a_file_is_known_by_its_contents(tmp_path: Path) -> None:
    one, same, other = tmp_path / "one", tmp_path / "same", tmp_path / "other"
    one.write_bytes(b"weights")
    same.write_bytes(b"weights")
    other.write_bytes(b"weightz")
    assert file_digest(one) == file_digest(same) != file_digest(other)


def test_a_missing_model_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="absent"):
        start_server(ServerSettings(tmp_path / "absent.gguf"))
