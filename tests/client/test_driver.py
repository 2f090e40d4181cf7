"""The session limit: a payment counts before it is sent, and until it certainly moved nothing. The options of a client."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.waits import run_threads
from tollway.client import HttpNotAllowed
from tollway.client.call_io import NonceTaken, OverBudget, Stored
from tollway.client.driver import ClientOptions, Driver, SessionLimit
from tollway.client.quote import Cap
from tollway.errors import StorageUnavailable
from tollway.ids import Address, ChainId
from tollway.money import Asset

USDC = Asset(chain_id=ChainId(1), token=Address(b"\x05" * 20), symbol="USDC", decimals=6)
DAI = Asset(chain_id=ChainId(1), token=Address(b"\x06" * 20), symbol="DAI", decimals=18)


def limit(text: str | None = "0.02 USDC") -> SessionLimit:
    return SessionLimit(None if text is None else Cap.parse(text))


def store(session: SessionLimit, name: bytes, amount: int = 10_000, asset: Asset = USDC) -> object:
    return session.store(name, asset, amount, store=Stored)


def test_the_limit_is_for_all_that_is_signed() -> None:
    session = limit()
    assert [store(session, name) for name in (b"a", b"b")] == [Stored(), Stored()]
    over = OverBudget(spent_atto=2 * 10**16, budget_atto=2 * 10**16, limit="limit of this session")
    assert store(session, b"c", 1) == over
    assert dict(session.spent()) == {"USDC": 2 * 10**16}


def test_a_currency_that_the_limit_does_not_name_is_not_spent() -> None:
    assert isinstance(store(limit(), b"a", 1, DAI), OverBudget)
    assert store(limit("1"), b"a", 10**18, DAI) == Stored()
    assert store(limit(None), b"a", 10**30, DAI) == Stored()


def test_an_unstored_payment_does_not_count() -> None:
    session = limit()
    assert session.store(b"a", USDC, 20_000, store=NonceTaken) == NonceTaken()

    def fail() -> Stored:
        raise StorageUnavailable("disk")

    with pytest.raises(StorageUnavailable):
        session.store(b"a", USDC, 20_000, store=fail)
    assert dict(session.spent()) == {}
    assert store(session, b"b", 20_000) == Stored()


def test_an_unsent_payment_is_released() -> None:
    session = limit()
    store(session, b"a")
    store(session, b"b")
    for name in (b"a", b"another"):
        session.release(name)
    assert dict(session.spent()) == {"USDC": 10**16}


def test_the_same_transaction_signed_twice_counts_once() -> None:
    session = limit()
    store(session, b"a", 20_000)
    assert session.store(b"a", USDC, 20_000, store=NonceTaken) == NonceTaken()
    assert dict(session.spent()) == {"USDC": 2 * 10**16}


def test_of_many_at_once_no_more_pass_than_the_limit_allows() -> None:
    session, outcomes = limit("0.05 USDC"), []
    run_threads(
        lambda name=bytes([number]): outcomes.append(store(session, name))  # type: ignore[misc]
        for number in range(40)
    )
    assert outcomes.count(Stored()) == 5
    assert dict(session.spent()) == {"USDC": 5 * 10**16}


# ---- URLs.


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
def test_http_beyond_this_machine_has_to_be_allowed(url: str, is_allowed: bool, store_path: Path) -> None:
    for gateway_url, nodes in ((url, {}), ("https://gateway.test", {1: url})):
        options = ClientOptions(rpc_urls=nodes, store_path=store_path)
        if "@" not in gateway_url:  # which is refused as an origin
            Driver(gateway_url, replace(options, allow_http=True))
        if is_allowed:
            Driver(gateway_url, options)
        else:
            with pytest.raises(HttpNotAllowed) as refused:
                Driver(gateway_url, options)
            assert refused.value.code == "http_not_allowed"
