"""Calls that a transaction pays: the idempotency keys that its signature opens, and the responses while a call is open."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import NOW_MS, HeaderPairs, InProcessGateway, open_gateway
from tests.kit.payer import KeyWallet, has_terms, is_replayed
from tests.kit.storage_faults import BlindLedger
from tests.kit.upstream import hang_up, plain
from tollway.chain.port import ContractResult
from tollway.ids import Address
from tollway.ledger.records import Payment
from tollway.money import Price

PRICE = 10_000
KEY = ("Idempotency-Key", "one")
ELSEWHERE = Address(b"\x77" * 20)
THIRD_PARTY = KeyWallet.named("stranger")
Pairs = Sequence[tuple[str, str]]


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway() as small:
        await small.publish()
        yield small


async def ask(
    gateway: InProcessGateway, proof: Pairs, *more: tuple[str, str], body: bytes = b"{}"
) -> Exchange:
    return await gateway.ask("POST", "/orders", [*proof, KEY, *more], [body])


def bound(gateway: InProcessGateway, payment: Payment, **other: Any) -> HeaderPairs:
    return gateway.bound_proof(payment.tx_hash, method="POST", target="/orders", body=b"{}", **other)


async def leave_open(gateway: InProcessGateway, proof: Pairs) -> str:
    """The id of a call under the key that was sent and not answered; the upstream answers from then on."""
    gateway.upstream.answer = hang_up
    lost = await ask(gateway, proof)
    assert lost.status == 504
    gateway.upstream.answer = plain(b"done")
    return lost.headers["tollway-call-id"]


def told(answer: Exchange) -> tuple[int, str]:
    assert not has_terms(answer)
    return answer.status, answer.problem.get("reason", answer.problem["code"])


# ---------------------------------------------------------------------- whose keys a signature opens


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_plain_signature_opens_nothing_without_a_payment_that_it_could_spend_here(
    gateway: InProcessGateway, is_answered: bool
) -> None:
    """It is the same for ever, and may have been read in a log."""
    gateway.upstream.answer = plain(b"secret") if is_answered else hang_up
    await ask(gateway, gateway.plain_proof((await gateway.pay(PRICE)).tx_hash))
    gateway.upstream.answer = plain(b"secret")
    elsewhere = gateway.sample_payment(payee=ELSEWHERE)
    await gateway.ledger.record_payments([elsewhere], now_ms=gateway.now_ms)
    of_others = await gateway.pay(PRICE, wallet=THIRD_PARTY)
    for tx_hash in (gateway.sample_payment().tx_hash, of_others.tx_hash, elsewhere.tx_hash):
        answer = await ask(gateway, gateway.plain_proof(tx_hash))
        assert answer.status in (402, 409)
        assert answer.problem.get("reason") != "idempotency_key_used"
        assert (b"secret" not in answer.body, gateway.served) == (True, 1)


async def test_a_plain_signature_opens_no_keys_of_other_payers(gateway: InProcessGateway) -> None:
    """Any wallet can sign a hash that is on the chain."""
    gateway.upstream.answer = plain(b"secret")
    payment = await gateway.pay(PRICE)
    assert (await ask(gateway, gateway.plain_proof(payment.tx_hash))).status == 200
    answer = await ask(gateway, gateway.plain_proof(payment.tx_hash, wallet=THIRD_PARTY))
    assert not is_replayed(answer)
    assert b"secret" not in answer.body


async def test_a_signature_in_a_form_that_does_not_count_opens_nothing_of_a_closed_listing(
    gateway: InProcessGateway,
) -> None:
    payment = await gateway.pay(5 * PRICE)
    assert (await ask(gateway, gateway.plain_proof(payment.tx_hash))).status == 200
    await gateway.revise(gateway.sample("api_quotes"), signature="bound", status="paused")
    assert told(await ask(gateway, gateway.plain_proof(payment.tx_hash))) == (503, "api_paused")
    assert told(await ask(gateway, bound(gateway, payment, valid_for_s=-1))) == (503, "api_paused")
    assert is_replayed(await ask(gateway, bound(gateway, payment)))


@pytest.mark.parametrize("body", [b"{}", b"[]"])
@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_plain_signature_opens_nothing_once_a_bound_one_has_ended_it(
    gateway: InProcessGateway, is_answered: bool, body: bytes
) -> None:
    payment = await gateway.pay(5 * PRICE)
    gateway.upstream.answer = plain() if is_answered else hang_up
    await ask(gateway, bound(gateway, payment))
    answer = await ask(gateway, gateway.plain_proof(payment.tx_hash), body=body)
    assert told(answer) == (400, "bound_signature_required")
    assert gateway.served == 1


async def test_what_another_gateway_has_ended_opens_nothing_here(gateway: InProcessGateway) -> None:
    """The payment is in memory already."""
    payment = await gateway.pay(5 * PRICE)
    other = InProcessGateway(gateway.upstream, limits=gateway.limits, before=gateway)
    two = ("Idempotency-Key", "two")
    plainly = gateway.plain_proof(payment.tx_hash)
    assert (await gateway.ask("POST", "/orders", [*plainly, two], [b"{}"])).status == 200
    assert (await ask(other, bound(gateway, payment))).status == 200
    assert told(await ask(gateway, plainly)) == (400, "bound_signature_required")
    await other.http_client.close()


async def test_what_has_ended_opens_nothing_either_where_the_claim_finds_the_key(
    gateway: InProcessGateway,
) -> None:
    before = InProcessGateway(gateway.upstream, limits=gateway.limits)
    before.ledger = BlindLedger(now_ms=lambda: NOW_MS, limits=gateway.limits)
    blind = InProcessGateway(gateway.upstream, limits=gateway.limits, before=before)
    await blind.publish()
    payment = await blind.pay(5 * PRICE)
    assert (await ask(blind, bound(blind, payment))).status == 200
    assert told(await ask(blind, blind.plain_proof(payment.tx_hash))) == (400, "bound_signature_required")
    assert is_replayed(await ask(blind, bound(blind, payment)))
    await blind.http_client.close()


async def test_a_plain_signature_of_a_new_payment_opens_its_wallets_keys(gateway: InProcessGateway) -> None:
    assert (await ask(gateway, gateway.plain_proof((await gateway.pay(PRICE)).tx_hash))).status == 200
    new = await gateway.pay(PRICE)
    assert is_replayed(await ask(gateway, gateway.plain_proof(new.tx_hash)))
    assert await gateway.remaining_units(new) == PRICE


@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_contracts_keys_are_looked_for_before_its_money_is(
    gateway: InProcessGateway, monkeypatch: pytest.MonkeyPatch, is_plain: bool
) -> None:
    """That it has signed is known only from the chain."""

    async def sign(*_: Any, **__: Any) -> ContractResult:
        return ContractResult(reverted=False, payload=bytes.fromhex("1626ba7e") + bytes(28))

    monkeypatch.setattr(gateway.chain, "call_contract", sign)
    payer = Address(b"\x33" * 20)
    new = gateway.sample_payment(payer=payer, value_units=5 * PRICE)
    (payment,) = await gateway.ledger.record_payments([new], now_ms=gateway.now_ms)
    proof = gateway.plain_proof(payment.tx_hash) if is_plain else bound(gateway, payment)
    assert (await ask(gateway, proof)).status == 200
    again = gateway.plain_proof(payment.tx_hash) if is_plain else bound(gateway, payment)
    assert is_replayed(await ask(gateway, again, ("Tollway-Max-Price", "0.001")))
    assert await gateway.remaining_units(payment) == 4 * PRICE


async def test_a_bound_signature_opens_its_wallets_keys_before_its_payment_is_known(
    gateway: InProcessGateway,
) -> None:
    """It is of this very request."""
    assert (await ask(gateway, gateway.plain_proof((await gateway.pay(PRICE)).tx_hash))).status == 200
    unseen = gateway.sample_payment().tx_hash
    proof = gateway.bound_proof(unseen, method="POST", target="/orders", body=b"{}")
    assert is_replayed(await ask(gateway, proof))
    other = gateway.bound_proof(unseen, method="POST", target="/others", body=b"{}")
    assert not is_replayed(await ask(gateway, other))


# ---------------------------------------------------------------------- a call that is open


@pytest.mark.parametrize("currency", ["USDC", "EURC"])
async def test_it_runs_again_at_the_price_that_it_had(gateway: InProcessGateway, currency: str) -> None:
    payment = await gateway.pay(PRICE)
    most = ("Tollway-Max-Price", "0.01")
    call_id = await leave_open(gateway, gateway.plain_proof(payment.tx_hash))
    await gateway.revise(gateway.sample("api_quotes"), price=Price.parse("7"), currency=currency)
    gateway.now_ms += 3_600_000
    again = await ask(gateway, gateway.plain_proof(payment.tx_hash), most)
    assert (again.status, again.body, again.headers["tollway-call-id"]) == (200, b"done", call_id)
    assert (again.headers["tollway-price"], await gateway.remaining_units(payment)) == ("0.01 USDC", 0)


async def refuse_price(gateway: InProcessGateway) -> None:
    pass


async def refuse_wallet(gateway: InProcessGateway) -> None:
    gateway.blocked.add(gateway.wallet.address)


@pytest.mark.parametrize(
    ("refuse", "code"), [(refuse_price, "price_above_max"), (refuse_wallet, "wallet_blocked")]
)
async def test_no_refusal_of_a_held_call_has_the_state_released(
    gateway: InProcessGateway, refuse: Any, code: str
) -> None:
    payment = await gateway.pay(PRICE)
    call_id = await leave_open(gateway, gateway.plain_proof(payment.tx_hash))
    await refuse(gateway)
    answer = await ask(gateway, gateway.plain_proof(payment.tx_hash), ("Tollway-Max-Price", "0.001"))
    assert (answer.problem["code"], gateway.served) == (code, 1)
    assert (answer.problem["paymentState"], answer.problem["callId"]) == ("held", call_id)


@pytest.mark.parametrize("payer", [THIRD_PARTY, None])
async def test_another_payment_does_not_run_it_and_stays_untouched(
    gateway: InProcessGateway, payer: KeyWallet | None
) -> None:
    await leave_open(gateway, gateway.plain_proof((await gateway.pay(PRICE)).tx_hash))
    other = await gateway.pay(PRICE, wallet=payer)
    answer = await ask(gateway, bound(gateway, other, wallet=payer))
    if payer is None:
        assert told(answer) == (409, "idempotency_key_used")
        assert (await gateway.remaining_units(other), gateway.served) == (PRICE, 1)
    else:  # whose key it is not
        assert (answer.status, await gateway.remaining_units(other)) == (200, 0)
