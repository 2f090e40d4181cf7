"""A gateway in which a call stands still for ever at the step that its path names: `/echo/…/halt/STEP`. A program of its
own, with settings from the environment. Once everybody stands where he should, the test kills it: one kill, all steps.

A file in the working folder tells that a call has come to its step; where another lies beside it, the call goes on. Calls
of any other path are left alone.
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
from tollway.chain.port import SendRefused
from tollway.chain.rpc import RpcReader
from tollway.config.settings import load_settings
from tollway.identity.siwe import PublicOrigin
from tollway.ids import CallId, ChainId
from tollway.ledger.ledger import Claim, ClaimOutcome, Close, Closed, Fenced, Finish, NonceUnavailable
from tollway.ledger.records import CallState, SettledTransfer, SettlementAttempt
from tollway.outbound.client import HttpClient, UpstreamRequest
from tollway.storage.ledger_store import LedgerStore
from tollway.telemetry import configure_logging
from tollway.web import gateway_app

MARK = "/halt/"
"""What follows it in a path is the step at which that call stands still: `dialled`, `before-claim`, `claimed`,
`at-head`, `closed`, `unfinished`, `stored`, `sent`, `mined`, `concluded`, `answer-kept`, `adrift`. `closed`: on
any rail, with the outcome written and the head not shown. `unfinished`: the end of the answer is not written, and
the caller has it all the same."""
SWEEPER_HALTS = "TEST_SWEEPER_HALTS"
"""In the environment: at which of its steps (`swept`, `noted`) this gateway's sweeper stands still."""
GO_ON_POLL_S = 0.01
LEFT_LOOK_S = 2.0
"""So long this gateway waits to hear from its server that a caller has left: on a busy machine the server's own thread may
come to say so later than the tenth of a second that a gateway usually waits. One who has left is heard of at once."""


class Stage:
    """Who stands where."""

    def __init__(self) -> None:
        self.steps: dict[CallId, tuple[str, str]] = {}
        self.sent: dict[bytes, CallId] = {}
        self.sweeper_step = os.environ.get(SWEEPER_HALTS, "")

    def note_claim(self, claim: Claim) -> None:
        step = claim.path.partition("?")[0].partition(MARK)[2]
        if step:
            self.steps[claim.call_id] = (step, claim.path)

    async def reach(self, step: str, call_id: CallId | None) -> None:
        its_step, path = self.steps.get(call_id, ("", "")) if call_id is not None else ("", "")
        if step == its_step:
            await self.stand_still(path)

    async def reach_sweeping(self, step: str) -> None:
        if step == self.sweeper_step:
            await self.stand_still("/" + step)

    async def stand_still(self, path: str) -> None:
        mark = find_mark(Path(), path)
        mark.touch()
        while not mark.with_suffix(".go").exists():
            await asyncio.sleep(GO_ON_POLL_S)

    def is_left_unfinished(self, call_id: CallId) -> bool:
        its_step, path = self.steps.get(call_id, ("", ""))
        if its_step != "unfinished":
            return False
        find_mark(Path(), path).touch()
        return True


def find_mark(folder: Path, path: str) -> Path:
    return folder / ("halted" + path.replace("/", "-"))


STAGE = Stage()


class HaltingLedger(LedgerStore):
    async def claim(self, claim: Claim) -> ClaimOutcome:
        STAGE.note_claim(claim)
        await STAGE.reach("before-claim", claim.call_id)
        outcome = await super().claim(claim)
        await STAGE.reach("claimed", claim.call_id)
        return outcome

    async def close(self, close: Close) -> Closed | Fenced:
        await STAGE.reach("at-head", close.call_id)
        outcome = await super().close(close)
        await STAGE.reach("closed", close.call_id)
        return outcome

    def finish(self, finish: Finish) -> None:
        if not STAGE.is_left_unfinished(finish.call_id):
            super().finish(finish)

    async def settle(
        self, close: Close, *, attempt: SettlementAttempt | None, digest: bytes | None
    ) -> Closed | Fenced | NonceUnavailable:
        await STAGE.reach("at-head", close.call_id)
        stored = await super().settle(close, attempt=attempt, digest=digest)
        if attempt is not None:
            STAGE.sent[attempt.raw] = close.call_id
        if isinstance(stored, Closed):
            await STAGE.reach("stored", close.call_id)
        return stored

    async def conclude(
        self, call_id: CallId, *, epoch: int, transfer: SettledTransfer | None, is_orphaned: bool, now_ms: int
    ) -> CallState | None:
        await (STAGE.reach_sweeping("swept") if is_orphaned else STAGE.reach("mined", call_id))
        state = await super().conclude(
            call_id, epoch=epoch, transfer=transfer, is_orphaned=is_orphaned, now_ms=now_ms
        )
        await (STAGE.reach_sweeping("noted") if is_orphaned else STAGE.reach("concluded", call_id))
        if not is_orphaned:
            await STAGE.reach("closed", call_id)
        return state

    async def mark_orphaned(self, call_id: CallId, *, epoch: int) -> bool:
        await STAGE.reach("answer-kept", call_id)
        is_orphaned = await super().mark_orphaned(call_id, epoch=epoch)
        await STAGE.reach("adrift", call_id)
        return is_orphaned


class HaltingDialer(HttpClient):
    async def send(
        self, request: UpstreamRequest, *, before_send: Callable[[], Awaitable[None]], **options: Any
    ) -> Any:
        async def stand_still_first() -> None:
            path = request.target.partition("?")[0]
            if path.partition(MARK)[2] == "dialled":
                await STAGE.stand_still(path)
            await before_send()

        return await super().send(request, before_send=stand_still_first, **options)


class HaltingReader(RpcReader):
    async def send_transaction(self, chain_id: ChainId, raw: bytes) -> SendRefused | None:
        refused = await super().send_transaction(chain_id, raw)
        await STAGE.reach("sent", STAGE.sent.get(raw))
        return refused


class HaltingApp(lifecycle.App):
    def _make_ledger(self) -> LedgerStore:
        return HaltingLedger(
            self.database, owner_id=os.urandom(16).hex(), limits=self.settings.limits, now_ms=now_ms
        )

    def _make_http_client(self, origin: PublicOrigin) -> HttpClient:
        return HaltingDialer(limits=self.settings.limits, allow_private=True)


async def main() -> None:
    settings = load_settings(os.environ)
    configure_logging(level=settings.log_level, style=settings.log_format)
    vars(lifecycle)["RpcReader"] = HaltingReader
    gateway_app.DISCONNECT_CHECK_S = LEFT_LOOK_S
    async with HaltingApp(settings) as halting:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, halting.stop)
        await halting.serve()


if __name__ == "__main__":
    uvloop.run(main())
