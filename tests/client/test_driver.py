"""Calls of one process at the same time: a payment made for one call is spent by that call."""

from dataclasses import replace

import pytest

from tollway.client import HttpNotAllowed
from tollway.client.driver import Driver
from tollway.client.steps import (
    AuthorizationState,
    FindPayments,
    PaidAlready,
    RecordAuthorizationState,
    RecordTransferState,
    SignedAuthorization,
    StoreAuthorization,
    Stored,
    StoreTransfer,
    Transfer,
    TransferState,
)
from tollway.ids import Address, ChainId, TxHash
from tollway.money import Asset

GATEWAY = "https://gateway.test"
PAYEE = Address(b"\x22" * 20)
USDC = Asset(chain_id=ChainId(84532), token=Address(b"\x05" * 20), symbol="USDC", decimals=6)


@pytest.fixture
def driver(wallet, store_path):
    return Driver(
        GATEWAY, {"wallet": wallet, "store_path": store_path, "rpc_urls": {84532: "https://node.test"}}
    )


def payment(driver, **changes) -> Transfer:
    transfer = Transfer(
        tx_hash=TxHash(b"\x0a" * 32),
        raw=b"raw",
        asset=USDC,
        payer=driver.wallet.address,
        pay_to=PAYEE,
        gateway=GATEWAY,
        amount=10_000,
        rest=10_000,
        nonce=0,
        confirmations=1,
        state=TransferState.STORED,
    )
    return replace(transfer, **changes)


def test_the_same_transaction_signed_by_two_calls_belongs_to_the_one_that_stored_it(driver):
    """Signatures are deterministic: at the same nonce, two calls of one price sign the very same bytes."""
    first, second = driver.plan_call("api_1", "/1"), driver.plan_call("api_1", "/2")
    step = StoreTransfer(transfer=payment(driver), price=10_000)
    assert driver.perform_local(step, first) == Stored()
    told = PaidAlready(transfer=step.transfer, is_reserved=True)
    assert driver.perform_local(step, second) == told
    look = FindPayments(payees=(PAYEE,))
    assert driver.perform_local(look, second) == ()
    assert driver.perform_local(look, first) == (step.transfer,)
    driver.end_call(second)
    assert driver.perform_local(look, second) == ()
    driver.end_call(first)
    assert driver.perform_local(look, second) == (step.transfer,)


def test_the_rest_of_a_spent_payment_is_not_raised_by_another_call(driver, monkeypatch):
    """The owner ends while another call reads the store: the other has seen either the owner or the new rest."""
    owner, other = driver.plan_call("api_1", "/1"), driver.plan_call("api_1", "/2")
    made = payment(driver)
    driver.perform_local(StoreTransfer(transfer=made, price=10_000), owner)
    read = driver.store.find_payments

    def ends_meanwhile(**told):
        known = read(**told)
        driver.perform_local(
            RecordTransferState(tx_hash=made.tx_hash, state=TransferState.CONFIRMED, rest=0), owner
        )
        driver.end_call(owner)
        return known

    monkeypatch.setattr(driver.store, "find_payments", ends_meanwhile)
    assert driver.perform_local(FindPayments(payees=(PAYEE,)), other) == ()


def test_every_call_may_spend_a_payment_for_several_calls(driver):
    maker, other = driver.plan_call("api_1", "/1", prepay=2), driver.plan_call("api_1", "/2")
    made = payment(driver, amount=20_000, rest=20_000)
    driver.perform_local(StoreTransfer(transfer=made, price=10_000), maker)
    assert driver.perform_local(FindPayments(payees=(PAYEE,)), other) == (made,)


@pytest.mark.parametrize("ended", list(TransferState))
def test_a_stored_transfer_stays_part_of_the_session(driver, ended):
    """Nothing that a node says of it later gives anything back."""
    plan, made = driver.plan_call("api_1", "/1"), payment(driver)
    driver.perform_local(StoreTransfer(transfer=made, price=10_000), plan)
    driver.perform_local(RecordTransferState(tx_hash=made.tx_hash, state=ended, rest=0), plan)
    assert dict(driver.session.spent()) == {"USDC": 10**16}


OPEN, CHARGED, RELEASED, ABANDONED, EXPIRED, UNSENT = AuthorizationState


@pytest.mark.parametrize(
    ("states", "is_counted"),
    [
        ((OPEN,), True),
        ((CHARGED,), True),
        ((RELEASED,), True),
        ((RELEASED, EXPIRED), True),
        ((EXPIRED,), True),
        ((UNSENT,), False),
        ((RELEASED, UNSENT), True),
        ((ABANDONED, UNSENT), True),
        ((CHARGED, UNSENT), True),
    ],
)
def test_an_authorisation_stays_part_of_the_session_unless_it_never_left(driver, states, is_counted):
    plan = driver.plan_call("api_1", "/1")
    signed = SignedAuthorization(
        nonce=b"\x09" * 32,
        proof="proof",
        asset=USDC,
        payer=driver.wallet.address,
        pay_to=PAYEE,
        gateway=GATEWAY,
        amount=10_000,
        valid_before=1,
    )
    driver.perform_local(StoreAuthorization(authorization=signed), plan)
    for state in states:
        driver.perform_local(RecordAuthorizationState(nonce=signed.nonce, state=state), plan)
    assert dict(driver.session.spent()) == ({"USDC": 10**16} if is_counted else {})


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        ("https://gateway.test", True),
        ("http://127.0.0.1:8402", True),
        ("http://127.8.8.8", True),
        ("http://[::1]:8402", True),
        ("http://localhost:8402", True),
        ("http://gateway.test", False),
        ("HTTP://gateway.test", False),
        ("http://10.0.0.1", False),
        ("http://0.0.0.0", False),
        ("http://localhost.evil.test", False),
        ("http://127.0.0.1.evil.test", False),
        ("http://127.0.0.1@evil.test", False),
        ("http://[::ffff:10.0.0.1]", False),
    ],
)
def test_http_beyond_this_machine_has_to_be_allowed(url, is_allowed, store_path):
    for options in ({"gateway_url": url}, {"gateway_url": "https://gateway.test", "rpc_urls": {1: url}}):
        gateway_url, more = options.pop("gateway_url"), {**options, "store_path": store_path}
        if "@" not in gateway_url:  # which is refused as an origin
            Driver(gateway_url, {**more, "allow_http": True})
        if is_allowed:
            Driver(gateway_url, more)
        else:
            with pytest.raises(HttpNotAllowed) as refused:
                Driver(gateway_url, more)
            assert refused.value.code == "http_not_allowed"
