"""How a prompt's prefill is cut on its way from the command line to the llama server."""

import pytest

from engine_agents.nodes.engine import Generation, Sampling
from engine_agents.nodes.llama.__main__ import command_line, engine_of
from engine_agents.nodes.llama.slot_io import SlotIo
from engine_agents.nodes.llama.slot_memory import SlotMemory
from engine_agents.nodes.llama.slot_session import SlotSession
from engine_agents.nodes.llama.slots import Slot
from tests.unit.llama.llama_fake import LAYOUT, STREAMS, FakeLlama

NODE = ("--name", "ams-p-01", "--port", "0", "--model", "a.gguf")


class CountingLlama(FakeLlama):
    """Keeps how many tokens each evaluation computed."""

    def __init__(self):
        super().__init__()
        self.computed = []

    async def next_token(self, slot, tokens, options):
        token = await super().next_token(slot, tokens, options)
        self.computed.append(token.computed_tokens)
        return token


@pytest.fixture
def memory():
    made = SlotMemory(2)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("flags", "prompt_tokens", "chunks"),
    [
        ((), 150, [64, 86]),
        ((), 170, [64, 64, 42]),
        (("--prefill-chunk-tokens", "50", "--tail-chunk-min-tokens", "0"), 110, [50, 50, 10]),
        (("--prefill-chunk-tokens", "50", "--tail-chunk-min-tokens", "11"), 110, [50, 60]),
        (("--prefill-chunk-tokens", "50", "--tail-chunk-min-tokens", "10"), 110, [50, 50, 10]),
    ],
)
async def test_the_rule_of_the_command_line_cuts_what_the_server_is_asked_to_compute(
    memory, flags, prompt_tokens, chunks
):
    engine = engine_of(command_line().parse_args([*NODE, *flags]))
    api = CountingLlama()
    session = SlotSession(
        Slot(0), b"", api=api, slot_io=SlotIo(api, memory), store=engine.store, layout=LAYOUT, streams=STREAMS
    )
    generation = Generation(tuple(range(prompt_tokens)), 1, Sampling())
    resident, _ = await engine._prefill(session, generation, 0)
    assert (resident, api.computed) == (0, chunks)
