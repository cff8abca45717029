"""Marks the rules that the twin compiles, so that it runs the gateway's own code.

Only the twin compiles them (`control.twin.jit`): whoever answers requests never loads a compiler. A marked rule takes
and gives scalars, NamedTuples and IntEnums, and calls nothing but marked rules and `math`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

Rule = TypeVar("Rule", bound=Callable[..., Any])

COMPILED_RULES: list[Callable[..., Any]] = []
"""In the order in which they were defined, so that a rule comes after those that it calls."""


def compiled(rule: Rule) -> Rule:
    """Leave a rule as it is, and remember that the twin is to compile it."""
    COMPILED_RULES.append(rule)
    return rule
