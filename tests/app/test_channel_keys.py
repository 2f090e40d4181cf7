"""The keys that sign claims of channels: every key of the list is served and claimed, and no start leaves money of a key behind unsaid."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.kit.ledger_channels import TOKEN, owe_on
from tests.kit.ledger_records import CHAIN
from tests.kit.storage_faults import FaultyLedger
from tollway.app.channel_keys import (
    check_channel_keys,
    derive_authorizers,
    describe_unclaimed,
    find_unsigned,
)
from tollway.audit_log import REASON_LENGTH_MAX, AuditAction, AuditOrigin
from tollway.chain.networks import ChainRules
from tollway.errors import SettingsInvalid
from tollway.ids import Address
from tollway.money import Asset
from tollway.storage.engine.database import SqliteDatabase
from tollway.storage.engine.migrate import upgrade
from tollway.storage.ledger.channel_totals import ChannelTotalsStore
from tollway.storage.operator.operator_writes import AuditLogStore

ORIGIN = "https://t.example"
OLD, NEW = b"the old secret key".ljust(32), b"the new secret key".ljust(32)
USDC = Asset(symbol="USDC", chain_id=CHAIN, decimals=6, token=TOKEN)
RULES = {CHAIN: ChainRules(chain_id=CHAIN, kind="test", confirmations=((0, 1),), assets=(USDC,))}


def addresses(*keys: bytes, restores: int = 0) -> list[Address]:
    groups = derive_authorizers(keys, origin=ORIGIN, restores=restores)
    return [signer.address for group in groups for signer in group]


class Books:
    """A ledger with its audit log. `start`: whether a gateway with these keys starts; a refused start returns its problem."""

    def __init__(self, database: SqliteDatabase, ledger: Any) -> None:
        self.ledger = ledger
        self.totals, self.audit_log = ChannelTotalsStore(database), AuditLogStore(database)

    async def start(self, *keys: bytes, restores: int = 0, abandon: AuditOrigin | None = None) -> str | None:
        known = addresses(*keys, restores=restores)
        try:
            await check_channel_keys(
                self.totals, self.audit_log, knows=known.__contains__, rules=RULES, abandon=abandon
            )
        except SettingsInvalid as exc:
            (problem,) = exc.problems
            return problem
        return None


@pytest.fixture
async def books(tmp_path: Path) -> Any:
    database = SqliteDatabase(tmp_path / "books.sqlite3")
    await database.open()
    await upgrade(database)
    faulty = FaultyLedger(database)
    await faulty.ledger.open()
    yield Books(database, faulty.ledger)
    await faulty.close()
    await database.close()


def test_the_first_key_is_named_first_and_every_key_signs_also_from_before_a_restore() -> None:
    groups = derive_authorizers([NEW, OLD], origin=ORIGIN, restores=1)
    assert [[signer.address for signer in group] for group in groups] == [
        addresses(NEW, OLD, restores=1)[:2],
        [addresses(NEW)[0], addresses(OLD)[0]],
    ]
    assert len({signer.address for group in groups for signer in group}) == 4


@pytest.mark.parametrize(
    ("units", "keys", "is_refused"),
    [
        pytest.param(250_000, [OLD], False, id="the key"),
        pytest.param(250_000, [NEW, OLD], False, id="rotation: the new key first, the old one behind it"),
        pytest.param(250_000, [NEW], True, id="the key is removed while it has money"),
        pytest.param(0, [NEW], False, id="the key is removed after everything is claimed"),
    ],
)
async def test_a_start_without_a_key_that_has_unclaimed_money_is_refused(
    books: Books, units: int, keys: list[bytes], is_refused: bool
) -> None:
    authorizer = addresses(OLD)[0]
    await owe_on(books.ledger, units, receiver_authorizer=authorizer)
    problem = await books.start(*keys)
    assert (problem is not None) is is_refused
    if problem is not None:
        assert f"1 channel with 0.25 USDC on eip155:{CHAIN} (authorizer {authorizer})" in problem
        assert "put the key that was removed back" in problem
        assert "--abandon-channels" in problem
    assert await books.audit_log.list_audit_entries(limit=9) == ()


async def test_a_restore_keeps_the_keys_of_before(books: Books) -> None:
    await owe_on(books.ledger, 9, receiver_authorizer=addresses(OLD)[0])
    assert await books.start(OLD, restores=3) is None


async def test_what_is_given_up_is_in_the_audit_log_and_the_next_start_needs_no_word(books: Books) -> None:
    authorizer = addresses(OLD)[0]
    await owe_on(books.ledger, 250_000, receiver_authorizer=authorizer)
    called_ms = await books.totals.find_called_ms(authorizer)
    assert called_ms is not None
    origin = AuditOrigin(actor="alice@host", at_ms=called_ms + 1)
    with capture_logs() as lines:
        assert await books.start(NEW, abandon=origin) is None
    words = f"1 channel with 0.25 USDC on eip155:{CHAIN}"
    assert [(line["event"], line["unclaimed"]) for line in lines] == [("channels_abandoned", words)]
    (entry,) = await books.audit_log.list_audit_entries(limit=9)
    assert (entry.kind, entry.target) == (AuditAction.ABANDON_CHANNELS, str(authorizer))
    assert entry.origin == replace(origin, reason=f"unclaimed: {words}")
    assert await books.start(NEW) is None
    assert len(await books.audit_log.list_audit_entries(limit=9)) == 1


async def test_what_was_charged_after_a_key_was_given_up_is_guarded_again(books: Books) -> None:
    authorizer = addresses(OLD)[0]
    await owe_on(books.ledger, 5, receiver_authorizer=authorizer)
    called_ms = await books.totals.find_called_ms(authorizer)
    assert called_ms is not None
    assert await books.start(NEW, abandon=AuditOrigin(actor="alice@host", at_ms=called_ms - 1)) is None
    assert await books.start(NEW) is not None


async def test_nothing_is_recorded_where_every_key_is_there(books: Books) -> None:
    await owe_on(books.ledger, 5, receiver_authorizer=addresses(OLD)[0])
    assert await books.start(OLD, abandon=AuditOrigin(actor="alice@host", at_ms=1)) is None
    assert await books.audit_log.list_audit_entries(limit=9) == ()


async def test_a_token_that_the_settings_do_not_have_is_told_in_its_units(books: Books) -> None:
    await owe_on(books.ledger, 5)
    unsigned = await find_unsigned(books.totals, books.audit_log, knows=lambda _one: False)
    assert describe_unclaimed(unsigned, {}) == f"1 channel with 5 units of {TOKEN} on eip155:{CHAIN}"
    assert len(describe_unclaimed(unsigned, RULES)) < REASON_LENGTH_MAX
