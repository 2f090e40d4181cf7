"""`POST /api/v2/history/{callId}/refund`: which requests refund, how each other one is refused, and that a refusal records nothing. Over SQLite and a chain in memory."""

from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import httpx
import pytest

from tests.kit.catalogs import open_catalog
from tests.kit.chain import MemoryChain, Transaction, authorization_log, transfer_log
from tests.kit.ledger_records import (
    CHAIN,
    NOW_MS,
    PAYEE,
    PAYER,
    PROVIDER,
    USDC,
    claim_on,
    close_of,
    new_payment,
    operator_origin,
    tx_hash,
)
from tests.kit.ledger_steps import assert_balanced, pay
from tests.kit.listings import sample_listing
from tests.kit.refunds import make_refunds
from tests.kit.routes import authenticate_as, make_app, make_context, open_client
from tests.kit.storage_faults import FaultyLedger
from tests.kit.stores import InlineDatabase
from tollway.chain.networks import ChainRules
from tollway.chain.port import Log
from tollway.ids import Address, CallId, ListingId, TxHash
from tollway.ledger.ledger import Claimed
from tollway.ledger.records import CallState
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Asset
from tollway.web.api.refund_routes import refund_router

TOKEN = Address.parse(USDC)
OTHER_TOKEN, STRANGER = Address(b"\x77" * 20), Address(b"\xee" * 20)
UNRELATED = transfer_log(OTHER_TOKEN, STRANGER, STRANGER, 1)
NOW_S = NOW_MS // 1000
ASSETS = (
    Asset(chain_id=CHAIN, token=TOKEN, symbol="USDC", decimals=6),
    Asset(chain_id=CHAIN, token=None, symbol="ETH", decimals=18),
)
RULES = {CHAIN: ChainRules(chain_id=CHAIN, kind="test", confirmations=((0, 2),), assets=ASSETS)}
PRICE = 40
_NUMBERS = count()


class RefundHarness:
    """The route over a ledger and a chain. `now_s` is moved by hand."""

    def __init__(self) -> None:
        self.now_s = NOW_S + 10
        self.faulty = FaultyLedger(InlineDatabase())  # type: ignore[arg-type]  # it stands in for a database
        self.ledger = self.faulty.ledger
        self.chain = MemoryChain(CHAIN)
        self.refunds = make_refunds(self.ledger, self.chain, RULES, now_ms=self.now_ms)

    def now_ms(self) -> int:
        return self.now_s * 1000

    async def list_api(self, **changes: Any) -> None:
        """Publishes the listing that the calls are of."""
        catalog = open_catalog(self.faulty.database)  # type: ignore[arg-type]  # it stands in for a database
        await catalog.publish(sample_listing(**{"provider": PROVIDER, "pay_to": PAYEE, **changes}))

    async def charge(self, units: int = PRICE, **fields: Any) -> CallId:
        of_payment = {name: fields.pop(name) for name in ("payer", "payee", "asset") if name in fields}
        payment = await pay(self.ledger, units, f"payment {next(_NUMBERS)}", **of_payment)
        claim = claim_on(payment, units, **fields)
        assert isinstance(await self.ledger.claim(claim), Claimed)
        await self.ledger.close(close_of(claim, CallState.CONSUMED))
        return claim.call_id

    def send(
        self,
        units: int = PRICE,
        name: str = "refund",
        *logs: Log,
        depth: int = 3,
        age_s: int = 0,
        **fields: Any,
    ) -> TxHash:
        """A transfer of the token from the payee to the payer, in a block of now."""
        given: dict[str, Any] = {"sender": PAYEE, "recipient": TOKEN, **fields}
        logs = logs or (transfer_log(TOKEN, PAYEE, PAYER, units),)
        self.chain.mine(
            CHAIN, Transaction(tx_hash=tx_hash(name), logs=logs, **given), time=self.now_s - age_s
        )
        self.chain.bury(CHAIN, depth - 1)
        return tx_hash(name)

    async def post(self, call_id: str, *, wallet: Address = PROVIDER, **body: Any) -> httpx.Response:
        context = make_context(
            call_history=self.ledger,
            refunds=self.refunds,
            authenticate=authenticate_as(wallet),
            rules=RULES,
        )
        async with open_client(make_app(context, refund_router(context))) as client:
            return await client.post(f"/api/v2/history/{call_id}/refund", json=body)

    async def refused(self, call_id: str, **request: Any) -> tuple[int, str, str | None]:
        """The status, the code and the reason of a refusal that recorded nothing."""
        before = await self.ledger.find_call(CallId(call_id))
        answer = await self.post(call_id, **request)
        assert await self.ledger.find_call(CallId(call_id)) == before
        problem = answer.json()
        return answer.status_code, problem["code"], problem.get("reason")


