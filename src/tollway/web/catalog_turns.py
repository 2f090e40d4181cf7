"""Reads of the catalog take turns: only so many are worked on at once, the others wait in the order in which they came.

A list of a hundred listings takes many times what a paid call takes, and anybody may ask for it as often as he likes. Without
turns a thousand who do so stand before everybody in the queues of the event loop and of the database; with them a
paid call has a few before it. Nothing is refused here: how many may wait is the gauge's to say.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

CATALOG_PREFIX = b"/api/v2/apis"
_READS = ("GET", "HEAD")


class CatalogReadLimit:
    """A turn ends when the answer begins: by then it is made, and whoever reads it slowly holds up nobody."""

    def __init__(self, app: ASGIApp, *, at_once: int) -> None:
        self._app = app
        self._semaphore = asyncio.Semaphore(at_once)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_catalog_read(scope):
            await self._app(scope, receive, send)
            return
        is_released = False

        def release_once() -> None:
            nonlocal is_released
            if not is_released:
                is_released = True
                self._semaphore.release()

        async def send_and_release(message: Message) -> None:
            if message["type"] == "http.response.start":
                release_once()
            await send(message)

        await self._semaphore.acquire()
        try:
            await self._app(scope, receive, send_and_release)
        finally:
            release_once()


def _is_catalog_read(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] not in _READS:
        return False
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw_path.startswith(CATALOG_PREFIX)
