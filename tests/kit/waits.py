"""Waits of a test for what another task, thread or session does."""

import asyncio
from collections.abc import Callable

DEADLINE_S = 100.0
"""The end of a wait that is over at once. It ends a test that hangs, and is longer than any pause of the machine: no test asserts it."""


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_true():
            await asyncio.sleep(0)
