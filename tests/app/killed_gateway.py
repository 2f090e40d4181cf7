"""A gateway in a process of its own that records payments until it is killed: `python -m tests.app.killed_gateway FOLDER DATABASE_URL`.

It prints the hash of each payment after its commit, one a line."""

import asyncio
import contextlib
import os
import sys
from hashlib import sha256
from pathlib import Path

from sqlalchemy.exc import IntegrityError

from tests.app.test_lifecycle import settings
from tests.kit.ledger_records import PAYEE, new_payment
from tollway.app.lifecycle import App
from tollway.app.runtime import now_ms
from tollway.errors import StorageUnavailable
from tollway.ids import TxHash
from tollway.webhooks.endpoints import NewEndpoint
from tollway.webhooks.events import EventType

LIMITS = {
    "TEST_LIMIT_WEBHOOK_POLL_S": "0.02",
    "TEST_LIMIT_WEBHOOK_ORIGIN_INTERVAL_S": "0.02",
    "TEST_LIMIT_LEADER_POLL_S": "0.1",
}


SECRET_KEY = sha256(b"killed gateways").hexdigest()


async def register(app: App, url: str) -> None:
    if await app.webhook_services.store.list_of(PAYEE):
        return
    new = NewEndpoint(
        id="wh_killed",
        wallet=PAYEE,
        network="192.0.2.1",
        url=url + "/hooks",
        origin=url,
        types=tuple(EventType),
        challenge="echo",
        created_ms=app.ledger.shared_ms(),
    )
    # Two gateways begin at the same time: one of them registers, and the other finds the row.
    with contextlib.suppress(IntegrityError):
        await app.webhook_services.store.register(new, count_max=10)


async def main(folder: str, database_url: str, url: str) -> None:
    given = {
        "ALLOW_PRIVATE_ENDPOINTS": "yes",
        "DATABASE_URL": database_url,
        "SECRET_KEY": SECRET_KEY,
        **LIMITS,
    }
    async with App(settings(Path(folder), **given)) as app:
        await register(app, url)
        while True:
            # A busy database may end the session of a gateway that pauses. Then no event is waited for, whether the payment is recorded or not.
            with contextlib.suppress(StorageUnavailable):
                await record_one(app)
            await asyncio.sleep(0.01)


async def record_one(app: App) -> None:
    tx_hash = TxHash(os.urandom(32))
    (endpoint,) = await app.webhook_services.store.list_of(PAYEE)
    active_ms = endpoint.active_from_ms
    at_ms = now_ms()
    await app.payments.record_payments([new_payment(5, tx_hash=tx_hash)], now_ms=at_ms)
    if active_ms is not None and at_ms >= active_ms:
        sys.stdout.write(f"{tx_hash}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