@pytest.fixture
async def harness() -> AsyncIterator[RefundHarness]:
    it = RefundHarness()
    yield it
    await it.faulty.close()
    await assert_balanced(it.ledger)


REFUSED, USED, NOT_REFUNDABLE = "refund_transfer_refused", "refund_transfer_used", "call_not_refundable"


async def test_the_provider_refunds_a_call_by_his_transfer(harness: RefundHarness) -> None:
    call_id = await harness.charge()
    answer = await harness.post(call_id, transaction=str(harness.send()))
    assert answer.status_code == 200, answer.text
    (call,) = answer.json()["calls"]
    assert (call["id"], call["payment"]["state"]) == (call_id, "charged")
    assert call["refund"] == {
        "amount": "40",
        "value": "0.00004",
        "kind": "transfer",
        "transaction": str(tx_hash("refund")),
        "isFinal": False,
        "createdAt": "2027-01-15T08:00:10.000Z",
    }
    requests = harness.chain.request_count
    assert (await harness.post(call_id, transaction=str(tx_hash("refund")))).json() == answer.json()
    assert harness.chain.request_count == requests, "a repeat reads no chain"


async def test_one_transfer_refunds_several_calls(harness: RefundHarness) -> None:
    first, second = await harness.charge(), await harness.charge(30)
    answer = await harness.post(first, transaction=str(harness.send(60)), calls=[second, first])
    assert [(one["id"], one["refund"]["amount"]) for one in answer.json()["calls"]] == [
        (first, "40"),
        (second, "20"),
    ]


async def test_a_transfer_from_the_wallet_of_the_provider_counts(harness: RefundHarness) -> None:
    call_id = await harness.charge()
    sent = harness.send(PRICE, "refund", transfer_log(TOKEN, PROVIDER, PAYER, PRICE))
    assert (await harness.post(call_id, transaction=str(sent))).status_code == 200


async def test_native_currency_refunds_a_call_that_it_paid(harness: RefundHarness) -> None:
    call_id = await harness.charge(asset="native")
    wei = PRICE * 10**9
    sent = harness.send(0, "refund", UNRELATED, recipient=PAYER, value=wei)
    answer = await harness.post(call_id, transaction=str(sent))
    assert answer.json()["calls"][0]["refund"]["amount"] == str(wei)


TRANSFERS: dict[str, tuple[dict[str, Any], tuple[int, str, str | None]]] = {
    "above the price": ({"units": PRICE + 1}, (422, REFUSED, "above_price")),
    "to another wallet": (
        {"logs": [transfer_log(TOKEN, PAYEE, STRANGER, PRICE)]},
        (422, REFUSED, "wrong_recipient"),
    ),
    "from another wallet": (
        {"logs": [transfer_log(TOKEN, STRANGER, PAYER, PRICE)]},
        (422, REFUSED, "wrong_sender"),
    ),
    "of another token": (
        {"logs": [transfer_log(OTHER_TOKEN, PAYEE, PAYER, PRICE)]},
        (422, REFUSED, "wrong_token"),
    ),
    "of native currency": (
        {"logs": [UNRELATED], "recipient": PAYER, "value": 10**18},
        (422, REFUSED, "wrong_token"),
    ),
    "failed": ({"succeeded": False}, (422, REFUSED, "transaction_failed")),
    "by an authorisation": (
        {"logs": [authorization_log(TOKEN, PAYEE), transfer_log(TOKEN, PAYEE, PAYER, PRICE)]},
        (422, REFUSED, "authorization_transfer"),
    ),
    "returned at once": (
        {"logs": [transfer_log(TOKEN, PAYEE, PAYER, PRICE), transfer_log(TOKEN, PAYER, PAYEE, PRICE)]},
        (422, REFUSED, "returned"),
    ),
    "older than the call": ({"age_s": 120}, (422, REFUSED, "before_call")),
    "not deep enough": ({"depth": 1}, (409, "payment_pending", "confirmations")),
    "in a block of the future": ({"age_s": -61}, (409, "payment_pending", "block_in_future")),
}


