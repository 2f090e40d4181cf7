"""One request to an ASGI application and the response so far, without a server in between. The test is the client: it sends
the body piece by piece, and may disconnect.
"""

import asyncio
import json
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from starlette.types import Message, Scope

HeaderPairs = Sequence[tuple[str, str]]


class Exchange:
    """One request and the response so far. `leave`: the client disconnects. `is_body_asked`: the application asked for the body before it responded."""

    def __init__(self, scope: Scope, chunks: Iterable[bytes], *, is_open: bool) -> None:
        self.scope = scope
        self.sent: list[Message] = []
        self.is_body_asked = False
        self._inbox: deque[Message] = deque()
        self._news = asyncio.Event()
        for chunk in chunks:
            self.give(chunk)
        if not is_open:
            self.finish()

    def give(self, chunk: bytes) -> None:
        self._put({"type": "http.request", "body": chunk, "more_body": True})

    def finish(self) -> None:
        self._put({"type": "http.request", "body": b"", "more_body": False})

    def leave(self) -> None:
        self._put({"type": "http.disconnect"})

    def _put(self, message: Message) -> None:
        self._inbox.append(message)
        self._news.set()

    async def receive(self) -> Message:
        self.is_body_asked |= not self.sent
        while not self._inbox:
            self._news.clear()
            await self._news.wait()
        if self._inbox[0]["type"] == "http.disconnect":
            return self._inbox[0]
        return self._inbox.popleft()

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def is_started(self) -> bool:
        return bool(self.sent)

    @property
    def is_ended(self) -> bool:
        """True for a response that is complete; False for one that was cut."""
        return bool(self.sent) and not self.sent[-1].get("more_body", False) and len(self.sent) > 1

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        pairs = [(name.decode(), value.decode("latin-1")) for name, value in self.sent[0]["headers"]]
        names = [name for name, _ in pairs]
        doubled = {name for name in names if names.count(name) > 1 and name != "link"}
        assert not doubled, f"doubled headers: {doubled}"
        return dict(pairs)

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json", self.body
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed
