"""Agent sessions made from a seed: several turns each, a growing context, hit rates that are skewed towards 100 %."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

TEMPLATE_TOKENS_PER_MESSAGE = 5

_SUBJECTS = ("the build", "this module", "the parser", "a test", "the cache", "the queue", "the index")
_ACTS = ("reads", "opens", "writes", "checks", "moves", "keeps", "drops", "counts", "sorts", "sends")
_OBJECTS = (
    "one file",
    "each line",
    "the first key",
    "a long list",
    "two blocks",
    "the next page",
    "all names",
    "a port",
)
_ENDS = (
    "and then it stops",
    "before the call returns",
    "when the disk is full",
    "and tells the user why",
    "once a day",
)
_TOKENS_PER_SENTENCE = 11


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers or seconds drawn evenly between two bounds, both included."""

    low: float
    high: float

    def draw(self, rng: Random) -> float:
        """A real number from the span."""
        return rng.uniform(self.low, self.high)

    def draw_int(self, rng: Random) -> int:
        """A whole number from the span."""
        return rng.randint(int(self.low), int(self.high))


@dataclass(frozen=True, slots=True)
class StepKind:
    """One kind of agent step: how often it happens, what it adds to the context, how long the answer may be."""

    weight: float
    message_tokens: Span
    output_tokens: Span


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """What sessions look like. The defaults suit a small model: prompts of 200 to 1,000 tokens.

    `agents` is how many different system prompts exist; sessions of one agent share theirs. A cold session has a
    long prompt that nothing has seen before; an outlier has a longer one yet and wants a word or two of answer.
    """

    agents: int = 2
    system_tokens: Span = Span(260, 420)
    opening_tokens: Span = Span(40, 120)
    turns: Span = Span(6, 14)
    cold_share: float = 0.12
    cold_tokens: Span = Span(250, 500)
    cold_output_tokens: Span = Span(96, 160)
    outlier_share: float = 0.0
    outlier_tokens: Span = Span(700, 800)
    outlier_output_tokens: Span = Span(8, 24)
    think_s: Span = Span(1.5, 6.0)
    max_context_tokens: int = 1000
    steps: tuple[StepKind, ...] = (
        StepKind(0.70, Span(4, 12), Span(12, 40)),
        StepKind(0.20, Span(12, 40), Span(32, 80)),
        StepKind(0.10, Span(80, 180), Span(80, 140)),
    )

    def scaled(self, factor: float) -> "WorkloadShape":
        """The same sessions with prompts `factor` times as long, for larger models; answers and pauses stay."""

        def longer(span: Span) -> Span:
            return Span(span.low * factor, span.high * factor)

        return WorkloadShape(
            agents=self.agents,
            system_tokens=longer(self.system_tokens),
            opening_tokens=longer(self.opening_tokens),
            turns=self.turns,
            cold_share=self.cold_share,
            cold_tokens=longer(self.cold_tokens),
            cold_output_tokens=self.cold_output_tokens,
            outlier_share=self.outlier_share,
            outlier_tokens=longer(self.outlier_tokens),
            outlier_output_tokens=self.outlier_output_tokens,
            think_s=self.think_s,
            max_context_tokens=int(self.max_context_tokens * factor),
            steps=tuple(StepKind(step.weight, longer(step.message_tokens), step.output_tokens) for step in self.steps),
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session. `think_s` passes between the last answer and this message."""

    message: str
    message_tokens: int
    max_output_tokens: int
    think_s: float


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """A whole session. `system` is empty for a cold one. Token counts are estimates made without a tokenizer."""

    name: str
    system: str
    system_tokens: int
    turns: tuple[Turn, ...]

    @property
    def is_cold(self) -> bool:
        """Whether no other session shares its beginning."""
        return not self.system


def plan_session(seed: int, index: int, shape: WorkloadShape) -> SessionPlan:
    """Session number `index` of a seed; the same arguments always give the same session."""
    rng = Random(f"{seed}/session/{index}")  # noqa: S311 - a workload, not a secret
    kind = rng.random()
    if kind < shape.cold_share:
        return _cold_session(rng, f"cold-{index}", shape, shape.cold_tokens, shape.cold_output_tokens)
    if kind < shape.cold_share + shape.outlier_share:
        return _cold_session(rng, f"outlier-{index}", shape, shape.outlier_tokens, shape.outlier_output_tokens)
    agent = rng.randrange(shape.agents)
    system_rng = Random(f"{seed}/agent/{agent}")  # noqa: S311
    system_tokens = shape.system_tokens.draw_int(system_rng)
    system = message_text(system_rng, system_tokens)
    context = system_tokens + TEMPLATE_TOKENS_PER_MESSAGE
    turns: list[Turn] = []
    for _ in range(shape.turns.draw_int(rng)):
        turn = _next_turn(rng, shape, opening=not turns)
        context += turn.message_tokens + 2 * TEMPLATE_TOKENS_PER_MESSAGE
        if turns and context > shape.max_context_tokens:
            break
        context += turn.max_output_tokens
        turns.append(turn)
    return SessionPlan(f"agent-{index}", system, system_tokens, tuple(turns))


def _next_turn(rng: Random, shape: WorkloadShape, *, opening: bool) -> Turn:
    kind = rng.choices(shape.steps, weights=[step.weight for step in shape.steps])[0]
    tokens = (shape.opening_tokens if opening else kind.message_tokens).draw_int(rng)
    return Turn(message_text(rng, tokens), tokens, kind.output_tokens.draw_int(rng), shape.think_s.draw(rng))


def _cold_session(
    rng: Random, name: str, shape: WorkloadShape, prompt_tokens: Span, output_tokens: Span
) -> SessionPlan:
    tokens = prompt_tokens.draw_int(rng)
    text = f"Job {rng.randrange(10**9)}. {message_text(rng, tokens)}"
    turn = Turn(text, tokens, output_tokens.draw_int(rng), shape.think_s.draw(rng))
    return SessionPlan(name, "", 0, (turn,))


def message_text(rng: Random, tokens: int) -> str:
    """Plain English of about that many tokens."""
    words: list[str] = []
    while len(words) * _TOKENS_PER_SENTENCE / 10 < tokens:
        sentence = f"{rng.choice(_SUBJECTS)} {rng.choice(_ACTS)} {rng.choice(_OBJECTS)} {rng.choice(_ENDS)}."
        words += sentence.capitalize().split()
    return " ".join(words[: max(1, round(tokens * 10 / _TOKENS_PER_SENTENCE))])


def hit_rates(plan: SessionPlan) -> Iterator[float]:
    """Share of each turn's prompt that an endless cache would hold, if every answer is as long as it may be.

    The system prompt counts as known from other sessions.
    """
    known = plan.system_tokens
    context = plan.system_tokens + (TEMPLATE_TOKENS_PER_MESSAGE if plan.system else 0)
    for turn in plan.turns:
        context += turn.message_tokens + 2 * TEMPLATE_TOKENS_PER_MESSAGE
        yield known / context
        context += turn.max_output_tokens
        known = context
