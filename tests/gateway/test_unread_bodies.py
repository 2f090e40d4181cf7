"""A payment whose proof does not hold is refused before the request's body is read, wherever the body does not decide it."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.kit.accounts import Buyer
from tests.kit.gateway import HeaderPairs, SmallGateway, open_gateway
from tests.kit.payer import SmallPayer, served
from tollway.identifiers import TxHash
from tollway.ledger.authorization import Dialect
from tollway.money import Price

KEY = ("Idempotency-Key", "k")
STRANGER = Buyer.named("stranger")
TARGET = "/quote?x=1"
LENGTH = 10_000_000
"""Of a body that never comes: a gateway that waits for it answers that it came too slowly."""


@pytest.fixture
async def gate() -> AsyncIterator[SmallGateway]:
    async with open_gateway(body_rate_grace_s=0.2) as small:
        yield small


@pytest.fixture
def payer(gate: SmallGateway) -> SmallPayer:
    payer = SmallPayer(buyer=gate.buyer, gate=gate)
    payer.fund(100_000)
    return payer


async def ask_without_body(
    gate: SmallGateway, headers: HeaderPairs, *, length: int = LENGTH
) -> tuple[int, str]:
    """Status and code, for a body that is promised and never sent."""
    exchange = gate.open("POST", TARGET, headers, is_open=True, length=length)
    answer = await gate.run(exchange)
    return answer.status, str(answer.problem["code"])


def forge(shown: HeaderPairs, payer: SmallPayer, asked: Any, dialect: Dialect) -> HeaderPairs:
    """The same authorisation with a signature that is not its payer's."""

    def edit(content: dict[str, Any]) -> None:
        content["payload"]["signature"] = "0x" + "11" * 65

    return payer.show(asked, dialect, edit=edit, nonce=NONCE)


NONCE = b"\x42" * 32


@pytest.mark.parametrize("dialect", [Dialect.X402_V2, Dialect.X402_V1])
@pytest.mark.parametrize("key", [[], [("Idempotency-Key", "k")]])
async def test_a_known_authorisation_without_its_proof(
    gate: SmallGateway, payer: SmallPayer, dialect: Dialect, key: HeaderPairs
) -> None:
    await gate.publish()
    asked = await payer.quote("POST")
    shown = payer.show(asked, dialect, nonce=NONCE)
    assert (await gate.ask("POST", TARGET, [*shown, *key], [b"paid"])).status == 200
    forged = forge(shown, payer, asked, dialect)
    assert await ask_without_body(gate, [*forged, *key]) == (409, "payment_already_used")
    assert await ask_without_body(gate, [*shown, ("Idempotency-Key", "other")]) == (
        (409, "payment_already_used") if key else (400, "invalid_request")
    )
    assert served(gate) == 1


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize(
    ("wrong", "more"),
    [({"base_units": 9_999}, []), ({"payee": STRANGER.address}, []), ({"payee": STRANGER.address}, [KEY])],
)
async def test_an_authorisation_that_meets_none_of_our_requirements(
    gate: SmallGateway, payer: SmallPayer, dialect: Dialect, wrong: dict[str, Any], more: HeaderPairs
) -> None:
    await gate.publish()
    shown = payer.show(await payer.quote("POST"), dialect, **wrong)
    status, _ = await ask_without_body(gate, [*shown, *more], length=1_000)
    assert status == 402
    assert served(gate) == 0


Proof = Callable[[SmallGateway, TxHash], HeaderPairs]
PROOFS: dict[str, Proof] = {
    "plain": lambda gate, tx: gate.plain_proof(tx, buyer=STRANGER),
    "plain, with a key": lambda gate, tx: [*gate.plain_proof(tx, buyer=STRANGER), KEY],
    "bound": lambda gate, tx: gate.bound_proof(
        tx, method="POST", target=TARGET, body=b"x", promises=True, buyer=STRANGER
    ),
}


@pytest.mark.parametrize("proof", PROOFS.values(), ids=PROOFS)
@pytest.mark.parametrize("length", [1_000, 1_000_000])
async def test_a_transaction_of_another_wallet(gate: SmallGateway, proof: Proof, length: int) -> None:
    await gate.publish()
    payment = await gate.pay()
    answer = await ask_without_body(gate, proof(gate, payment.tx_hash), length=length)
    assert answer == (409, "payment_pending")  # the books know it of another wallet, and no node knows it
    assert served(gate) == 0
    assert await gate.rest_units(payment) == 10_000


async def test_a_keyed_proof_that_opens_no_record_of_a_closed_listing(gate: SmallGateway) -> None:
    await gate.publish(status="paused")
    payment = await gate.pay()
    forged = [*gate.plain_proof(payment.tx_hash, buyer=STRANGER), KEY]
    assert await ask_without_body(gate, forged, length=1_000) == (503, "api_paused")


async def test_a_free_call_beside_a_known_authorisation_is_served_with_its_body(
    gate: SmallGateway, payer: SmallPayer
) -> None:
    listing = await gate.publish()
    asked = await payer.quote("POST")
    shown = payer.show(asked, nonce=NONCE)
    assert (await gate.ask("POST", TARGET, shown, [b"paid"])).status == 200
    await gate.revise(listing, price=Price.parse("0"))
    forged = forge(shown, payer, asked, Dialect.X402_V2)
    for headers in (forged, [*forged, ("Idempotency-Key", "other")]):
        answer = await gate.ask("POST", TARGET, headers, [b"free"])
        assert (answer.status, answer.headers["tollway-payment-state"]) == (200, "none")
        assert bytes(gate.upstream.arrived[-1].body) == b"free"
