"""The payment store: one payment per payee at a time, one budget over all processes, each nonce once."""

import contextlib
import sqlite3
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest

from tests.kit.call_io import PAYER, USDC, build_authorization, build_transfer
from tests.kit.file_modes import UMASKS, read_modes, umask
from tests.kit.waits import run_threads
from tollway.client import store as store_module
from tollway.client.call_io import (
    AuthorizationState,
    NonceTaken,
    OverBudget,
    PaidAlready,
    RefundedAlready,
    Stored,
    Transfer,
    TransferState,
)
from tollway.client.errors import StoreUnusable
from tollway.client.quote import Cap
from tollway.client.store import PaymentStore
from tollway.errors import StorageUnavailable
from tollway.ids import Address, ChainId, TxHash
from tollway.money import Asset

GATEWAY = "http://gw"


def transfer(number: int, **changes) -> Transfer:
    own = {
        "tx_hash": TxHash(number.to_bytes(32, "big")),
        "raw": b"raw%d" % number,
        "pay_to": Address(number.to_bytes(20, "big")),
        "nonce": number,
        "confirmations": 1,
    }
    return build_transfer(**{**own, **changes})


def test_a_stored_payment_is_there_for_the_next_process(store, store_path):
    assert store.store(transfer(1), budget=None) == Stored()
    again = PaymentStore(store_path, now_ms=lambda: 0)
    assert again.unresolved(PAYER) == (transfer(1),)
    assert store_path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mask", UMASKS)
def test_a_store_is_readable_by_its_owner_alone(tmp_path, mask):
    store = PaymentStore(tmp_path / ".tollway" / "payments.sqlite3", now_ms=lambda: 0)
    with umask(mask):
        assert store.store(transfer(1), budget=None) == Stored()
    assert read_modes(tmp_path / ".tollway") == {"payments.sqlite3": 0o600}
    assert (tmp_path / ".tollway").stat().st_mode & 0o777 == 0o700


def test_amounts_beyond_64_bits_are_kept_whole(store):
    big = transfer(1, amount=2**200, rest=2**200)
    store.store(big, budget=None)
    assert store.list_transfers(PAYER) == (big,)


@pytest.mark.parametrize("state", [TransferState.STORED, TransferState.REFUSED])
def test_payee_with_an_unresolved_payment_is_not_paid_again(store, state):
    first = transfer(1)
    store.store(first, budget=None)
    store.record_state(first.tx_hash, state, None)
    second = transfer(2, pay_to=first.pay_to)
    assert store.store(second, budget=None) == PaidAlready(transfer=replace(first, state=state))
    assert len(store.list_transfers(PAYER)) == 1


@pytest.mark.parametrize(
    "state",
    [TransferState.CONFIRMED, TransferState.FAILED, TransferState.REPLACED, TransferState.ABANDONED],
)
def test_payee_with_resolved_payments_may_be_paid_again(store, state):
    first = transfer(1)
    store.store(first, budget=None)
    store.record_state(first.tx_hash, state, 0)
    assert store.store(transfer(2, pay_to=first.pay_to), budget=None) == Stored()


def test_credit_that_appeared_meanwhile_makes_a_payment_needless(store):
    first = transfer(1, amount=30_000, rest=30_000)
    store.store(first, budget=None)
    store.record_state(first.tx_hash, TransferState.CONFIRMED, 20_000)
    second = transfer(2, pay_to=first.pay_to)
    found = store.store(second, budget=None, price=10_000)
    assert found == PaidAlready(transfer=replace(first, state=TransferState.CONFIRMED, rest=20_000))
    store.record_state(first.tx_hash, TransferState.CONFIRMED, 10_000)
    assert isinstance(store.store(second, budget=None, price=10_000), PaidAlready)
    store.record_state(first.tx_hash, TransferState.CONFIRMED, 9_999)
    assert store.store(second, budget=None, price=10_000) == Stored()
    store.record_state(
        second.tx_hash, TransferState.CONFIRMED, None
    )  # paid for a single call: it is left to that call
    fourth = transfer(4, pay_to=first.pay_to)
    assert store.store(fourth, budget=None, price=10_000) == Stored()
    for spent in (second, fourth):
        store.record_state(spent.tx_hash, TransferState.CONFIRMED, 0)
    store.record_state(first.tx_hash, TransferState.CONFIRMED, 20_000)
    third = transfer(3, pay_to=first.pay_to)
    assert store.store(third, budget=None, price=10_000, tried=frozenset({first.tx_hash})) == Stored()


