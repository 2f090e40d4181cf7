"""Idempotency keys in the payment store: one per request until its response is delivered."""

import pytest

from tollway.client.store import IDEMPOTENCY_KEY_KEPT_MS, PaymentStore
from tollway.ids import Address

PAYER, OTHER = Address(b"\x01" * 20), Address(b"\x02" * 20)
REQUEST = b"\x0e" * 32


@pytest.fixture
def clock() -> list[int]:
    return [1_700_000_000_000]


@pytest.fixture
def store(store_path, clock) -> PaymentStore:
    return PaymentStore(store_path, now_ms=lambda: clock[0])


def test_a_request_keeps_its_key_over_processes(store, store_path, clock) -> None:
    assert store.keep_key(payer=PAYER, request=REQUEST, fresh="one") == "one"
    again = PaymentStore(store_path, now_ms=lambda: clock[0] + IDEMPOTENCY_KEY_KEPT_MS - 1)
    assert again.keep_key(payer=PAYER, request=REQUEST, fresh="two") == "one"


def test_another_request_and_another_wallet_have_their_own(store) -> None:
    store.keep_key(payer=PAYER, request=REQUEST, fresh="one")
    assert store.keep_key(payer=PAYER, request=b"\x0f" * 32, fresh="two") == "two"
    assert store.keep_key(payer=OTHER, request=REQUEST, fresh="three") == "three"


def test_a_dropped_key_is_followed_by_a_fresh_one_and_only_that_one_is_dropped(store) -> None:
    store.keep_key(payer=PAYER, request=REQUEST, fresh="one")
    store.drop_key(payer=PAYER, request=REQUEST, key="one")
    assert store.keep_key(payer=PAYER, request=REQUEST, fresh="two") == "two"
    store.drop_key(payer=PAYER, request=REQUEST, key="one")
    assert store.keep_key(payer=PAYER, request=REQUEST, fresh="three") == "two"


def test_a_key_that_gateways_have_forgotten_is_not_used_any_more(store, clock) -> None:
    store.keep_key(payer=PAYER, request=REQUEST, fresh="one")
    clock[0] += IDEMPOTENCY_KEY_KEPT_MS
    assert store.keep_key(payer=PAYER, request=REQUEST, fresh="two") == "two"
