"""The look at one transaction on the page of open calls, and its JSON."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.kit.admin_pages import (
    list_audit_entries,
    open_browser,
    run_admin_app,
    sign_in,
)
from tests.kit.chain import MemoryChain, Transaction, transfer_log
from tests.kit.ledger_records import NOW_MS, new_payment, operator_origin
from tollway.app.lifecycle import App
from tollway.ledger.records import NewPayment
from tollway.payments.transaction_lookup import TransactionLookup

PATH = "/admin/api/transactions/"


@pytest.fixture
async def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    monkeypatch.chdir(tmp_path)
    async with run_admin_app() as app:
        yield app


@pytest.fixture
async def browser(app: App) -> AsyncIterator[httpx.AsyncClient]:
    async with open_browser(app) as client:
        await sign_in(app, client)
        yield client


def connect_chain(app: App) -> MemoryChain:
    """Chains in memory behind the look-ups of the gateway, whose own node is away."""
    chain = MemoryChain(*app.rules)
    app.transaction_verifier.lookup = TransactionLookup(chain)
    return chain


def pay(app: App) -> NewPayment:
    """A payment in the first currency of the gateway, not recorded yet."""
    (rules,) = app.rules.values()
    return new_payment(10_000, chain_id=rules.chain_id, asset=rules.assets[0].key)


@contextlib.asynccontextmanager
async def open_same(app: App, browser: httpx.AsyncClient) -> AsyncIterator[httpx.AsyncClient]:
    """The session of `browser`, at pages that were built after a change of the gateway."""
    async with open_browser(app) as client:
        client.headers["cookie"] = browser.headers["cookie"]
        yield client


async def test_a_chain_that_is_away_is_named_with_what_to_do(app: App, browser: httpx.AsyncClient) -> None:
    payment = pay(app)
    await app.payments.record_payments([payment], now_ms=NOW_MS)
    answer = await browser.get(f"{PATH}{payment.tx_hash}")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    (network,) = answer.json()["networks"]
    assert (network["network"], network["state"]) == ("eip155:84532", "away")
    assert [one["chain"] for one in answer.json()["payments"]] == ["not_read"]
    page = (await browser.get("/calls", params={"transaction": str(payment.tx_hash)})).text
    assert "No node gave a usable answer" in page
    assert '<a href="/chains">' in page


async def test_nodes_that_disagree_are_named(app: App, browser: httpx.AsyncClient) -> None:
    payment, chain = pay(app), connect_chain(app)
    (chain_id,) = app.rules
    chain.mine(chain_id, Transaction(tx_hash=payment.tx_hash, sender=payment.payer, recipient=payment.payee))
    chain.disputed.add(payment.tx_hash)
    async with open_same(app, browser) as client:
        (network,) = (await client.get(f"{PATH}{payment.tx_hash}")).json()["networks"]
        page = (await client.get("/calls", params={"transaction": str(payment.tx_hash)})).text
    assert network["state"] == "disputed"
    assert "The nodes give different answers" in page


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("unknown", "do not know this transaction"),
        ("pending", "It waits at a node"),
        ("failed", "failed"),
        ("mined", "mined, not final"),
        ("final", "final"),
    ],
)
async def test_each_state_of_a_transaction(
    browser: httpx.AsyncClient, app: App, state: str, word: str
) -> None:
    chain = connect_chain(app)
    (chain_id,) = app.rules
    token = app.rules[chain_id].assets[0].token
    assert token is not None
    payment = pay(app)
    await app.payments.record_payments([payment], now_ms=NOW_MS)
    transaction = Transaction(
        tx_hash=payment.tx_hash,
        sender=payment.payer,
        recipient=token,
        logs=(transfer_log(token, payment.payer, payment.payee, 10_000),),
        succeeded=state != "failed",
    )
    if state == "pending":
        chain.pend(chain_id, transaction)
    elif state != "unknown":
        chain.mine(chain_id, transaction)
        chain.bury(chain_id, 30 if state == "final" else 1)
    async with open_same(app, browser) as client:
        (network,) = (await client.get(f"{PATH}{payment.tx_hash}")).json()["networks"]
        page = (await client.get("/calls", params={"transaction": str(payment.tx_hash)})).text
    assert network["state"] == state
    assert word in page
    if state in ("mined", "final"):
        assert network["transfers"] == [
            {"currency": "USDC", "amount": "0.01", "from": str(payment.payer), "to": str(payment.payee)}
        ]
        assert "0.01 USDC" in page
    elif state != "pending":
        assert "no longer pays" in page
    (kept,) = (await app.payments.find_transaction(payment.tx_hash)).payments
    assert (kept.value_units, kept.taken_units) == (10_000, 0)
    assert await list_audit_entries(app) == []


async def test_a_transaction_that_is_admitted_or_held_says_so(app: App, browser: httpx.AsyncClient) -> None:
    payment = new_payment(10)
    await app.payments.record_payments([payment], now_ms=NOW_MS)
    await app.operator_ledger.mark_restored(origin=operator_origin())
    await app.operator_ledger.admit(payment.tx_hash, origin=operator_origin())
    looked = (await browser.get(f"{PATH}{payment.tx_hash}")).json()
    assert looked["isAdmitted"] is True
    assert looked["heldBefore"] is not None
    assert [one["isHeld"] for one in looked["payments"]] == [True]
    page = (await browser.get("/calls", params={"transaction": str(payment.tx_hash)})).text
    assert "has admitted it" in page


async def test_looks_are_refused_in_the_form_that_was_asked(app: App, browser: httpx.AsyncClient) -> None:
    for text in ("0x12", "x" * 70):
        answer = await browser.get(PATH + text)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
        page = await browser.get("/calls", params={"transaction": text})
        assert page.status_code == 400
        assert "The transaction is not understood" in page.text
    connect_chain(app)
    async with open_same(app, browser) as client:
        for number in range(app.settings.limits.lookups_per_minute):
            assert (await client.get(f"{PATH}0x{number:064x}")).status_code == 200
        answer = await client.get(f"{PATH}0x{'ab' * 32}")
        assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
        assert int(answer.headers["retry-after"]) > 0


async def test_a_look_needs_a_session(app: App) -> None:
    async with open_browser(app) as stranger:
        assert (await stranger.get(f"{PATH}0x{'ab' * 32}")).status_code == 401