def test_other_gateways_payments_do_not_stand_in_the_way(store):
    store.store(transfer(1), budget=None)
    other = transfer(2, pay_to=transfer(1).pay_to, gateway="http://other")
    assert store.store(other, budget=None) == Stored()


def test_nonce_is_used_once_unless_its_transaction_was_replaced(store):
    store.store(transfer(1), budget=None)
    assert store.store(transfer(2, nonce=1), budget=None) == NonceTaken()
    assert store.next_nonce(payer=PAYER, chain_id=USDC.chain_id, pending=0) == 2
    store.record_state(transfer(1).tx_hash, TransferState.REPLACED, 0)
    assert store.next_nonce(payer=PAYER, chain_id=USDC.chain_id, pending=0) == 0
    assert store.store(transfer(2, nonce=1), budget=None) == Stored()


def test_a_mined_nonce_is_not_used_again_after_an_older_read_of_the_node(store):
    store.store(transfer(5), budget=None)
    store.record_state(transfer(5).tx_hash, TransferState.CONFIRMED, 0)
    assert store.next_nonce(payer=PAYER, chain_id=USDC.chain_id, pending=5) == 6


def test_a_given_up_transfer_leaves_its_nonce_to_the_next(store):
    for number in (1, 2):
        store.store(transfer(number), budget=None)
    assert store.abandon(transfer(1).tx_hash)

    def next_nonce(pending):
        return store.next_nonce(payer=PAYER, chain_id=USDC.chain_id, pending=pending)

    assert next_nonce(1) == 1  # until it is filled, number 2 cannot be mined
    assert next_nonce(2) == 3  # the node knows a transaction for it
    assert store.store(transfer(9, nonce=1), budget=None) == Stored()
    assert next_nonce(1) == 3
    assert store.store(transfer(10, nonce=1), budget=None) == NonceTaken()


def test_the_same_bytes_signed_again_are_the_payment_that_was_given_up(store):
    """Signatures are deterministic: where fees do not move, the next payment is the same transaction."""
    budget = Cap.parse("0.01 USDC")
    store.store(transfer(1), budget=budget)
    store.abandon(transfer(1).tx_hash)
    assert store.store(transfer(1), budget=budget) == Stored()
    assert store.unresolved(PAYER) == (transfer(1),)


def test_counts_the_calls_that_a_payment_bought(store):
    first = transfer(1)
    store.store(first, budget=None)
    store.record_state(first.tx_hash, TransferState.CONFIRMED, None)
    assert store.count_served(first.tx_hash) == 0
    store.record_state(first.tx_hash, TransferState.CONFIRMED, 0, is_served=True)
    assert store.count_served(first.tx_hash) == 1
    assert store.count_served(transfer(2).tx_hash) == 0


def test_a_store_of_the_first_version_is_read_on(store, store_path):
    connection = sqlite3.connect(store_path)
    for statement in store_module._SCHEMA.split(";"):
        connection.execute(statement)
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    assert store.store(transfer(1, fee_max_wei=2**70), budget=None) == Stored()
    assert [kept.fee_max_wei for kept in store.list_transfers(transfer(1).payer)] == [2**70]
    assert store.abandon(transfer(1).tx_hash)
    assert store.store(transfer(2, nonce=1), budget=None) == Stored()


