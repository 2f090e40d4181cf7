"""A call that is paid by a transaction: whose idempotency keys its signature opens, and what an open call is told."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.kit.accounts import Buyer
from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import NOW_MS, HeaderPairs, SmallGateway, open_gateway
from tests.kit.payer import has_terms, served
from tests.kit.upstream import hang_up, plain
from tests.model.ledger import MemoryBook
from tollway.chain.reader import ContractAnswer
from tollway.identifiers import Address
from tollway.ledger.call import Payment
from tollway.money import Price

PRICE = 10_000
KEY = ("Idempotency-Key", "one")
ELSEWHERE = Address(b"\x77" * 20)
STRANGER = Buyer.named("stranger")
Pairs = Sequence[tuple[str, str]]


@pytest.fixture
async def gate() -> AsyncIterator[SmallGateway]:
    async with open_gateway(failed_calls_wait_s=0.05) as small:
        await small.publish()
        yield small


async def ask(gate: SmallGateway, proof: Pairs, *more: tuple[str, str], body: bytes = b"{}") -> Exchange:
    return await gate.ask("POST", "/orders", [*proof, KEY, *more], [body])


def bound(gate: SmallGateway, payment: Payment, **other: Any) -> HeaderPairs:
    return gate.bound_proof(payment.tx_hash, method="POST", target="/orders", body=b"{}", **other)


async def leave_open(gate: SmallGateway, proof: Pairs) -> str:
    """The id of a call under the key that was sent and not answered; the upstream answers from then on."""
    gate.upstream.answer = hang_up
    lost = await ask(gate, proof)
    assert lost.status == 504
    gate.upstream.answer = plain(b"done")
    return lost.headers["tollway-call-id"]


def told(answer: Exchange) -> tuple[int, str]:
    assert not has_terms(answer)
    return answer.status, answer.problem.get("reason", answer.problem["code"])


def is_replayed(answer: Exchange) -> bool:
    return answer.status == 200 and answer.headers.get("idempotency-replayed") == "true"


# ---------------------------------------------------------------------- whose keys a signature opens


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_plain_signature_opens_nothing_without_a_payment_that_it_could_spend_here(
    gate: SmallGateway, is_answered: bool
) -> None:
    """It is the same for ever, and may have been read in a log."""
    gate.upstream.answer = plain(b"secret") if is_answered else hang_up
    await ask(gate, gate.plain_proof((await gate.pay(PRICE)).tx_hash))
    gate.upstream.answer = plain(b"secret")
    elsewhere = gate.sample_payment(payee=ELSEWHERE)
    await gate.book.record_payments([elsewhere], now_ms=gate.now_ms)
    of_others = await gate.pay(PRICE, buyer=STRANGER)
    for tx_hash in (gate.sample_payment().tx_hash, of_others.tx_hash, elsewhere.tx_hash):
        answer = await ask(gate, gate.plain_proof(tx_hash))
        assert answer.status in (402, 409)
        assert answer.problem.get("reason") != "idempotency_key_used"
        assert (b"secret" not in answer.body, served(gate)) == (True, 1)


async def test_a_plain_signature_opens_no_keys_of_whoever_else_has_paid(gate: SmallGateway) -> None:
    """Anybody can sign a hash that stands on the chain."""
    gate.upstream.answer = plain(b"secret")
    payment = await gate.pay(PRICE)
    assert (await ask(gate, gate.plain_proof(payment.tx_hash))).status == 200
    answer = await ask(gate, gate.plain_proof(payment.tx_hash, buyer=STRANGER))
    assert not is_replayed(answer)
    assert b"secret" not in answer.body


async def test_a_signature_in_a_form_that_does_not_count_opens_nothing_of_a_closed_listing(
    gate: SmallGateway,
) -> None:
    payment = await gate.pay(5 * PRICE)
    assert (await ask(gate, gate.plain_proof(payment.tx_hash))).status == 200
    await gate.revise(gate.sample("api_quotes"), signature="bound", status="paused")
    assert told(await ask(gate, gate.plain_proof(payment.tx_hash))) == (503, "api_paused")
    assert told(await ask(gate, bound(gate, payment, valid_for_s=-1))) == (503, "api_paused")
    assert is_replayed(await ask(gate, bound(gate, payment)))


@pytest.mark.parametrize("body", [b"{}", b"[]"])
@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_plain_signature_opens_nothing_once_a_bound_one_has_ended_it(
    gate: SmallGateway, is_answered: bool, body: bytes
) -> None:
    payment = await gate.pay(5 * PRICE)
    gate.upstream.answer = plain() if is_answered else hang_up
    await ask(gate, bound(gate, payment))
    answer = await ask(gate, gate.plain_proof(payment.tx_hash), body=body)
    assert told(answer) == (400, "bound_signature_required")
    assert served(gate) == 1


async def test_what_another_gateway_has_ended_opens_nothing_here(gate: SmallGateway) -> None:
    """This one knows the payment from before."""
    payment = await gate.pay(5 * PRICE)
    other = SmallGateway(gate.upstream, limits=gate.limits, before=gate)
    two = ("Idempotency-Key", "two")
    plainly = gate.plain_proof(payment.tx_hash)
    assert (await gate.ask("POST", "/orders", [*plainly, two], [b"{}"])).status == 200
    assert (await ask(other, bound(gate, payment))).status == 200
    assert told(await ask(gate, plainly)) == (400, "bound_signature_required")
    await other.dialer.close()


class BlindBook(MemoryBook):
    """Another gateway claims between this one's look for the key and its own claim."""

    async def find_keyed(self, payer: Any, idempotency_key: str, *, since_ms: int) -> None:
        return None


