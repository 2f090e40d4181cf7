"""The form of a ticket that refunds its call: for its provider only, by the hash of a transfer or as credit; both sides see what came back."""

import csv
import io
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.chain import Transaction, transfer_log
from tests.kit.ledger_records import claim_on, close_of, new_payment, tx_hash
from tests.kit.listings import sample_listing
from tests.kit.pages import RULES
from tests.kit.signed_in import READER, SELLER, THIRD, USDC, SignedInHarness
from tollway.ids import Address, CallId, ListingId, TxHash
from tollway.ledger.ledger import Claimed
from tollway.ledger.records import CallState
from tollway.ledger.refunds import credit_hash

ROUTE = "/my/calls/{call_id}/refund"
PRICE = 10_000
FORM = "Refund this call"


async def charge(harness: SignedInHarness, name: str = "paid", *, pay_to: Address = SELLER.address) -> CallId:
    services = harness.services
    new = new_payment(
        PRICE, name, payer=READER.address, payee=pay_to, chain_id=RULES.chain_id, asset=USDC.key
    )
    (payment,) = await services.ledger.record_payments([new], now_ms=services.now_ms)
    claim = claim_on(payment, PRICE, provider=SELLER.address, created_ms=services.now_ms)
    assert isinstance(await services.ledger.claim(claim), Claimed)
    await services.ledger.close(close_of(claim, CallState.CONSUMED))
    return claim.call_id


