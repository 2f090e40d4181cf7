"""What doctor says of payment channels: contracts, keys, unclaimed money, withdrawals, and what a restore has lost."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import Secret

from tests.cli.test_doctor import CHAIN, NOW_S, chain_with_fees, settling
from tests.kit.chain import MemoryChain
from tests.kit.ledger_channels import facts_of, owe_on
from tests.kit.ledger_records import NOW_MS, operator_origin
from tests.kit.settlement import facilitator_at
from tests.kit.storage_faults import FaultyLedger
from tollway.app.channel_keys import derive_authorizers
from tollway.app.doctor_channels import Verdict, examine_channel_keys, examine_channels
from tollway.identity.siwe import parse_origin
from tollway.ids import Address
from tollway.payments.channel_terms import UNCLAIMED_MAX
from tollway.storage.engine.database import Database, SqliteDatabase
from tollway.storage.engine.migrate import upgrade

FIRST, SECOND = b"1" * 32, b"2" * 32


class Books:
    """A ledger with channels, and the settings of a gateway over it."""

    def __init__(self, folder: Path, database: Database, ledger: Any) -> None:
        self.database, self.ledger = database, ledger
        self.settings = settling(folder, channels=True, secret_keys=(Secret(FIRST),))
        self.chain = chain_with_fees(base_fee_wei=10**9 - 1, tip_wei=1)
        self.change(native_price_nano=1_000 * 10**9)

    def change(self, **rules: Any) -> None:
        (network,) = self.settings.networks
        network = replace(network, settlement=replace(network.settlement, **rules))
        self.settings = self.settings.model_copy(update={"networks": (network,)})

    def remove_domains(self) -> None:
        (network,) = self.settings.networks
        assets = tuple(replace(asset, domain=None) for asset in network.rules.assets)
        network = replace(network, rules=replace(network.rules, assets=assets))
        self.set_settings(networks=(network,))

    def set_settings(self, **changes: Any) -> None:
        self.settings = self.settings.model_copy(update=changes)

    def authorizer(self, key: bytes, *, restores: int = 0) -> Address:
        origin = str(parse_origin(self.settings.public_url))
        return derive_authorizers([key], origin=origin, restores=restores)[0][0].address

    async def keys(self) -> Verdict | None:
        return await examine_channel_keys(self.settings, self.database)

    async def channels(self, *, has_tables: bool = True) -> Verdict | None:
        return await examine_channels(
            self.settings,
            self.settings.networks[0],
            database=self.database if has_tables else None,
            chains=self.chain,
            now_s=NOW_S,
        )


@pytest.fixture
async def books(tmp_path: Path) -> AsyncIterator[Books]:
    database = SqliteDatabase(tmp_path / "books.sqlite3")
    await database.open()
    await upgrade(database)
    faulty = FaultyLedger(database)
    await faulty.ledger.open()
    yield Books(tmp_path, database, faulty.ledger)
    await faulty.close()
    await database.close()


# ---- The keys.


async def test_the_key_that_402s_name_is_shown(books: Books) -> None:
    assert await books.keys() == (
        "ok",
        f"402s name the authorizer {books.authorizer(FIRST)}, of the first key",
    )


async def test_an_older_key_with_channels_is_named_with_what_is_unclaimed(books: Books) -> None:
    await owe_on(books.ledger, 250_000, "first", receiver_authorizer=books.authorizer(SECOND))
    await owe_on(books.ledger, 0, "second", receiver_authorizer=books.authorizer(SECOND))
    books.set_settings(secret_keys=(Secret(FIRST), Secret(SECOND)))
    level, detail = await books.keys() or ("failed", "")
    assert level == "note"
    words = f"key 2 still has 2 channel(s) with money; unclaimed: 1 channel with 0.25 USDC on eip155:{CHAIN}"
    assert words in detail


async def test_a_missing_key_with_unclaimed_money_is_a_failure(books: Books) -> None:
    await owe_on(books.ledger, 250_000, receiver_authorizer=books.authorizer(SECOND))
    level, detail = await books.keys() or ("ok", "")
    assert level == "failed"
    assert detail.startswith("the gateway does not start. secret_key: no key of the list")


async def test_after_a_restore_what_was_not_claimed_is_the_loss_of_the_provider(books: Books) -> None:
    await owe_on(books.ledger, 5, receiver_authorizer=books.authorizer(FIRST))
    await books.ledger.mark_restored(origin=operator_origin())
    level, detail = await books.keys() or ("failed", "")
    assert level == "note"
    assert f"402s name the authorizer {books.authorizer(FIRST, restores=1)}" in detail
    assert "key 1 still has 1 channel(s) with money from before a restore, which take no call" in detail
    assert f"is the provider's loss, at most {UNCLAIMED_MAX} units of the currency a payer" in detail


@pytest.mark.parametrize("setting", ["channels", "x402"])
async def test_channels_that_are_off_are_told_while_money_is_unclaimed(books: Books, setting: str) -> None:
    books.set_settings(**{setting: False})
    assert await books.keys() is None
    assert await books.channels() is None
    await owe_on(books.ledger, 250_000, receiver_authorizer=books.authorizer(FIRST))
    level, detail = await books.keys() or ("ok", "")
    assert (level, "0.25 USDC" in detail, "channels = true" in detail) == ("warning", True, True)


async def test_without_a_secret_key_there_is_nothing_to_derive(books: Books) -> None:
    books.set_settings(secret_keys=())
    level, _ = await books.keys() or ("failed", "")
    assert level == "note"


# ---- A network.


async def test_the_costs_and_the_smallest_sensible_price_are_shown(books: Books) -> None:
    level, detail = await books.channels() or ("failed", "")
    assert level == "ok"
    assert (
        "a deposit costs 0.133, a claim 0.077, a settle 0.05 now; sensible from a price of 0.0026" in detail
    )
    assert "0 channel(s) with money; all is claimed" in detail
    assert (await books.channels(has_tables=False) or ("failed", ""))[0] == "ok"


NO_CODE = "has no code there"


@pytest.mark.parametrize(
    ("break_it", "level", "words"),
    [
        pytest.param(
            lambda on: on.change(native_price_nano=None), "note", "native_price is not set", id="price"
        ),
        pytest.param(lambda on: on.change(gas_keys=()), "note", "gas_keys", id="keys"),
        pytest.param(
            lambda on: on.change(facilitator=facilitator_at()), "note", "no facilitator", id="facilitator"
        ),
        pytest.param(lambda on: on.chain.remove_channel_contracts(CHAIN), "note", NO_CODE, id="contracts"),
        pytest.param(lambda on: on.remove_domains(), "note", "EIP-712 domain", id="tokens"),
    ],
)
async def test_a_network_without_channels_has_a_reason(
    books: Books, break_it: Any, level: str, words: str
) -> None:
    break_it(books)
    found, detail = await books.channels() or ("ok", "")
    assert (found, words in detail) == (level, True), detail


async def test_code_that_is_not_the_contract_is_a_warning(books: Books) -> None:
    books.chain = _StrangeContracts(books.chain)  # type: ignore[assignment]  # asked for three things only
    level, detail = await books.channels() or ("ok", "")
    assert (level, "eip712Domain()" in detail) == ("warning", True)


class _StrangeContracts:
    """A chain with other code at the addresses of channels."""

    def __init__(self, chain: MemoryChain) -> None:
        self._chain = chain

    async def fetch_code_size(self, chain_id: Any, address: Address) -> int:
        return await self._chain.fetch_code_size(chain_id, address)

    async def call_contract(self, *args: Any, **given: Any) -> Any:
        return replace(await self._chain.call_contract(*args, **given), payload=b"\x01" * 32)


async def test_unclaimed_money_and_withdrawals_in_sight_are_named(books: Books) -> None:
    await books.ledger.note_look(CHAIN, now_ms=int(NOW_S * 1000))
    channel = await owe_on(books.ledger, 250_000)
    level, detail = await books.channels() or ("failed", "")
    assert level == "ok"
    assert f"1 channel(s) with money; unclaimed: 1 channel with 0.25 USDC on eip155:{CHAIN}" in detail
    facts = facts_of(
        channel.balance_units,
        withdrawal_amount=1,
        withdrawal_since_s=int(NOW_S) - 300,
        block_number=channel.facts.block_number + 1,
    )
    await books.ledger.renew_channel(channel.key, facts, now_ms=NOW_MS)
    level, detail = await books.channels() or ("ok", "")
    assert level == "warning"
    assert f"1 withdrawal(s) in sight: 0x{channel.id.hex()} owes 0.25 USDC, 10 minutes left" in detail


@pytest.mark.parametrize(("age_s", "level"), [(225, "ok"), (226, "warning")])
async def test_an_old_look_at_the_channels_is_a_warning(books: Books, age_s: int, level: str) -> None:
    await owe_on(books.ledger, 0)
    await books.ledger.note_look(CHAIN, now_ms=int((NOW_S - age_s) * 1000))
    assert (await books.channels() or ("failed", ""))[0] == level
