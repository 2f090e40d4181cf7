"""Faults of a gateway process: points at which it kills itself or at which a call stands still, a wrong time of day, and the
migrations of the release after this one. `install` runs in the process, before the gateway; its environment says which.

The path of a call names its point: `/echo/…/kill/POINT` kills the process with SIGKILL there, once; `/echo/…/halt/POINT`
lets that call stand still there. A file in the process's folder says that a call is at its point (`find_mark`); where its
neighbour `.go` lies, the call goes on. Calls of other paths are left alone. A claim of channels and a refund have no path: the text of the salt of a
channel is theirs.
"""

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from tests.kit import fixed_limits, small_caches
from tests.kit.gateway_process import poll
from tollway.app import doctor_findings, lifecycle, parts
from tollway.app.channel_wiring import ChannelParts
from tollway.app.runtime import now_ms
from tollway.chain.port import SendRefused
from tollway.chain.rpc import RpcReader
from tollway.cli import operator
from tollway.identity.siwe import PublicOrigin
from tollway.ids import CallId, ChainId
from tollway.ledger.channels import Channel, ClaimableChannel, OpenClaim
from tollway.ledger.ledger import Claim, ClaimOutcome, Close, Closed, Fenced, Finish, NonceUnavailable
from tollway.ledger.records import CallState, SettledTransfer, SettlementAttempt, Usage
from tollway.outbound.client import HttpClient, UpstreamExchange, UpstreamRequest
from tollway.payments import transactions
from tollway.storage.engine import postgres
from tollway.storage.engine.migrate import SchemaCheck, schema_state, upgrade
from tollway.storage.ledger import ledger_store
from tollway.storage.ledger.channel_claim_store import ChannelClaimStore
from tollway.storage.ledger.ledger_store import LedgerStore
from tollway.web.calls import gateway_app

POINTS = {"TEST_POINTS": "on"}
"""Settings of a gateway whose calls obey `/kill/` and `/halt/`."""
RECOVERY_HALTS = "TEST_RECOVERY_HALTS"
"""At which of its steps (`swept`, `noted`) the settlement recovery stands still. With `POINTS`."""
CLAIMS = "TEST_CHANNEL_CLAIMS"
"""A file in the process's folder. With `POINTS`: no claim of channels begins before it is there; refunds do."""
RESENDS_SOON = {"TEST_RESENDS_SOON": "on"}
"""Settings of a gateway that sends a stored transaction, which no node has, again at once and not after five seconds. With `POINTS`."""
CLOCK = "TEST_CLOCK"
DATABASE_DEADLINE = "TEST_DATABASE_DEADLINE_S"
"""How long the machine may pause within a statement, a connection or a renewal on PostgreSQL. A gateway has seconds for each of them."""
MIGRATIONS = "TEST_MIGRATIONS"
"""The folder of the migrations of a newer release."""
GO_ON_POLL_S = 0.01
DISCONNECT_CHECK_S = 2.0
"""How long a gateway with `POINTS` waits for its server to report that a caller has left. On a busy machine the server's own thread may
report it later than the tenth of a second that a gateway usually waits; a report ends the wait."""
SENT_POLL_S = 0.001
RESENT_AFTER_MS = 1


def install(environment: Mapping[str, str]) -> None:
    if DATABASE_DEADLINE in environment:
        _wait_for_database(float(environment[DATABASE_DEADLINE]))
    if MIGRATIONS in environment:
        use_migrations(Path(environment[MIGRATIONS]))
    if CLOCK in environment:
        _skew_clock(Path(environment[CLOCK]))
        vars(lifecycle)["App"] = SkewedApp
    elif "TEST_POINTS" in environment:
        vars(parts)["RpcReader"] = PointReader
        vars(gateway_app)["DISCONNECT_CHECK_S"] = DISCONNECT_CHECK_S
        vars(lifecycle)["App"] = PointApp
        if environment.keys() >= RESENDS_SOON.keys():
            vars(transactions)["FILL_AFTER_MS"] = RESENT_AFTER_MS
    fixed_limits.install(environment)
    small_caches.install(environment)


# ---- Points of a call.


def find_mark(folder: Path, path: str) -> Path:
    """The file that says that the call of this path is at its point."""
    return folder / ("at-point" + path.partition("?")[0].replace("/", "-"))