async def test_what_has_ended_opens_nothing_either_where_the_claim_finds_the_key(gate: SmallGateway) -> None:
    before = SmallGateway(gate.upstream, limits=gate.limits)
    before.book = BlindBook(now_ms=lambda: NOW_MS, limits=gate.limits)
    blind = SmallGateway(gate.upstream, limits=gate.limits, before=before)
    await blind.publish()
    payment = await blind.pay(5 * PRICE)
    assert (await ask(blind, bound(blind, payment))).status == 200
    assert told(await ask(blind, blind.plain_proof(payment.tx_hash))) == (400, "bound_signature_required")
    assert is_replayed(await ask(blind, bound(blind, payment)))
    await blind.dialer.close()


async def test_a_plain_signature_of_a_new_payment_opens_its_wallets_keys(gate: SmallGateway) -> None:
    assert (await ask(gate, gate.plain_proof((await gate.pay(PRICE)).tx_hash))).status == 200
    new = await gate.pay(PRICE)
    assert is_replayed(await ask(gate, gate.plain_proof(new.tx_hash)))
    assert await gate.rest_units(new) == PRICE


@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_contracts_keys_are_looked_for_before_its_money_is(
    gate: SmallGateway, monkeypatch: pytest.MonkeyPatch, is_plain: bool
) -> None:
    """That it has signed is known only from the chain."""

    async def sign(*_: Any, **__: Any) -> ContractAnswer:
        return ContractAnswer(reverted=False, payload=bytes.fromhex("1626ba7e") + bytes(28))

    monkeypatch.setattr(gate.chains, "call_contract", sign)
    payer = Address(b"\x33" * 20)
    new = gate.sample_payment(payer=payer, value_units=5 * PRICE)
    (payment,) = await gate.book.record_payments([new], now_ms=gate.now_ms)
    proof = gate.plain_proof(payment.tx_hash) if is_plain else bound(gate, payment)
    assert (await ask(gate, proof)).status == 200
    again = gate.plain_proof(payment.tx_hash) if is_plain else bound(gate, payment)
    assert is_replayed(await ask(gate, again, ("Tollway-Max-Price", "0.001")))
    assert await gate.rest_units(payment) == 4 * PRICE


async def test_a_bound_signature_opens_its_wallets_keys_before_its_payment_is_known(
    gate: SmallGateway,
) -> None:
    """It is of this very request."""
    assert (await ask(gate, gate.plain_proof((await gate.pay(PRICE)).tx_hash))).status == 200
    unseen = gate.sample_payment().tx_hash
    proof = gate.bound_proof(unseen, method="POST", target="/orders", body=b"{}")
    assert is_replayed(await ask(gate, proof))
    other = gate.bound_proof(unseen, method="POST", target="/others", body=b"{}")
    assert not is_replayed(await ask(gate, other))


# ---------------------------------------------------------------------- a call that is open


@pytest.mark.parametrize("currency", ["USDC", "EURC"])
async def test_it_runs_again_at_the_price_that_it_had(gate: SmallGateway, currency: str) -> None:
    payment = await gate.pay(PRICE)
    most = ("Tollway-Max-Price", "0.01")
    call_id = await leave_open(gate, gate.plain_proof(payment.tx_hash))
    await gate.revise(gate.sample("api_quotes"), price=Price.parse("7"), currency=currency)
    gate.now_ms += 3_600_000
    again = await ask(gate, gate.plain_proof(payment.tx_hash), most)
    assert (again.status, again.body, again.headers["tollway-call-id"]) == (200, b"done", call_id)
    assert (again.headers["tollway-price"], await gate.rest_units(payment)) == ("0.01 USDC", 0)


async def refuse_price(gate: SmallGateway) -> None:
    pass


async def refuse_wallet(gate: SmallGateway) -> None:
    gate.blocked.add(gate.buyer.address)


@pytest.mark.parametrize(
    ("refuse", "code"), [(refuse_price, "price_above_max"), (refuse_wallet, "wallet_blocked")]
)
async def test_no_refusal_says_that_its_price_is_released(gate: SmallGateway, refuse: Any, code: str) -> None:
    payment = await gate.pay(PRICE)
    call_id = await leave_open(gate, gate.plain_proof(payment.tx_hash))
    await refuse(gate)
    answer = await ask(gate, gate.plain_proof(payment.tx_hash), ("Tollway-Max-Price", "0.001"))
    assert (answer.problem["code"], served(gate)) == (code, 1)
    assert (answer.problem["paymentState"], answer.problem["callId"]) == ("held", call_id)


@pytest.mark.parametrize("payer", [STRANGER, None])
async def test_another_payment_does_not_run_it_and_stays_untouched(
    gate: SmallGateway, payer: Buyer | None
) -> None:
    await leave_open(gate, gate.plain_proof((await gate.pay(PRICE)).tx_hash))
    other = await gate.pay(PRICE, buyer=payer)
    answer = await ask(gate, bound(gate, other, buyer=payer))
    if payer is None:
        assert told(answer) == (409, "idempotency_key_used")
        assert (await gate.rest_units(other), served(gate)) == (PRICE, 1)
    else:  # whose key it is not
        assert (answer.status, await gate.rest_units(other)) == (200, 0)