@pytest.mark.parametrize("case", TRANSFERS)
async def test_a_transfer_that_is_no_refund_is_refused(harness: RefundHarness, case: str) -> None:
    given, expected = TRANSFERS[case]
    call_id = await harness.charge()
    fields = {name: value for name, value in given.items() if name not in ("logs", "units")}
    sent = harness.send(given.get("units", PRICE), "refund", *given.get("logs", ()), **fields)
    assert await harness.refused(call_id, transaction=str(sent)) == expected
    assert await harness.ledger.find_payments(sent) == ()


async def test_a_transfer_that_may_be_of_another_provider_is_refused(harness: RefundHarness) -> None:
    """`payTo` is that provider's wallet. A transfer of the own wallet refunds."""
    call_id, sent = await harness.charge(), harness.send()
    await harness.list_api(provider=PAYEE, id=ListingId("api_other"))
    refused = (422, REFUSED, "another_provider")
    assert await harness.refused(call_id, transaction=str(sent)) == refused
    assert await harness.ledger.find_payments(sent) == ()
    own = harness.send(PRICE, "own", transfer_log(TOKEN, PROVIDER, PAYER, PRICE))
    assert (await harness.post(call_id, transaction=str(own))).status_code == 200


async def test_a_transaction_of_another_chain_or_none_is_not_mined(harness: RefundHarness) -> None:
    call_id = await harness.charge()
    pending = (409, "payment_pending", "not_mined")
    assert await harness.refused(call_id, transaction=str(tx_hash("elsewhere"))) == pending


async def test_a_chain_that_is_away_leaves_the_outcome_open(harness: RefundHarness) -> None:
    call_id, sent = await harness.charge(), harness.send()
    harness.chain.disconnect(CHAIN)
    assert (await harness.refused(call_id, transaction=str(sent)))[:2] == (503, "chain_unavailable")
    harness.chain.reconnect(CHAIN)
    assert (await harness.post(call_id, transaction=str(sent))).status_code == 200


async def test_a_transfer_is_too_old_after_a_day(harness: RefundHarness) -> None:
    call_id, sent = await harness.charge(), harness.send()
    harness.now_s += DEFAULT_LIMITS.payment_age_s + 1
    assert (await harness.refused(call_id, transaction=str(sent)))[:2] == (409, "payment_too_old")
    await harness.ledger.admit(sent, origin=operator_origin())
    assert (await harness.post(call_id, transaction=str(sent))).status_code == 200


async def test_a_payment_never_refunds_and_a_refund_never_pays(harness: RefundHarness) -> None:
    first, second = await harness.charge(), await harness.charge()
    sold = new_payment(PRICE, "refund", payer=PAYEE, payee=PAYER)
    await harness.ledger.record_payments([sold], now_ms=NOW_MS)
    assert await harness.refused(first, transaction=str(harness.send())) == (409, USED, None)
    sent = harness.send(PRICE, "another")
    assert (await harness.post(first, transaction=str(sent))).status_code == 200
    assert await harness.refused(second, transaction=str(sent)) == (409, USED, None)


async def test_a_transaction_with_two_transfers_to_a_payer_refunds_once_for_a_provider(
    harness: RefundHarness,
) -> None:
    """Another provider whose transfer is in it refunds by that one."""
    first, second = await harness.charge(), await harness.charge()
    foreign = await harness.charge(provider=STRANGER, payee=STRANGER)
    senders = (PAYEE, PROVIDER, STRANGER)
    sent = harness.send(PRICE, "both", *(transfer_log(TOKEN, sender, PAYER, PRICE) for sender in senders))
    assert (await harness.post(first, transaction=str(sent))).status_code == 200
    assert await harness.refused(second, transaction=str(sent)) == (409, USED, None)
    assert (await harness.post(foreign, transaction=str(sent), wallet=STRANGER)).status_code == 200
    payments = await harness.ledger.find_payments(sent)
    assert sorted((one.payer, one.value_units, one.is_refund) for one in payments) == [
        (PROVIDER, PRICE, True),
        (STRANGER, PRICE, True),
    ]


async def test_a_call_that_is_named_twice_is_refunded_once(harness: RefundHarness) -> None:
    call_id = await harness.charge()
    twice = {"transaction": str(harness.send(2 * PRICE)), "calls": [call_id, call_id]}
    assert await harness.refused(call_id, **twice) == (422, REFUSED, "above_price")
    answer = await harness.post(call_id, transaction=str(harness.send(PRICE, "once")), calls=[call_id])
    assert [one["refund"]["amount"] for one in answer.json()["calls"]] == [str(PRICE)]