def _point_of(path: str, action: str) -> str:
    return path.partition("?")[0].partition(f"/{action}/")[2]


class Points:
    """`kill` and `halt` are the actions. The points, in order: `dialled`, `before-claim`, `claimed`, `sent-no-head`,
    `at-head`, `closed` (the outcome is written, the head is not sent, on any rail), `mid-body`, `unfinished` (the end of the
    answer is not written, and the caller has it all the same); of settlements `stored`, `sent`, `mined`, `concluded`,
    `answer-kept`, `adrift`; of claims and refunds of channels `signed`, `stored`, `sent`, `mined`, `renewed` (the ledger has what the chain says of the
    channel, and the claim is open), `ended`."""

    def __init__(self) -> None:
        self._paths: dict[CallId, str] = {}
        self._sent: dict[bytes, CallId] = {}

    def note_claim(self, claim: Claim) -> None:
        self._paths[claim.call_id] = claim.path

    def note_path(self, call_id: CallId, path: str) -> None:
        self._paths[call_id] = path

    def note_sent(self, raw: bytes, call_id: CallId) -> None:
        self._sent[raw] = call_id

    async def reach(self, point: str, call_id: CallId) -> None:
        await self.reach_by_path(point, self._paths.get(call_id, ""))

    async def reach_sent(self, raw: bytes) -> None:
        """After its first broadcast."""
        call_id = self._sent.pop(raw, None)
        if call_id is not None:
            await self.reach("sent", call_id)

    async def reach_by_path(self, point: str, path: str) -> None:
        self.kill_at(point, path)
        if _point_of(path, "halt") == point:
            await self._stand_still(path)

    async def reach_recovery(self, point: str) -> None:
        if os.environ.get(RECOVERY_HALTS) == point:
            await self._stand_still("/" + point)

    def kill_at(self, point: str, path: str) -> None:
        """Once: a repeat of the call goes on."""
        mark = find_mark(Path(), path)
        if _point_of(path, "kill") == point and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def leave_unfinished(self, call_id: CallId) -> bool:
        """Whether the end of this call stays unwritten."""
        path = self._paths.get(call_id, "")
        self.kill_at("unfinished", path)
        if _point_of(path, "halt") != "unfinished":
            return False
        find_mark(Path(), path).touch()
        return True

    async def _stand_still(self, path: str) -> None:
        mark = find_mark(Path(), path)
        mark.touch()
        while not mark.with_suffix(".go").exists():
            await asyncio.sleep(GO_ON_POLL_S)


_POINTS = Points()


class PointLedger(LedgerStore):
    async def claim(self, claim: Claim) -> ClaimOutcome:
        _POINTS.note_claim(claim)
        await _POINTS.reach("before-claim", claim.call_id)
        outcome = await super().claim(claim)
        await _POINTS.reach("claimed", claim.call_id)
        return outcome

    async def close(self, close: Close) -> Closed | Fenced:
        await _POINTS.reach("at-head", close.call_id)
        outcome = await super().close(close)
        await _POINTS.reach("closed", close.call_id)
        return outcome

    def finish(self, finish: Finish) -> None:
        if not _POINTS.leave_unfinished(finish.call_id):
            super().finish(finish)

    async def finish_cut(self, finish: Finish) -> None:
        if not _POINTS.leave_unfinished(finish.call_id):
            await super().finish_cut(finish)

    async def settle(
        self, close: Close, *, attempt: SettlementAttempt | None, digest: bytes | None
    ) -> Closed | Fenced | NonceUnavailable:
        await _POINTS.reach("at-head", close.call_id)
        stored = await super().settle(close, attempt=attempt, digest=digest)
        if attempt is not None:
            _POINTS.note_sent(attempt.raw, close.call_id)
        if isinstance(stored, Closed):
            await _POINTS.reach("stored", close.call_id)
        return stored

    async def conclude(
        self, call_id: CallId, *, epoch: int, transfer: SettledTransfer | None, is_orphaned: bool, now_ms: int
    ) -> CallState | None:
        await (_POINTS.reach_recovery("swept") if is_orphaned else _POINTS.reach("mined", call_id))
        state = await super().conclude(
            call_id, epoch=epoch, transfer=transfer, is_orphaned=is_orphaned, now_ms=now_ms
        )
        await (_POINTS.reach_recovery("noted") if is_orphaned else _POINTS.reach("concluded", call_id))
        if not is_orphaned:
            await _POINTS.reach("closed", call_id)
        return state

    async def mark_orphaned(self, call_id: CallId, *, epoch: int, usage: Usage | None = None) -> bool:
        await _POINTS.reach("answer-kept", call_id)
        is_orphaned = await super().mark_orphaned(call_id, epoch=epoch, usage=usage)
        await _POINTS.reach("adrift", call_id)
        return is_orphaned