def write_old_authorization(path, *, version: int, proof: str, state: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in ";".join(store_module._MIGRATIONS[:version]).split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute(
            "INSERT INTO signed_authorization VALUES (?, ?, 84532, ?, 'USDC', 6, ?, ?, 'http://gw', '10000', 1, ?, NULL, 'ab', 0, 0)",
            ("07" * 32, proof, str(USDC.token), str(PAYER), str(PAYER), state),
        )
        connection.commit()


def test_released_authorisations_of_version_four_count_as_spent(store, store_path):
    """In a file of that version the word meant: no part of the budget."""
    write_old_authorization(store_path, version=4, proof="", state="released")
    assert store.spent(PAYER) == {"USDC": 10**16}
    (released,) = store.find_lapsed_authorizations(payer=PAYER, chains=[ChainId(84532)])
    assert store.record_authorization(released.nonce, AuthorizationState.EXPIRED, None)
    assert store.spent(PAYER) == {"USDC": 0}


def test_an_open_authorisation_of_version_six_is_leased_and_its_end_is_read_from_the_chain(store, store_path):
    write_old_authorization(store_path, version=6, proof="proof", state="open")
    left = store.lease_authorization(payer=PAYER, request=b"\xab")
    assert (left.proof, left.state) == ("proof", AuthorizationState.OPEN)
    assert store.find_lapsed_authorizations(payer=PAYER, chains=[ChainId(84532)]) == (left,)
    with contextlib.closing(sqlite3.connect(store_path)) as connection:
        plan = connection.execute(
            "EXPLAIN QUERY PLAN SELECT 1 FROM signed_authorization WHERE payer = 'x' AND request = 'y' AND proof <> ''"
        ).fetchall()
    assert "authorization_by_request" in str(plan)


def test_budget_counts_what_moved_or_may_move(store):
    budget = Cap.parse("0.025 USDC")
    assert store.store(transfer(1), budget=budget) == Stored()
    assert store.store(transfer(2), budget=budget) == Stored()
    assert isinstance(store.store(transfer(3), budget=budget), OverBudget)
    store.record_state(transfer(2).tx_hash, TransferState.FAILED, 0)
    assert store.store(transfer(3), budget=budget) == Stored()
    store.abandon(transfer(3).tx_hash)
    assert isinstance(store.store(transfer(4), budget=budget), OverBudget)


def test_budget_adds_up_assets_of_one_currency_and_refuses_others(store):
    fine = replace(USDC, decimals=18, token=Address(b"\x06" * 20))
    budget = Cap.parse("0.02 USDC")
    store.store(transfer(1), budget=budget)
    assert isinstance(store.store(transfer(2, asset=fine, amount=10**16 + 1), budget=budget), OverBudget)
    assert store.store(transfer(2, asset=fine, amount=10**16), budget=budget) == Stored()
    native = Asset(chain_id=USDC.chain_id, token=None, symbol="ETH", decimals=18)
    assert isinstance(store.store(transfer(3, asset=native, amount=1), budget=budget), OverBudget)


def test_recall_gives_credit_before_unresolved_and_nothing_spent(store):
    payees = [transfer(n).pay_to for n in range(1, 6)]
    for number, (state, rest) in enumerate(
        [
            (TransferState.REFUSED, 9),
            (TransferState.STORED, 8),
            (TransferState.CONFIRMED, 5),
            (TransferState.CONFIRMED, 6),
            (TransferState.CONFIRMED, 0),
        ],
        start=1,
    ):
        store.store(transfer(number), budget=None)
        store.record_state(transfer(number).tx_hash, state, rest)
    told = {"payer": PAYER, "gateway": GATEWAY, "api_id": "api_1"}
    assert store.find_payments(payees=(), **told) == ()
    assert [t.nonce for t in store.find_payments(payees=payees, **told)] == [4, 3, 2, 1]
    assert [t.nonce for t in store.find_payments(payees=(), **told)] == [4, 3, 2, 1]
    assert [t.nonce for t in store.find_payments(payees=payees[:1], **told)] == [1]


def refund(number: int, *calls: str, **changes) -> Transfer:
    return transfer(number, refunds=calls, rest=0, **changes)


def test_a_call_has_one_refund_that_can_move_something(store):
    first = refund(1, "call_1", "call_2")
    assert store.store_refund(first) == Stored()
    for calls in (("call_1", "call_2"), ("call_2", "call_3")):
        assert store.store_refund(refund(2, *calls)) == RefundedAlready(transfer=first)
        assert store.find_refund(calls) == first
    assert store.find_refund(["call_3"]) is None
    store.record_state(first.tx_hash, TransferState.CONFIRMED, None)
    assert store.store_refund(refund(2, "call_2")) == RefundedAlready(
        transfer=replace(first, state=TransferState.CONFIRMED)
    )
    store.record_state(first.tx_hash, TransferState.REPLACED, None)
    assert store.store_refund(refund(2, "call_2")) == Stored()


def test_of_many_processes_one_refunds_a_call(store, store_path):
    stores = [PaymentStore(store_path, now_ms=lambda: 0) for _ in range(8)]
    outcomes = run_threads(
        partial(one.store_refund, refund(number, "call_1")) for number, one in enumerate(stores)
    )
    assert sum(outcome == Stored() for outcome in outcomes) == 1


def test_a_refund_is_no_payment(store):
    """It shares the nonces of the wallet and nothing else: no budget, no list, and it is never abandoned."""
    sent = refund(1, "call_1")
    store.store_refund(sent)
    payment = transfer(2, nonce=1, pay_to=sent.pay_to)
    assert store.store(payment, budget=None) == NonceTaken()
    assert store.store(replace(payment, nonce=2), budget=Cap.parse("1000 USDC")) == Stored()
    assert store.store_refund(refund(3, "call_2", nonce=2)) == NonceTaken()
    assert [one.nonce for one in store.list_transfers(PAYER)] == [2]
    assert [one.nonce for one in store.unresolved(PAYER)] == [1, 2]
    assert store.next_nonce(payer=PAYER, chain_id=sent.chain_id, pending=0) == 3
    assert not store.abandon(sent.tx_hash)
    told = {"payer": PAYER, "gateway": GATEWAY, "api_id": "api_1", "payees": (sent.pay_to,)}
    assert [one.nonce for one in store.find_payments(**told)] == [2]


def test_abandoned_stays_abandoned(store):
    store.store(transfer(1), budget=None)
    assert store.abandon(transfer(1).tx_hash)
    store.record_state(transfer(1).tx_hash, TransferState.CONFIRMED, 5)
    assert store.list_transfers(PAYER)[0].state is TransferState.ABANDONED
    assert not store.abandon(transfer(1).tx_hash)


def test_every_commit_waits_for_the_disk(store):
    connection = store._connect()
    assert connection.execute("PRAGMA synchronous").fetchone()[0] == 3
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete"
    connection.close()


def test_a_newer_or_broken_file_is_refused(store, store_path):
    store.list_transfers(PAYER)
    connection = sqlite3.connect(store_path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StorageUnavailable, match="newer"):
        store.list_transfers(PAYER)
    store_path.write_bytes(b"not a database, surely" * 100)
    with pytest.raises(StorageUnavailable):
        store.list_transfers(PAYER)


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("transfer", "state = 'from the future'"),
        ("transfer", "pay_to = 'nobody'"),
        ("transfer", "raw = 'text'"),
        ("transfer", "amount = 'much'"),
        ("transfer", "decimals = 'six'"),
        ("signed_authorization", "state = 'from the future'"),
        ("signed_authorization", "nonce = 'zz'"),
        ("signed_authorization", "tx_hash = 'x'"),
    ],
)
def test_a_row_that_makes_no_sense_makes_the_store_unusable(store, store_path, table, change):
    store.store(transfer(1), budget=None)
    store.store_authorization(build_authorization(amount=1), request=b"r", budget=None)
    connection = sqlite3.connect(store_path)
    connection.execute(f"UPDATE {table} SET {change}")
    connection.commit()
    connection.close()
    read = store.list_transfers if table == "transfer" else store.list_authorizations
    with pytest.raises(StoreUnusable, match="cannot be read"):
        read(PAYER)