def send(harness: SignedInHarness, units: int = PRICE) -> TxHash:
    chain, token = harness.services.chain, USDC.token
    assert token is not None
    logs = (transfer_log(token, SELLER.address, READER.address, units),)
    sent = Transaction(tx_hash=tx_hash("refund"), sender=SELLER.address, recipient=token, logs=logs)
    chain.mine(RULES.chain_id, sent, time=harness.services.now_ms // 1000)
    chain.bury(RULES.chain_id, 20)
    return sent.tx_hash


async def post(harness: SignedInHarness, call_id: CallId, **fields: str) -> tuple[int, str]:
    answer = await harness.post(f"/my/calls/{call_id}/refund", fields, route=ROUTE)
    return answer.status_code, answer.text


async def test_the_provider_records_his_transfer_and_both_sides_see_it(harness: SignedInHarness) -> None:
    call_id = await charge(harness)
    path = f"/my/calls/{call_id}"
    await harness.sign_in(SELLER)
    page = await harness.browser.get(path)
    assert FORM in page.text
    assert f"&#34;to&#34;: &#34;{READER.address}&#34;" in page.text or str(READER.address) in page.text
    assert (await post(harness, call_id, transaction=f" {send(harness)} "))[0] == 303
    for wallet in (SELLER, READER):
        await harness.sign_in(wallet)
        words = (await harness.read(path)).words
        assert "Refunded 0.01 USDC" in words
        assert FORM not in words


async def list_api(harness: SignedInHarness, **changes: Any) -> None:
    listing = sample_listing(provider=SELLER.address, networks=(RULES.chain_id,))
    await harness.services.stores.catalog.publish(replace(listing, **changes))


CREDIT = "Give credit instead"


async def test_the_provider_gives_credit_by_a_second_button(harness: SignedInHarness) -> None:
    call_id = await charge(harness)
    await list_api(harness)
    await harness.sign_in(SELLER)
    assert CREDIT in (await harness.read(f"/my/calls/{call_id}")).words
    assert (await post(harness, call_id, credit="yes"))[0] == 303
    assert "Refunded by credit" in (await harness.read(f"/my/calls/{call_id}")).words


async def test_the_sums_of_both_sides_have_what_came_back_and_the_net(harness: SignedInHarness) -> None:
    refunded = await charge(harness)
    await charge(harness, name="kept")
    sums = {SELLER: ("/my/selling", "/my/sales"), READER: ("/my", "/my/spending")}
    for wallet, paths in sums.items():
        await harness.sign_in(wallet)
        for path in paths:
            assert "refunded" not in (await harness.read(path)).words
    await harness.sign_in(SELLER)
    assert (await post(harness, refunded, transaction=str(send(harness, PRICE // 2))))[0] == 303
    for wallet, paths in sums.items():
        await harness.sign_in(wallet)
        for path in paths:
            words = (await harness.read(path)).words
            assert "0.02 USDC" in words, path
            assert "0.005 refunded, 0.015 net" in words or "refunded 0.005 net 0.015" in words, (path, words)
    await harness.sign_in(READER)
    for group in ("day", "api", "provider", "wallet"):
        words = (await harness.read(f"/my/spending?groupBy={group}")).words
        assert "Calls Charged Refunded Net" in words, (group, words)
        assert "2 0.02 0.005 0.015" in words, (group, words)
    await harness.sign_in(SELLER)
    file = (await harness.browser.get("/my/sales.csv")).text
    rows = list(csv.DictReader(io.StringIO(file, newline="")))
    assert [(row["state"], row["calls"], row["units"], row["amount"]) for row in rows] == [
        ("charged", "2", "20000", "0.02"),
        ("refunded", "1", "5000", "0.005"),
        ("net", "2", "15000", "0.015"),
    ]


async def test_credit_of_a_refund_is_no_payment_in_the_lists(harness: SignedInHarness) -> None:
    """For its payer and for its payee, as page and as CSV. It links to no explorer: no chain has it."""
    call_id = await charge(harness)
    await list_api(harness)
    await harness.sign_in(SELLER)
    assert (await post(harness, call_id, credit="yes"))[0] == 303
    for wallet, role in ((READER, "payer"), (SELLER, "provider")):
        await harness.sign_in(wallet)
        assert "credited of a refund" in (await harness.read(f"/my/credit?role={role}")).words
        file = (await harness.browser.get(f"/my/credit.csv?role={role}")).text
        rows = csv.DictReader(io.StringIO(file, newline=""))
        assert sorted((row["state"], row["kind"]) for row in rows) == [
            ("credited", "refund"),
            ("spent", "payment"),
        ]
    await harness.sign_in(READER)
    words = (await harness.read(f"/my/credit/{credit_hash(call_id)}")).words
    assert "Credit of a refund" in words
    assert "Transaction" not in words


async def test_the_form_offers_only_what_the_gateway_accepts(harness: SignedInHarness) -> None:
    """Credit that no API takes, and a `payTo` that is another provider's, are not offered; posted, each is refused with its reason."""
    call_id = await charge(harness, pay_to=THIRD.address)
    await harness.sign_in(SELLER)
    path = f"/my/calls/{call_id}"
    page = await harness.browser.get(path)
    assert (FORM in page.text, CREDIT in page.text) == (True, False)
    assert str(THIRD.address).lower() in page.text
    status, text = await post(harness, call_id, credit="yes")
    assert (status, "No API of yours takes this credit now" in text) == (409, True)
    await list_api(harness)
    await list_api(harness, id=ListingId("api_third"), provider=THIRD.address)
    page = await harness.browser.get(path)
    assert CREDIT in page.text
    assert str(SELLER.address).lower() in page.text
    assert str(THIRD.address).lower() not in page.text.replace(str(THIRD.address), "")


async def test_a_payer_has_no_form_and_cannot_post_one(harness: SignedInHarness) -> None:
    call_id = await charge(harness)
    await harness.sign_in(READER)
    assert FORM not in (await harness.read(f"/my/calls/{call_id}")).words
    assert (await post(harness, call_id, credit="yes"))[0] == 403


@pytest.mark.parametrize(
    ("transaction", "status", "told"),
    [
        ("0x12", 400, "hash of the transfer is not valid"),
        ("", 400, "hash of the transfer is not valid"),
        (str(tx_hash("none")), 409, "is not mined yet"),
    ],
)
async def test_a_hash_that_refunds_nothing_is_explained(
    harness: SignedInHarness, transaction: str, status: int, told: str
) -> None:
    call_id = await charge(harness)
    await harness.sign_in(SELLER)
    answer = await post(harness, call_id, transaction=transaction)
    assert answer[0] == status
    assert told in answer[1]