class PointChannels(ChannelClaimStore):
    """The newest channel of a claim names its point."""

    async def list_claimable(
        self, chain_id: ChainId, *, unclaimed_max: int, limit: int
    ) -> tuple[ClaimableChannel, ...]:
        if CLAIMS in os.environ and not Path(os.environ[CLAIMS]).exists():
            return ()
        return await super().list_claimable(chain_id, unclaimed_max=unclaimed_max, limit=limit)

    async def add_claim(self, claim: OpenClaim, attempt: SettlementAttempt) -> bool | NonceUnavailable:
        await self._note(claim)
        await _POINTS.reach("signed", claim.id)
        is_stored = await super().add_claim(claim, attempt)
        _POINTS.note_sent(attempt.raw, claim.id)
        if is_stored is True:
            await _POINTS.reach("stored", claim.id)
        return is_stored

    async def list_open_claims(self, chain_id: ChainId) -> tuple[OpenClaim, ...]:
        claims = await super().list_open_claims(chain_id)
        for claim in claims:
            await self._note(claim)
        return claims

    async def find_channel_by_key(self, key: int) -> Channel | None:
        """What ends a claim reads its channels once its transaction is mined."""
        channel = await super().find_channel_by_key(key)
        if channel is not None:
            await _POINTS.reach_by_path("mined", _read_path(channel))
        return channel

    async def close_claim(self, claim_id: CallId, *, now_ms: int) -> None:
        await _POINTS.reach("renewed", claim_id)
        await super().close_claim(claim_id, now_ms=now_ms)
        await _POINTS.reach("ended", claim_id)

    async def _note(self, claim: OpenClaim) -> None:
        newest = await super().find_channel_by_key(max(row.channel_key for row in claim.rows))
        if newest is not None:
            _POINTS.note_path(claim.id, _read_path(newest))


def _read_path(channel: Channel) -> str:
    """The text of its salt; empty for another salt."""
    text = channel.config.salt.rstrip(b"\0")
    return text.decode() if text.isascii() else ""


class PointHttpClient(HttpClient):
    def connect(self, request: UpstreamRequest) -> UpstreamExchange:
        return PointExchange(self, request)


class PointExchange(UpstreamExchange):
    """`dialled`: connected, nothing claimed. `sent-no-head`: the whole request is sent. `mid-body`: the first chunk is read."""

    def __init__(self, client: HttpClient, request: UpstreamRequest) -> None:
        super().__init__(client, request)
        self._path = request.target.partition("?")[0]

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            await _POINTS.reach_by_path("dialled", self._path)
        except BaseException as exc:
            await self.__aexit__(type(exc), exc, exc.__traceback__)
            raise
        return self

    async def send(self, *, head_deadline_s: float, fields: bytes = b"") -> None:
        if _point_of(self._path, "kill") == "sent-no-head":
            async with asyncio.TaskGroup() as group:
                group.create_task(self._kill_when_sent())
                await super().send(head_deadline_s=head_deadline_s, fields=fields)
        else:
            await super().send(head_deadline_s=head_deadline_s, fields=fields)

    async def _kill_when_sent(self) -> None:
        while not self.is_body_sent:
            await asyncio.sleep(SENT_POLL_S)
        _POINTS.kill_at("sent-no-head", self._path)

    def take_whole(self, bytes_max: int) -> bytes | None:
        """None for the points that lie between a close and the end of its body: one that is whole is closed with its end."""
        points = {_point_of(self._path, action) for action in ("kill", "halt")}
        return None if points & {"mid-body", "unfinished"} else super().take_whole(bytes_max)

    async def read_chunk(self) -> bytes:
        chunk = await super().read_chunk()
        _POINTS.kill_at("mid-body", self._path)
        return chunk


