"""Long bodies are read beside the event loop, one at a time; short ones at once."""

import asyncio
import json
import threading

import pytest

from tollway.errors import Refusal
from tollway.web.json_reader import SHORT_BYTES, JsonReader

SHORT = b'{"a": 1}'
LONG = json.dumps({"a": "x" * SHORT_BYTES}).encode()


@pytest.mark.parametrize("raw", [SHORT, LONG])
async def test_reads_what_the_parser_reads(raw: bytes) -> None:
    reader = JsonReader()
    assert await reader.read(raw) == json.loads(raw)
    await reader.check(raw)


@pytest.mark.parametrize("raw", [b"[" * 65, b"[" * (SHORT_BYTES + 1)])
async def test_refuses_what_the_parser_refuses(raw: bytes) -> None:
    reader = JsonReader()
    with pytest.raises(Refusal):
        await reader.read(raw)
    with pytest.raises(Refusal):
        await reader.check(raw)


async def test_others_run_while_a_long_body_is_read_and_one_is_read_at_a_time() -> None:
    """The parser waits for the loop here: were it on the loop, or two at once, nobody would let it go on."""
    may_end, running = threading.Event(), [0, 0]

    def parse(raw: bytes) -> dict[str, int]:
        running[0] += 1
        running[1] = max(running)
        assert may_end.wait(5)
        running[0] -= 1
        return {}

    reader = JsonReader(parse)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(reader.read(LONG))
        while not running[0]:
            await asyncio.sleep(0)
        may_end.set()
    assert running == [0, 1]
