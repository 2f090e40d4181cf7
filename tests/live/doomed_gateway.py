"""A gateway that kills itself with SIGKILL at the step that a call's path names: `/echo/doomed/STEP`. A program of its
own, with settings from the environment. Calls of any other path are left alone.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from tollway.app import lifecycle
from tollway.app.runtime import now_ms
from tollway.config.settings import load_settings
from tollway.identity.siwe import PublicOrigin
from tollway.ids import CallId
from tollway.ledger.ledger import Claim, ClaimOutcome, Close, Closed, Fenced, Finish
from tollway.outbound.client import HttpClient, UpstreamRequest
from tollway.storage.ledger_store import LedgerStore
from tollway.telemetry import configure_logging

MARK = "/doomed/"
SENT, MID_BODY = "sent-no-head", "mid-body"


def step_of(path: str) -> str:
    """The step at which this call kills: once, by a tombstone in the working folder. Empty for all other calls."""
    step = path.partition("?")[0].partition(MARK)[2]
    return step if step and not tombstone(path).exists() else ""


def tombstone(path: str) -> Path:
    return Path("tombstone" + path.replace("/", "-"))


def die(path: str) -> None:
    tombstone(path).touch()
    os.kill(os.getpid(), signal.SIGKILL)


class DoomedLedger(LedgerStore):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._doomed: dict[CallId, tuple[str, str]] = {}

    async def claim(self, claim: Claim) -> ClaimOutcome:
        step = step_of(claim.path)
        if step:
            self._doomed[claim.call_id] = (step, claim.path)
        self._die_at("before-claim", claim.call_id)
        outcome = await super().claim(claim)
        self._die_at("claimed-not-sent", claim.call_id)
        return outcome

    async def close(self, close: Close) -> Closed | Fenced:
        self._die_at("head-not-closed", close.call_id)
        outcome = await super().close(close)
        self._die_at("closed-not-answered", close.call_id)
        return outcome

    def finish(self, finish: Finish) -> None:
        self._die_at("before-finish", finish.call_id)
        super().finish(finish)

    def _die_at(self, step: str, call_id: CallId) -> None:
        its_step, path = self._doomed.get(call_id, ("", ""))
        if step == its_step:
            die(path)


class DyingBody:
    """An upstream's answer that ends this process once a chunk of its body is here."""

    def __init__(self, response: Any, path: str) -> None:
        self._response = response
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)

    async def read_chunk(self) -> bytes:
        chunk: bytes = await self._response.read_chunk()
        die(self._path)
        return chunk


class DoomedDialer(HttpClient):
    async def send(
        self, request: UpstreamRequest, *, before_send: Callable[[], Awaitable[None]], **options: Any
    ) -> Any:
        step = step_of(request.target)
        if step not in (SENT, MID_BODY):
            return await super().send(request, before_send=before_send, **options)
        if step == MID_BODY:
            response = await super().send(request, before_send=before_send, **options)
            return DyingBody(response, request.target)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._die_when_sent(options["progress"], request.target))
            return await super().send(request, before_send=before_send, **options)

    async def _die_when_sent(self, progress: Any, path: str) -> None:
        while not progress.body_wholly_sent:
            await asyncio.sleep(0.001)
        die(path)


class DoomedApp(lifecycle.App):
    def _make_ledger(self) -> LedgerStore:
        return DoomedLedger(
            self.database, owner_id=os.urandom(16).hex(), limits=self.settings.limits, now_ms=now_ms
        )

    def _make_http_client(self, origin: PublicOrigin) -> HttpClient:
        return DoomedDialer(limits=self.settings.limits, allow_private=True)


async def main() -> None:
    settings = load_settings(os.environ)
    configure_logging(level=settings.log_level, style=settings.log_format)
    async with DoomedApp(settings) as doomed:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, doomed.stop)
        await doomed.serve()


if __name__ == "__main__":
    uvloop.run(main())
