"""Waits of a test for what another task, thread or session does."""

import asyncio
from collections.abc import Callable

from sqlalchemy import text

from tollway.storage.engine.database import Database

DEADLINE_S = 100.0
"""The end of a wait that is over at once. It ends a test that hangs, and is longer than any pause of the machine: no test asserts it."""


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_true():
            await asyncio.sleep(0)


async def wait_blocked(database: Database, sessions: int = 1) -> None:
    """Returns when so many sessions wait for a lock."""
    blocked = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with asyncio.timeout(DEADLINE_S):
        while await database.read(lambda c: c.execute(blocked).scalar_one()) < sessions:
            await asyncio.sleep(0)