def test_a_permanent_failure_is_unusable_and_a_temporary_one_unavailable(
    store, store_path, tmp_path, monkeypatch
):
    store_path.write_bytes(b"not a database, surely" * 100)
    for path in (store_path, tmp_path, store_path / "below", tmp_path / ("x" * 300)):
        with pytest.raises(StoreUnusable):
            PaymentStore(path, now_ms=lambda: 0).list_transfers(PAYER)
    monkeypatch.setattr(store_module, "BUSY_TIMEOUT_S", 0.01)
    busy = PaymentStore(tmp_path / "busy", now_ms=lambda: 0)
    busy.list_transfers(PAYER)
    with contextlib.closing(sqlite3.connect(busy.path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StorageUnavailable) as failed:
            busy.list_transfers(PAYER)
    assert not isinstance(failed.value, StoreUnusable)


def test_a_store_that_others_can_read_is_tightened_when_it_is_opened(tmp_path):
    folder = tmp_path / ".tollway"
    store = PaymentStore(folder / "payments.sqlite3", now_ms=lambda: 0)
    store.list_transfers(PAYER)
    loose = [folder / f"payments.sqlite3{name}" for name in ("", "-wal", "-shm")]
    for path in loose:
        path.touch()
        path.chmod(0o644)
    folder.chmod(0o755)
    store.list_transfers(PAYER)
    assert [path.stat().st_mode & 0o777 for path in (folder, *loose) if path.exists()][:2] == [0o700, 0o600]
    assert all(path.stat().st_mode & 0o077 == 0 for path in loose if path.exists())


def test_a_folder_of_anothers_making_is_left_alone(tmp_path):
    tmp_path.chmod(0o755)
    PaymentStore(tmp_path / "payments.sqlite3", now_ms=lambda: 0).list_transfers(PAYER)
    assert tmp_path.stat().st_mode & 0o777 == 0o755


RACER = """
import sys
from pathlib import Path
from tollway.client.quote import Cap
from tollway.client.store import PaymentStore
from tollway.client.call_io import Transfer, TransferState
from tollway.ids import Address, ChainId, TxHash
from tollway.money import Asset

store, start = PaymentStore(Path(sys.argv[1]), now_ms=lambda: 0), int(sys.argv[2])
usdc = Asset(chain_id=ChainId(84532), token=Address(b"\\x05" * 20), symbol="USDC", decimals=6)
print("ready", flush=True)
sys.stdin.readline()
for n in range(start, start + 10):
    payment = Transfer(
        tx_hash=TxHash(n.to_bytes(32, "big")), raw=b"raw", asset=usdc, payer=Address(b"\\x01" * 20),
        pay_to=Address(n.to_bytes(20, "big")), gateway="http://gw", amount=10_000, rest=10_000, nonce=n,
        confirmations=1, state=TransferState.STORED,
    )
    print(type(store.store(payment, budget=Cap.parse("0.1 USDC"))).__name__, flush=True)
"""


@pytest.mark.process
def test_processes_that_race_for_the_budget_never_exceed_it(store_path):
    """Two processes make ten payments each; the budget holds ten."""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(store_path), start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for start in ("100", "200")
    ]
    assert run_threads(racer.stdout.readline for racer in racers) == ["ready\n", "ready\n"]
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    outcomes = [word for racer in racers for word in racer.communicate(timeout=60)[0].split()]
    assert (outcomes.count("Stored"), outcomes.count("OverBudget")) == (10, 10)


