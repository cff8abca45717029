"""Scripted answers: a prompt with `<script>TEXT</script>` in its last message is answered with TEXT, then the end.

It makes tool calls, stop strings and any other text reproducible where there is no model. The script stands in the last
message before the assistant's turn, or at the end of a prompt that is no chat. What of it a prompt already holds behind
it was said before: a handoff goes on with the rest. An engine follows it only while its KV is what it should be.
"""

import re
from collections.abc import Sequence

from engine_agents.nodes.emulated.vocabulary import START, Vocabulary

REACH_TOKENS = 8192
_SCRIPT = re.compile(rb"<script>((?:(?!<script>).)*?)</script>", re.DOTALL)
_TURN = b"assistant\n"


def remaining_script(prompt: Sequence[int], vocabulary: Vocabulary) -> tuple[int, ...] | None:
    """Ids that a script leaves to say behind this prompt; None where there is no script, or another text behind it."""
    tail = prompt[-REACH_TOKENS:]
    if ord("<") not in tail:
        return None
    asked, made = _parted(tail, vocabulary)
    scripts = _SCRIPT.findall(vocabulary.decode(asked))
    if not scripts:
        return None
    script = tuple(vocabulary.encode(scripts[-1].decode(errors="replace")))
    return script[len(made) :] if tuple(made) == script[: len(made)] else None


def _parted(tail: Sequence[int], vocabulary: Vocabulary) -> tuple[Sequence[int], Sequence[int]]:
    """The last message that asks, and what has been answered to it."""
    turn = tuple(vocabulary.encode(_TURN.decode()))
    starts = [-1, *(at for at, token in enumerate(tail) if token == START)]
    begins = starts[-1] + 1
    if len(starts) > 1 and tuple(tail[begins : begins + len(turn)]) == turn:
        return tail[starts[-2] + 1 : begins - 1], tail[begins + len(turn) :]
    close = tuple(vocabulary.encode("</script>"))
    ends = [at for at in range(len(close), len(tail) + 1) if tuple(tail[at - len(close) : at]) == close]
    return (tail[: ends[-1]], tail[ends[-1] :]) if ends else ((), ())