async def test_a_call_that_cannot_be_refunded_is_named(harness: RefundHarness) -> None:
    charged, foreign_payer = await harness.charge(), await harness.charge(payer=STRANGER)
    free = claim_on(None)
    held = claim_on(await pay(harness.ledger, PRICE, "held"), PRICE)
    for claim in (free, held):
        assert isinstance(await harness.ledger.claim(claim), Claimed)
    await harness.ledger.close(close_of(free, CallState.CONSUMED))
    sent = str(harness.send())
    requests = harness.chain.request_count
    assert await harness.refused(held.call_id, transaction=sent) == (409, NOT_REFUNDABLE, "not_charged")
    assert await harness.refused(held.call_id, credit=True) == (409, NOT_REFUNDABLE, "not_charged")
    # A free call has no payer without a proof.
    assert await harness.refused(free.call_id, transaction=sent) == (409, NOT_REFUNDABLE, "free_call")
    assert await harness.refused(charged, transaction=sent, calls=[foreign_payer]) == (
        409,
        NOT_REFUNDABLE,
        "different_payers",
    )
    assert harness.chain.request_count == requests, "refused before the chain is read"
    assert (await harness.post(charged, transaction=sent)).status_code == 200
    again = str(harness.send(PRICE, "again"))
    assert await harness.refused(charged, transaction=again) == (409, NOT_REFUNDABLE, "already_refunded")
    assert await harness.refused(charged, credit=True) == (409, NOT_REFUNDABLE, "already_refunded")


async def test_only_the_provider_of_every_call_refunds(harness: RefundHarness) -> None:
    own, foreign = await harness.charge(), await harness.charge(provider=STRANGER)
    sent = str(harness.send())
    assert (await harness.refused(own, transaction=sent, wallet=PAYER))[:2] == (403, "not_provider")
    assert (await harness.refused(own, transaction=sent, wallet=STRANGER))[:2] == (404, "call_not_found")
    assert (await harness.refused(own, transaction=sent, calls=[foreign]))[:2] == (404, "call_not_found")
    assert (await harness.refused(own, transaction=sent, calls=["call_none"]))[:2] == (404, "call_not_found")


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({}, ["/transaction"]),
        ({"transaction": "0x12"}, ["/transaction"]),
        ({"transaction": 7, "calls": "call_1"}, ["/transaction", "/calls"]),
        ({"transaction": "0x" + "1" * 64, "calls": ["a"] * 100}, ["/calls"]),
        ({"transaction": "0x" + "1" * 64, "amount": "1"}, ["/amount"]),
        ({"credit": False}, ["/credit"]),
        ({"credit": True, "transaction": "0x" + "1" * 64}, ["/transaction"]),
    ],
)
async def test_a_bad_body_is_refused_by_its_fields(
    harness: RefundHarness, body: dict[str, Any], pointers: list[str]
) -> None:
    answer = await harness.post(await harness.charge(), **body)
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == pointers


async def test_a_provider_gives_the_price_back_as_credit(harness: RefundHarness) -> None:
    call_id = await harness.charge()
    await harness.list_api()
    answers = [await harness.post(call_id, credit=True) for _ in range(2)]
    (refund,) = [one["refund"] for one in answers[0].json()["calls"]]
    assert (refund["kind"], refund["amount"], refund["isFinal"]) == ("credit", "40", True)
    assert answers[1].json() == answers[0].json()
    (credit,) = await harness.ledger.find_payments(TxHash.parse(refund["transaction"]))
    assert (credit.payer, credit.payee, credit.remaining_units) == (PAYER, PAYEE, PRICE)
    assert harness.chain.request_count == 0


async def test_credit_that_pays_nothing_now_is_refused(harness: RefundHarness) -> None:
    call_id = await harness.charge()
    await harness.list_api(retired_ms=5)
    assert await harness.refused(call_id, credit=True) == (409, NOT_REFUNDABLE, "unspendable")
    await harness.list_api(id=ListingId("api_2"))
    assert (await harness.post(call_id, credit=True)).status_code == 200


async def test_a_call_of_before_a_restore_gets_no_credit(harness: RefundHarness) -> None:
    call_id = await harness.charge(created_ms=NOW_MS)
    await harness.list_api()
    await harness.ledger.mark_restored(origin=operator_origin(NOW_MS + 1_000))
    assert await harness.refused(call_id, credit=True) == (409, "payment_held", "restored")
