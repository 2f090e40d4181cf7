"""Long JSON is read beside the event loop, one body at a time, so that a megabyte of it holds up nobody's call. What is
short is read at once. What a body may be says `json_body`; this says only where it is looked at.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from tollway.web.json_body import check_shape, parse_json_object

SHORT_BYTES = 32 * 1024
"""Takes some two milliseconds at most; less than it is worth to hand it to a thread."""


class JsonReader:
    """Safe to use from many tasks at once."""

    def __init__(self, parse: Callable[[bytes], dict[str, Any]] = parse_json_object) -> None:
        self._parse = parse
        self._turn = asyncio.Semaphore(1)

    async def read(self, raw: bytes) -> dict[str, Any]:
        """As `parse_json_object`. Raises Refusal."""
        if len(raw) <= SHORT_BYTES:
            return self._parse(raw)
        async with self._turn:
            return await asyncio.to_thread(self._parse, raw)

    async def check(self, raw: bytes) -> None:
        """As `check_shape`, for whoever parses by himself. Raises Refusal."""
        if len(raw) <= SHORT_BYTES:
            check_shape(raw)
            return
        async with self._turn:
            await asyncio.to_thread(check_shape, raw)
