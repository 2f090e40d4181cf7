"""Channels in the payment store: whole rows, found by their request, locked for one call, and counted once against a budget."""

import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.call_io import PAYER, build_authorization, build_transfer
from tests.kit.channel_payer import ChannelPayer
from tests.kit.payer import USDC
from tollway.client.call_io import AuthorizationState, OverBudget, Stored
from tollway.client.errors import StoreUnusable
from tollway.client.own_channel import HeldDeposit, OwnChannel, PendingVoucher, Withdrawal
from tollway.client.quote import Cap
from tollway.client.store import PaymentStore
from tollway.ids import Address, TxHash
from tollway.money import Asset

PAYEE = ChannelPayer()
ASSET = Asset(chain_id=USDC.chain_id, token=USDC.token, symbol="USDC", decimals=6)
REQUEST = b"\x0e" * 32
HELD = HeldDeposit(
    nonce=b"\x05" * 32, amount=300_000, valid_before=1_700_000_060, document='{"amount":"300000"}'
)
PENDING = PendingVoucher(
    request=REQUEST, proof="proof", ceiling=600, price=300, signed_before=300, has_deposit=True
)
DEPOSIT = build_authorization(5, proof="", amount=300_000)


def build_channel(**changes: object) -> OwnChannel:
    config = replace(PAYEE.config, payer=PAYER, payer_authorizer=PAYER)
    whole = OwnChannel(id=PAYEE.channel_id, config=config, asset=ASSET, gateway="http://gw")
    return replace(whole, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"balance": 2**127, "charged": 2**126, "ceiling": 2**127, "calls": 7, "returned": 1},
        {"deposit": HELD},
        {"pending": PENDING},
        {"withdrawal": Withdrawal(amount=5, ready_s=1_700_086_400)},
    ],
)
def test_a_channel_is_read_as_it_was_written(store: PaymentStore, changes: dict[str, object]) -> None:
    store.record_channel(build_channel(deposit=HELD, pending=PENDING))
    channel = build_channel(**changes)
    store.record_channel(channel)
    assert store.find_channel(channel.id) == channel
    assert store.list_channels(PAYER) == (channel,)
    assert store.list_channels(Address(b"\x02" * 20)) == ()


def test_a_pending_voucher_is_found_by_its_request_alone(store: PaymentStore) -> None:
    channel = build_channel(pending=PENDING)
    store.store_voucher(channel, None, request=REQUEST, budget=None)
    assert store.lease_authorization(payer=PAYER, request=REQUEST) == channel
    assert store.lease_authorization(payer=PAYER, request=b"\x0f" * 32) is None
    assert store.lease_authorization(payer=Address(b"\x02" * 20), request=REQUEST) is None
    store.record_channel(replace(channel, pending=None))
    assert store.lease_authorization(payer=PAYER, request=REQUEST) is None


def test_a_deposit_that_the_budget_refuses_leaves_nothing(store: PaymentStore) -> None:
    budget = Cap.parse("0.299999 USDC")
    refused = store.store_voucher(build_channel(), DEPOSIT, request=REQUEST, budget=budget)
    assert isinstance(refused, OverBudget)
    assert (store.list_channels(PAYER), store.list_authorizations(PAYER)) == ((), ())


def test_a_deposit_counts_until_the_chain_shows_it_unused_or_it_came_back(store: PaymentStore) -> None:
    assert store.store_voucher(build_channel(deposit=HELD), DEPOSIT, request=REQUEST, budget=None) == Stored()
    assert store.spent(PAYER) == {"USDC": 3 * 10**17}
    store.record_channel(build_channel(balance=300_000), deposit=DEPOSIT.nonce, tx_hash=TxHash(b"\x01" * 32))
    (signed,) = store.list_authorizations(PAYER)
    assert (signed.state, signed.tx_hash) == (AuthorizationState.CHARGED, TxHash(b"\x01" * 32))
    store.record_channel(build_channel(returned=200_000))
    assert store.spent(PAYER) == {"USDC": 10**17}
    store.record_channel(build_channel(returned=400_000))  # of a deposit that another store signed
    assert store.spent(PAYER) == {"USDC": 0}


def test_calls_to_a_payee_count_on_every_rail(store: PaymentStore) -> None:
    pay_to = PAYEE.receiver
    transfer = build_transfer(pay_to=pay_to)
    store.store(transfer, budget=None)
    store.record_state(transfer.tx_hash, transfer.state, None, is_served=True)
    for number, state in enumerate((AuthorizationState.CHARGED, AuthorizationState.RELEASED)):
        signed = build_authorization(number + 1, pay_to=pay_to)
        store.store_authorization(signed, request=REQUEST, budget=None)
        store.record_authorization(signed.nonce, state, None)
    store.record_channel(build_channel(calls=7))
    assert store.count_calls(PAYER, pay_to) == 9
    assert store.count_calls(PAYER, Address(b"\x02" * 20)) == 0


def test_one_call_at_a_time_locks_a_channel(store: PaymentStore, store_path: Path) -> None:
    first, other = PAYEE.channel_id, replace(PAYEE, salt=b"\x01" * 32).channel_id
    lock = store.lock_channel(first)
    assert lock is not None
    assert store.lock_channel(first) is None
    assert PaymentStore(store_path, now_ms=lambda: 0).lock_channel(first) is None
    assert store.lock_channel(other) is not None
    os.close(lock)
    assert store.lock_channel(first) is not None
    assert [path.stat().st_mode & 0o777 for path in store_path.parent.glob("*.lock")] == [0o600] * 2


@pytest.mark.parametrize(
    ("column", "value"), [("pending", "{}"), ("deposit", "x"), ("charged", "many"), ("withdrawal", "{}")]
)
def test_a_row_of_another_version_stops_every_payment(
    store: PaymentStore, store_path: Path, column: str, value: str
) -> None:
    store.record_channel(build_channel())
    with sqlite3.connect(store_path) as connection:
        connection.execute(f"UPDATE channel SET {column} = ?", (value,))
    with pytest.raises(StoreUnusable, match=f"its row of channel {PAYEE.channel_id}"):
        store.find_channel(PAYEE.channel_id)
