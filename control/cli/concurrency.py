"""Running things side by side."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def together(*parts: Coroutine[Any, Any, T]) -> list[T]:
    """Run all and give their results; the first that fails ends the others, and its error comes out as it is."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
