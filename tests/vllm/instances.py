"""Starts stock vLLM instances as one P, one RLD and one MD that pull KV from each other over loopback."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from control.domain.topology import Role
from tests.processes import running_process
from tests.services import free_port
from tests.vllm.install import MODEL, PYTHON

MODEL_NAME = "tiny-llama"
BLOCK_TOKENS = 32
LAYERS, KV_HEADS, HEAD_SIZE, FLOAT_BYTES = 4, 2, 64, 4
KV_BYTES_PER_TOKEN = 2 * LAYERS * KV_HEADS * HEAD_SIZE * FLOAT_BYTES
START_LIMIT_S = 600
WARM_UP_TOKENS = 96
HANDSHAKE_TRIES = 6
RELAY_TOKENS_PER_CHUNK = 4


@dataclass(frozen=True)
class Instance:
    """One vLLM process. The relay joins tokens as a busy server would, the hardest case for a cut."""

    role: Role
    port: int
    side_port: int
    core: int

    @property
    def url(self) -> str:
        """Base of its HTTP API."""
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """What it must find in its environment."""
        return {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONHASHSEED": "0",  # equal block hashes in all instances
            "PYTHONPATH": str(Path(__file__).with_name("site")),
            "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",  # a forked worker would not run sitecustomize
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_CPU_OMP_THREADS_BIND": str(self.core),  # `auto` pins all instances to the first core
            "OMP_NUM_THREADS": "1",
            "UCX_TLS": "tcp,self",
            "UCX_NET_DEVICES": "lo",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_port),
        }

    def command(self) -> list[str]:
        """How it is started."""
        kv_role = "kv_producer" if self.role is Role.PREFILL else "kv_consumer"
        transfer = {"kv_connector": "NixlConnector", "kv_role": kv_role, "kv_buffer_device": "cpu"}
        options = {
            "model": MODEL,
            "served-model-name": MODEL_NAME,
            "host": "127.0.0.1",
            "port": self.port,
            "dtype": "float32",  # equal answers however a batch is composed: bfloat16 rounds differently by kernel
            "max-model-len": 4096,
            "max-num-seqs": 4,
            "block-size": BLOCK_TOKENS,
            "stream-interval": RELAY_TOKENS_PER_CHUNK if self.role is Role.RELAY else 1,
            "kv-transfer-config": json.dumps(transfer),
        }
        flags = ["--enforce-eager", "--enable-prompt-tokens-details", "--enable-server-load-tracking"]
        arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        server = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server"]
        return ["nice", "-n", "5", *server, *arguments, *flags]


@asynccontextmanager
async def running_instances(log_folder: Path, http: httpx.AsyncClient) -> AsyncIterator[dict[Role, Instance]]:
    """P, RLD and MD, ready and acquainted; they end with the context, and with this process however it ends.

    Raises:
        TimeoutError: they do not come up in time.
        RuntimeError: one of them ended; the end of its log is in the text.
    """
    cores = sorted(os.sched_getaffinity(0))
    instances = {
        role: Instance(role, free_port(), free_port(), cores[-1] if role is Role.MAIN else cores[0]) for role in Role
    }
    async with AsyncExitStack() as stack:
        starts = []
        for role, instance in instances.items():
            log_path = log_folder / f"vllm-{role.value}.log"
            log = stack.enter_context(log_path.open("wb"))
            process = stack.enter_context(running_process(instance.command(), log, instance.environment()))
            starts.append(_ready(instance, http, process, log_path))
        async with asyncio.timeout(START_LIMIT_S):
            await asyncio.gather(*starts)
        await _acquaint(instances, http)
        yield instances


async def _ready(instance, http, process, log_path: Path) -> None:
    """Wait until it answers, then let it compute a prompt.

    On a CPU with AMX the first forward must be a prefill: oneDNN asks the kernel for the tiles then, and an instance
    whose first forward is one token, as after a pull, dies of an illegal instruction.
    """
    while not await _is_healthy(instance, http):
        if process.poll() is not None:
            raise RuntimeError(f"{instance.role} ended: {_end_of(log_path)}")
        await asyncio.sleep(1)
    await complete(http, instance, list(range(10, 10 + WARM_UP_TOKENS)), max_tokens=2, cache_salt="warm-up")


def _end_of(log_path: Path) -> str:
    return log_path.read_text(errors="replace")[-2000:]


async def _is_healthy(instance: Instance, http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get(f"{instance.url}/health")).status_code == 200
    except httpx.HTTPError:
        return False


async def _acquaint(instances: dict[Role, Instance], http: httpx.AsyncClient) -> None:
    """Have RLD and MD pull once: NIXL's first handshake may take longer than it allows itself on a busy machine."""
    prompt = list(range(100, 100 + WARM_UP_TOKENS))
    for role in (Role.RELAY, Role.MAIN):
        for attempt in range(1, HANDSHAKE_TRIES + 1):
            asks = {"do_remote_decode": True, "do_remote_prefill": False}
            lease = await complete(http, instances[Role.PREFILL], prompt, max_tokens=1, kv_transfer_params=asks)
            try:
                params = lease["kv_transfer_params"]
                await complete(http, instances[role], prompt, max_tokens=1, kv_transfer_params=params)
                break
            except httpx.HTTPStatusError:
                if attempt == HANDSHAKE_TRIES:
                    raise


async def complete(http: httpx.AsyncClient, instance: Instance, prompt: list[int] | str, **fields) -> dict:
    """A completion at temperature 0, asked of one instance without any gateway.

    Raises:
        httpx.HTTPStatusError: it answered with an error.
    """
    body = {"model": MODEL_NAME, "prompt": prompt, "temperature": 0, "return_token_ids": True, **fields}
    response = await http.post(f"{instance.url}/v1/completions", json=body)
    response.raise_for_status()
    return response.json()
