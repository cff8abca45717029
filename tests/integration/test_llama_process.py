"""One llama node as a process of its own: what it answers, and that nothing is left of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.llama

COMMAND = (sys.executable, "-m", "engine_agents.nodes.llama")


@pytest.fixture
def node() -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [*COMMAND, "--name", "n1", "--port", "0", "--slots", "1", "--max-model-len", "256"]
    environment = {**os.environ, "PDD_SITE_SECRET": "a secret"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().removeprefix("ready ").strip()
        finally:
            process.kill()


def written_files(pid: int) -> list[str]:
    """Regular files outside memory that a process holds open for writing; its standard streams do not count."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = link.readlink().as_posix()
            is_writable = link.lstat().st_mode & 0o200
        except FileNotFoundError:  # the node has closed it since: a socket of an ended request
            continue
        if (
            int(link.name) > 2
            and target.startswith("/")
            and not target.startswith(("/memfd:", "/dev/"))
            and is_writable
        ):
            found.append(target)
    return found


def test_a_killed_node_leaves_no_process_no_file_and_no_port(node: tuple[subprocess.Popen[str], str]) -> None:
    process, url = node
    with httpx.Client(base_url=url, timeout=60) as client:
        body = {"model": "smollm2-135m", "prompt": "One, two, three,", "max_tokens": 4, "return_token_ids": True}
        answer = client.post("/v1/completions", json=body).raise_for_status().json()
        assert len(answer["choices"][0]["token_ids"]) == 4
        info = client.get("/pdd/v1/node").raise_for_status().json()
    assert (info["name"], info["engine"], info["exact"], info["slots"]) == ("n1", "llama", True, 1)
    assert Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text() == ""
    assert written_files(process.pid) == []
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


def test_a_told_node_ends_well(node: tuple[subprocess.Popen[str], str]) -> None:
    process, url = node
    assert httpx.get(f"{url}/health").status_code == 200
    process.terminate()
    assert process.wait() == 0


@pytest.mark.parametrize(("content", "message"), [(None, "no model file at"), (b"no model", "cannot load")])
def test_a_model_that_cannot_be_had_is_said_in_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    command = [*COMMAND, "--name", "n1", "--port", "0", "--model", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert message in ended.stderr.splitlines()[-1]
