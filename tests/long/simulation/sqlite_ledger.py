"""The same machine with a real database: `storage.ledger.ledger_store` over SQLite in a file, one gateway at a time.

What `fake_ledger` says of lost commits, lost answers and lost power happens here to a file; histories must not be able to
tell the two apart.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.kit.ledger_records import PROVIDER
from tests.kit.sql_ledger import SqlLedger
from tests.long.simulation.fake_ledger import Fate, SharedContext
from tollway.errors import StorageUnavailable
from tollway.ids import Address, CallId
from tollway.ledger.ledger import Claim, StoredResponse
from tollway.storage.engine.database import SqliteDatabase, sqlite_module
from tollway.storage.engine.encryption import Sealer
from tollway.storage.engine.migrate import upgrade
from tollway.storage.ledger.gas_store import GasStore
from tollway.storage.ledger.idempotency import ResponseStore

Image = Any
"""Everything in a file, kept in memory: a connection of the SQLite module."""


class SqliteDisk:
    """One file for many histories, because preparing statements takes longest. `empty`: migrated, without a row."""

    def __init__(self, database: SqliteDatabase) -> None:
        self.database = database
        self.empty: Image = None

    async def take_image(self) -> Image:
        image = sqlite_module.connect(":memory:", check_same_thread=False)
        await self._at_writer(lambda connection: connection.backup(image))
        return image

    async def put_back(self, image: Image) -> None:
        await self._at_writer(image.backup)

    async def _at_writer(self, job: Callable[[Any], None]) -> None:
        """Where the one writing connection lives, and between its transactions."""

        def run() -> None:
            job(self.database.connect_writer().connection.driver_connection)

        await self.database._writer.run(run)


@asynccontextmanager
async def opened_disk(folder: Path) -> AsyncIterator[SqliteDisk]:
    database = SqliteDatabase(folder / "books.sqlite3")
    await database.open()
    try:
        await upgrade(database)
        disk = SqliteDisk(database)
        disk.empty = await disk.take_image()
        yield disk
    finally:
        await database.close()


class SqliteMachine:
    """`rows` is None: the invariants are checked on the model."""

    rows = None

    def __init__(self, context: SharedContext, disk: SqliteDisk, *, now_ms: int) -> None:
        self.context = context
        self.now_ms = now_ms
        self.is_away = False
        self.fate: Fate | None = None
        self.spared = 0
        self.life = 0
        self._disk = disk
        self.database = disk.database
        self.dialect = disk.database.dialect
        self._images: list[Image] = []
        self._gateways: list[SqliteGateway] = []
        self._is_begun = False

    def clock(self) -> int:
        return self.now_ms

    # ---- What the stores see of it.

    async def read(self, work: Any, **more: Any) -> Any:
        if self.is_away:
            raise StorageUnavailable
        return await self.database.read(work, **more)

    async def write(self, work: Any, *, flush: bool = True, **more: Any) -> Any:
        if self.is_away:
            raise StorageUnavailable
        is_spared = self.fate is not None and self.spared > 0
        if is_spared:
            self.spared -= 1
        if self.fate is Fate.LOST and not is_spared:
            self.is_away, self.fate = True, None
            raise StorageUnavailable
        if self.context.has_power_cuts:
            await self._keep_image(flush=flush)
        outcome = await self.database.write(work, flush=flush, **more)
        if (
            self.fate is Fate.UNHEARD and not is_spared
        ):  # the work itself may require another try with more locks
            self.is_away, self.fate = True, None
            raise StorageUnavailable
        return outcome

    async def _keep_image(self, *, flush: bool) -> None:
        if flush:
            self._images.clear()
        else:
            self._images.append(await self._disk.take_image())

    # ---- What happens to it.

    async def start(self, owner_id: str) -> "SqliteGateway":
        """The first one finds the ledger empty."""
        if not self._is_begun:
            self._is_begun = True
            await self._disk.put_back(self._disk.empty)
        gateway = SqliteGateway(self, owner_id)
        self._gateways.append(gateway)
        await gateway.ledger.open()
        return gateway

    async def kill(self, gateway: "SqliteGateway") -> None:
        self._gateways.remove(gateway)
        await gateway.stop()

    async def cut_power(self, *, loses_all: bool) -> None:
        self.is_away = False
        self.life += 1
        if self._images:
            await self._disk.put_back(self._images[0 if loses_all else -1])
            self._images.clear()

    async def drain(self) -> None:
        """Writes all entries without a waiter."""
        for gateway in self._gateways:
            await gateway.drain()

    async def close(self) -> None:
        for gateway in list(self._gateways):
            await self.kill(gateway)


class SqliteGateway:
    """One gateway process over it."""

    def __init__(self, machine: SqliteMachine, owner_id: str) -> None:
        context = machine.context
        self.owner_id = owner_id
        self._machine = machine
        self.ledger: Any = SqlLedger(
            machine,  # type: ignore[arg-type]  # it stands in for a database
            owner_id=owner_id,
            now_ms=machine.clock,
            limits=context.limits,
            unfinal_max_nano=context.unfinal_max_nano,
            boot_mark=lambda _: f"life-{machine.life}",
            close_retry_s=1e6,  # what is late is written with the next batch only, as the twin does
        )
        self.gas = GasStore(machine)  # type: ignore[arg-type]  # as above
        sealer = Sealer(b"\x07" * 32, entropy=bytes)
        self._answers = ResponseStore(machine, sealer=sealer, limits=context.limits)  # type: ignore[arg-type]
        self._task = asyncio.get_running_loop().create_task(self.ledger.run())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self.ledger, name)
        return method

    async def claim_all(self, claims: Sequence[Claim]) -> list[object]:
        """At once, so that they are decided in one batch."""
        outcomes = await asyncio.gather(*map(self.ledger.claim, claims), return_exceptions=True)
        return ["away" if isinstance(one, StorageUnavailable) else one for one in outcomes]

    async def keep_answer(self, call_id: CallId, payer: Address, answer: StoredResponse) -> None:
        await self._answers.keep(call_id, answer, payer=payer, provider=PROVIDER, now_ms=self._machine.now_ms)

    async def recover(self, *, now_ms: int) -> int:
        try:
            moved: int = await self.ledger.recover(now_ms=now_ms)
        finally:
            await self.drain()  # closes that found no database are tried once more, whether it is back or not
        return moved

    async def drain(self) -> None:
        batches = self.ledger._group_commit
        while batches._queue or batches._in_flight:
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """As kill -9: waiting entries are not written. Between two steps there are none."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
