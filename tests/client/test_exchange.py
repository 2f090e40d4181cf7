"""Calls of one process at the same time: a payment made for one call is spent by that call."""

import asyncio
from dataclasses import replace

import httpx
import pytest

from tests.kit.call_io import PAYEE, build_authorization, build_transfer
from tollway.client.call_io import (
    AuthorizationState,
    PaidAlready,
    Stored,
    TransferState,
)
from tollway.client.driver import ClientOptions, Driver
from tollway.client.exchange import BlockingHttp, Exchange, run_blocking

GATEWAY = "https://gateway.test"


@pytest.fixture
def driver(wallet, store_path):
    return Driver(
        GATEWAY,
        ClientOptions(wallet=wallet, store_path=store_path, rpc_urls={84532: "https://node.test"}),
    )


class Call:
    """The steps of one call, without a network."""

    def __init__(self, driver, plan):
        self.plan = plan
        with httpx.Client(verify=False) as unused:  # no certificates are read
            self._exchange = Exchange(driver, BlockingHttp(unused), plan)

    def __getattr__(self, name):
        return lambda *args, **options: run_blocking(getattr(self._exchange, name)(*args, **options))


@pytest.fixture
def begin(driver):
    return lambda target, **options: Call(driver, driver.plan_call("api_1", target, **options))


@pytest.fixture
def made(wallet):
    return build_transfer(payer=wallet.address, gateway=GATEWAY)


def test_the_same_transaction_signed_by_two_calls_belongs_to_the_one_that_stored_it(driver, begin, made):
    """Signatures are deterministic: at the same nonce, two calls of one price sign the very same bytes."""
    first, second = begin("/1"), begin("/2")
    assert first.store_transfer(made, 10_000) == Stored()
    assert second.store_transfer(made, 10_000) == PaidAlready(transfer=made, is_reserved=True)
    assert second.find_payments((PAYEE,)) == ()
    assert first.find_payments((PAYEE,)) == (made,)
    driver.end_call(second.plan)
    assert second.find_payments((PAYEE,)) == ()
    driver.end_call(first.plan)
    assert second.find_payments((PAYEE,)) == (made,)


def test_the_rest_of_a_spent_payment_is_not_raised_by_another_call(driver, begin, made, monkeypatch):
    """The owner ends while another call reads the store: the other has seen either the owner or the new rest."""
    owner, other = begin("/1"), begin("/2")
    owner.store_transfer(made, 10_000)
    read = driver.store.find_payments

    def ends_meanwhile(**told):
        known = read(**told)
        owner.record_transfer_state(made.tx_hash, TransferState.CONFIRMED, 0)
        driver.end_call(owner.plan)
        return known

    monkeypatch.setattr(driver.store, "find_payments", ends_meanwhile)
    assert other.find_payments((PAYEE,)) == ()


def test_every_call_may_spend_a_payment_for_several_calls(begin, made):
    made = replace(made, amount=20_000, rest=20_000)
    begin("/1", prepay=2).store_transfer(made, 10_000)
    assert begin("/2").find_payments((PAYEE,)) == (made,)


@pytest.mark.parametrize("ended", list(TransferState))
def test_a_stored_transfer_stays_part_of_the_session(driver, begin, made, ended):
    """Nothing that a node says of it later gives anything back."""
    call = begin("/1")
    call.store_transfer(made, 10_000)
    call.record_transfer_state(made.tx_hash, ended, 0)
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
def test_an_authorisation_stays_part_of_the_session_unless_it_never_left(driver, begin, states, is_counted):
    call = begin("/1")
    signed = build_authorization(payer=driver.wallet.address, gateway=GATEWAY)
    call.store_authorization(signed)
    for state in states:
        call.record_authorization_state(signed.nonce, state)
    assert dict(driver.session.spent()) == ({"USDC": 10**16} if is_counted else {})


def test_a_coroutine_of_the_synchronous_client_never_suspends():
    with pytest.raises(RuntimeError, match="has suspended"):
        run_blocking(asyncio.sleep(0))