class PointReader(RpcReader):
    async def send_transaction(self, chain_id: ChainId, raw: bytes) -> SendRefused | None:
        refused = await super().send_transaction(chain_id, raw)
        await _POINTS.reach_sent(raw)
        return refused

    async def resend_transaction(self, chain_id: ChainId, raw: bytes) -> SendRefused | None:
        """Also the first broadcast of a claim of channels."""
        refused = await super().resend_transaction(chain_id, raw)
        await _POINTS.reach_sent(raw)
        return refused


class PointApp(lifecycle.App):
    def _make_ledger(self) -> LedgerStore:
        return PointLedger(
            self.database, owner_id=os.urandom(16).hex(), limits=self.settings.limits, now_ms=now_ms
        )

    def _make_channel_parts(self) -> ChannelParts | None:
        channel_parts = super()._make_channel_parts()
        return None if channel_parts is None else replace(channel_parts, ledger=PointChannels(self.database))

    def _make_http_client(self, origin: PublicOrigin) -> HttpClient:
        return PointHttpClient(limits=self.settings.limits, allow_private=True)


# ---- A wrong time of day.


class SkewedClock:
    """The time of day of one gateway process, wrong by what a file says, in seconds; it may jump while the process runs. The
    monotonic clocks are right, as they are when an operator sets a machine's clock."""

    def __init__(self, folder: Path, *, skew_s: int) -> None:
        folder.mkdir(exist_ok=True)
        self._file = folder / "clock"
        self.set(skew_s)

    @property
    def environment(self) -> dict[str, str]:
        return {CLOCK: str(self._file)}

    def set(self, skew_s: int) -> None:
        _write_whole(self._file, str(skew_s))

    async def wait_rounds(self, count: int = 3) -> None:
        """Until the gateway has renewed its lease, recovered and pruned so often since now."""
        goal = self._rounds() + count
        await poll(lambda: self._rounds() >= goal, what="rounds of recovery")

    def _rounds(self) -> int:
        path = self._file.with_suffix(".rounds")
        return int(path.read_text()) if path.exists() else 0


def _skew_clock(file: Path) -> None:
    true_ns = time.time_ns

    def skewed_ns() -> int:
        return true_ns() + int(file.read_text()) * 1_000_000_000

    time.time_ns = skewed_ns
    time.time = lambda: skewed_ns() / 1_000_000_000


class SkewedApp(lifecycle.App):
    _rounds = 0
    _has_renewed = False

    async def _renew(self) -> None:
        await super()._renew()
        self._has_renewed = True

    async def _recover(self) -> None:
        """Each round prunes too, which takes minutes otherwise, and is counted if the lease was renewed since the one before."""
        has_renewed, self._has_renewed = self._has_renewed, False
        await super()._recover()
        await self._prune()
        self._rounds += 1 if has_renewed else 0
        _write_whole(Path(os.environ[CLOCK]).with_suffix(".rounds"), str(self._rounds))


def _write_whole(path: Path, text: str) -> None:
    draft = path.with_suffix(path.suffix + ".draft")
    draft.write_text(text)
    draft.replace(path)


# ---- A busy machine.


def _wait_for_database(deadline_s: float) -> None:
    for name in ("COMMAND_TIMEOUT_S", "CONNECT_DEADLINE_S", "POOL_TIMEOUT_S"):
        assert name in vars(postgres)
        vars(postgres)[name] = deadline_s
    postgres._SESSION["idle_in_transaction_session_timeout"] = f"{deadline_s:.0f}s"
    vars(ledger_store)["RENEW_TIMEOUT_S"] = deadline_s


# ---- The release after this one.


def use_migrations(migrations: Path) -> None:
    """Makes this process one of the release with these migrations."""
    vars(parts)["SchemaCheck"] = partial(SchemaCheck, migrations=migrations)
    vars(doctor_findings)["schema_state"] = vars(operator)["schema_state"] = partial(
        schema_state, migrations=migrations
    )
    vars(operator)["upgrade"] = partial(upgrade, migrations=migrations)
