"""Random bytes for the names of calls and requests, drawn from the system some hundred names at a time.

Each draw is a system call for which the interpreter lets other threads go first; on the path of a call that costs more than
the bytes. Keys, secrets and nonces are not made here.
"""

import os
from collections.abc import Callable

POOL_BYTES = 4_096


class RandomPool:
    """For one event loop. No byte is given out twice, in a forked child neither."""

    def __init__(self, draw: Callable[[int], bytes] = os.urandom) -> None:
        self._draw = draw
        self._pool = b""
        self._used = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._discard)

    def take_bytes(self, size: int) -> bytes:
        """So many random bytes."""
        start, end = self._used, self._used + size
        if end > len(self._pool):
            self._pool = self._draw(max(POOL_BYTES, size))
            start, end = 0, size
        self._used = end
        return self._pool[start:end]

    def _discard(self) -> None:
        self._pool = b""
        self._used = 0