def test_the_last_spent_payment_is_one_that_bought_calls_of_that_listing_and_is_used_up(store):
    def remembered(number, *, rest, is_served, api_id="api_1", **changes):
        made = transfer(number, **changes)
        store.find_payments(payer=PAYER, gateway=made.gateway, api_id=api_id, payees=(made.pay_to,))
        store.store(made, budget=None)
        store.record_state(made.tx_hash, TransferState.CONFIRMED, rest, is_served=is_served)
        return made.tx_hash

    def last(api_id="api_1"):
        found = store.find_last_exhausted(payer=PAYER, gateway=GATEWAY, api_id=api_id)
        return [entry.tx_hash for entry in found]

    same = {"pay_to": Address(b"\x44" * 20)}
    remembered(1, rest=10_000, is_served=True, **same)
    assert last() == []
    remembered(2, rest=0, is_served=False, **same)
    assert last() == []
    first, second = (remembered(number, rest=0, is_served=True, **same) for number in (3, 4))
    assert last() == [second]
    assert first != second
    remembered(5, rest=0, is_served=True, api_id="api_2")
    remembered(6, rest=0, is_served=True, gateway="http://other", **same)
    assert last() == [second]
    assert last("api_9") == []


def test_spent_amounts_are_listed_by_currency(store):
    dai = Asset(chain_id=ChainId(1), token=Address(b"\x06" * 20), symbol="DAI", decimals=18)
    assert store.spent(PAYER) == {}
    store.store(transfer(1), budget=None)
    store.store(transfer(2, asset=dai, amount=5, rest=5), budget=None)
    store.store(transfer(3), budget=None)
    store.record_state(transfer(3).tx_hash, TransferState.FAILED, 0)
    assert store.spent(PAYER) == {"DAI": 5, "USDC": 10**16}
    assert store.spent(Address(b"\x02" * 20)) == {}
