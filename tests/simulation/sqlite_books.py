"""The same machine with a real database: `storage.book_store` over SQLite in a file, one gateway at a time.

What `fake_books` says of lost commits, lost answers and lost power happens here to a file; histories must not be able to
tell the two apart.
"""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.simulation.fake_books import Fate, House
from tollway.errors import StorageUnavailable
from tollway.identifiers import Address, CallId
from tollway.ledger.book import Claim
from tollway.ledger.kept_answers import StoredAnswer
from tollway.storage.answer_store import AnswerStore
from tollway.storage.book_store import BookStore
from tollway.storage.database import SqliteDatabase
from tollway.storage.gas_store import GasStore
from tollway.storage.sealer import Sealer

_PARTS = ("", "-wal")


class SqliteMachine:
    """One file; `template` is a migrated, empty one. `rows` is None: the laws are checked on the twin."""

    rows = None

    def __init__(self, house: House, path: Path, *, template: Path, now_ms: int) -> None:
        self.house = house
        self.now_ms = now_ms
        self.is_away = False
        self.fate: Fate | None = None
        self.life = 0
        self._path = path
        self._images = 0
        for part in (*_PARTS, "-shm"):
            Path(f"{path}{part}").unlink(missing_ok=True)
        shutil.copyfile(template, path)
        self.database = SqliteDatabase(path)
        self.dialect = self.database.dialect
        self._gateways: list[SqliteGateway] = []

    def clock(self) -> int:
        return self.now_ms

    # ---- What the stores see of it.

    async def read(self, work: Any) -> Any:
        if self.is_away:
            raise StorageUnavailable
        return await self.database.read(work)

    async def write(self, work: Any, *, flush: bool = True) -> Any:
        if self.is_away:
            raise StorageUnavailable
        if self.fate is Fate.LOST:
            self.is_away, self.fate = True, None
            raise StorageUnavailable
        if self.house.has_power_cuts:
            self._take_image(flush=flush)
        outcome = await self.database.write(work, flush=flush)
        if self.fate is Fate.UNHEARD:  # the work itself may have asked to be done again, with more locks
            self.is_away, self.fate = True, None
            raise StorageUnavailable
        return outcome

    def _take_image(self, *, flush: bool) -> None:
        if flush:
            self._images = 0
            return
        for part in _PARTS:
            source = Path(f"{self._path}{part}")
            if source.exists():
                shutil.copyfile(source, f"{self._path}.{self._images}{part}")
        self._images += 1

    # ---- What happens to it.

    async def start(self, owner_id: str) -> "SqliteGateway":
        gateway = SqliteGateway(self, owner_id)
        self._gateways.append(gateway)
        await gateway.book.open()
        return gateway

    async def kill(self, gateway: "SqliteGateway") -> None:
        self._gateways.remove(gateway)
        await gateway.stop()

    async def cut_power(self, *, loses_all: bool) -> None:
        self.is_away = False
        self.life += 1
        if not self._images:
            return
        await self.database.close()
        for part in _PARTS:
            shutil.copyfile(f"{self._path}.{0 if loses_all else self._images - 1}{part}", f"{self._path}{part}")
        Path(f"{self._path}-shm").unlink(missing_ok=True)
        self._images = 0
        self.database = SqliteDatabase(self._path)

    async def drain(self) -> None:
        """Everything that nobody waits for is written."""
        for gateway in self._gateways:
            await gateway.drain()

    async def close(self) -> None:
        for gateway in list(self._gateways):
            await self.kill(gateway)
        await self.database.close()


class SqliteGateway:
    """One gateway process over it."""

    def __init__(self, machine: SqliteMachine, owner_id: str) -> None:
        house = machine.house
        self.owner_id = owner_id
        self._machine = machine
        self.book: Any = BookStore(
            machine,  # type: ignore[arg-type]  # it stands in for a database
            owner_id=owner_id,
            now_ms=machine.clock,
            limits=house.limits,
            unfinal_max_nano=house.unfinal_max_nano,
            boot_mark=lambda _: f"life-{machine.life}",
        )
        self.gas = GasStore(machine)  # type: ignore[arg-type]  # as above
        sealer = Sealer(b"\x07" * 32, entropy=bytes)
        self._answers = AnswerStore(machine, sealer=sealer, limits=house.limits)  # type: ignore[arg-type]
        self._task = asyncio.get_running_loop().create_task(self.book.run())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self.book, name)
        return method

    async def claim_all(self, claims: Sequence[Claim]) -> list[object]:
        """At once, so that they are decided in one batch."""
        outcomes = await asyncio.gather(*map(self.book.claim, claims), return_exceptions=True)
        return ["away" if isinstance(one, StorageUnavailable) else one for one in outcomes]

    async def keep_answer(self, call_id: CallId, payer: Address, answer: StoredAnswer) -> None:
        await self._answers.keep(call_id, payer, answer, now_ms=self._machine.now_ms)

    async def recover(self, *, now_ms: int) -> int:
        moved: int = await self.book.recover(now_ms=now_ms)
        await self.drain()
        return moved

    async def drain(self) -> None:
        batches = self.book._batches
        while batches._queue or batches._in_flight:
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """As kill -9: what waits is not written. Between two steps nothing does."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
