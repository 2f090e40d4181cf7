"""A gateway whose time of day is wrong by what a file says, in seconds, and may jump while it runs: `TEST_CLOCK` names the
file. Its monotonic clocks are left alone, as they are when somebody sets a machine's clock. How often it has looked for
what dead gateways left, and pruned, stands in the file's neighbour `.rounds`. A program of its own.
"""

import asyncio
import os
import signal
import time
from pathlib import Path

import uvloop

from tollway.app import lifecycle
from tollway.config.settings import load_settings
from tollway.telemetry import configure_logging

CLOCK = Path(os.environ["TEST_CLOCK"])
_true_ns = time.time_ns


def _skewed_ns() -> int:
    return _true_ns() + int(CLOCK.read_text()) * 1_000_000_000


class SkewedApp(lifecycle.App):
    _rounds = 0

    async def _recover(self) -> None:
        """Each round prunes too, which takes minutes otherwise."""
        await super()._recover()
        await self._prune()
        self._rounds += 1
        draft = CLOCK.with_suffix(".draft")
        draft.write_text(str(self._rounds))
        draft.replace(CLOCK.with_suffix(".rounds"))


async def main() -> None:
    settings = load_settings(os.environ)
    configure_logging(level=settings.log_level, style=settings.log_format)
    async with SkewedApp(settings) as skewed:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, skewed.stop)
        await skewed.serve()


if __name__ == "__main__":
    time.time_ns = _skewed_ns
    time.time = lambda: _skewed_ns() / 1_000_000_000
    uvloop.run(main())
