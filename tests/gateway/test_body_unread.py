"""An invalid proof is refused before the body is read, unless the check needs the body."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.kit.gateway import HeaderPairs, InProcessGateway, open_gateway
from tests.kit.payer import KeyWallet, Payer
from tests.kit.proxy_requests import GivenBody, sample_request
from tollway.errors import Code
from tollway.gateway.messages import ProblemResponse
from tollway.ids import TxHash
from tollway.ledger.records import Dialect
from tollway.money import Price

KEY = ("Idempotency-Key", "k")
THIRD_PARTY = KeyWallet.named("stranger")
TARGET = "/quote?x=1"
LENGTH = 10_000_000
"""Of a body that never comes: a gateway that waits for it answers that it came too slowly."""


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway(body_rate_grace_s=0.2) as small:
        yield small


async def ask_without_body(
    gateway: InProcessGateway, headers: HeaderPairs, *, length: int = LENGTH
) -> tuple[int, str]:
    """Status and code, for a body that is promised and never sent."""
    exchange = gateway.open("POST", TARGET, headers, is_open=True, length=length)
    answer = await gateway.run(exchange)
    return answer.status, str(answer.problem["code"])


def forge(shown: HeaderPairs, payer: Payer, asked: Any, dialect: Dialect) -> HeaderPairs:
    """The same authorisation with a signature that is not its payer's."""

    def edit(content: dict[str, Any]) -> None:
        content["payload"]["signature"] = "0x" + "11" * 65

    return payer.show(asked, dialect, edit=edit, nonce=NONCE)


NONCE = b"\x42" * 32


@pytest.mark.parametrize("dialect", [Dialect.X402_V2, Dialect.X402_V1])
@pytest.mark.parametrize("key", [[], [("Idempotency-Key", "k")]])
async def test_a_known_authorisation_without_its_proof(
    gateway: InProcessGateway, payer: Payer, dialect: Dialect, key: HeaderPairs
) -> None:
    await gateway.publish()
    asked = await payer.quote("POST")
    shown = payer.show(asked, dialect, nonce=NONCE)
    assert (await gateway.ask("POST", TARGET, [*shown, *key], [b"paid"])).status == 200
    forged = forge(shown, payer, asked, dialect)
    assert await ask_without_body(gateway, [*forged, *key]) == (409, "payment_already_used")
    assert await ask_without_body(gateway, [*shown, ("Idempotency-Key", "other")]) == (
        (409, "payment_already_used") if key else (400, "invalid_request")
    )
    assert gateway.served == 1


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize(
    ("wrong", "more"),
    [
        ({"base_units": 9_999}, []),
        ({"payee": THIRD_PARTY.address}, []),
        ({"payee": THIRD_PARTY.address}, [KEY]),
    ],
)
async def test_an_authorisation_that_meets_none_of_our_requirements(
    gateway: InProcessGateway, payer: Payer, dialect: Dialect, wrong: dict[str, Any], more: HeaderPairs
) -> None:
    await gateway.publish()
    shown = payer.show(await payer.quote("POST"), dialect, **wrong)
    status, _ = await ask_without_body(gateway, [*shown, *more], length=1_000)
    assert status == 402
    assert gateway.served == 0


Proof = Callable[[InProcessGateway, TxHash], HeaderPairs]
PROOFS: dict[str, Proof] = {
    "plain": lambda gateway, tx: gateway.plain_proof(tx, wallet=THIRD_PARTY),
    "plain, with a key": lambda gateway, tx: [*gateway.plain_proof(tx, wallet=THIRD_PARTY), KEY],
    "bound": lambda gateway, tx: gateway.bound_proof(
        tx, method="POST", target=TARGET, body=b"x", promises=True, wallet=THIRD_PARTY
    ),
}


@pytest.mark.parametrize("proof", PROOFS.values(), ids=PROOFS)
@pytest.mark.parametrize("length", [1_000, 1_000_000])
async def test_a_transaction_of_another_wallet(gateway: InProcessGateway, proof: Proof, length: int) -> None:
    await gateway.publish()
    payment = await gateway.pay()
    answer = await ask_without_body(gateway, proof(gateway, payment.tx_hash), length=length)
    assert answer == (409, "payment_pending")  # recorded for another wallet, and unknown to the nodes
    assert gateway.served == 0
    assert await gateway.remaining_units(payment) == 10_000


async def test_a_keyed_proof_that_opens_no_record_of_a_closed_listing(gateway: InProcessGateway) -> None:
    await gateway.publish(status="paused")
    forged = [*await gateway.plain_payment(wallet=THIRD_PARTY), KEY]
    body = GivenBody(b"x" * 1_000)
    headers = {name.replace("-", "_").lower(): value for name, value in forged}
    outcome = await gateway.pipeline.handle(sample_request("POST", "/quote", "x=1", body=body, **headers))
    assert isinstance(outcome, ProblemResponse)
    assert (outcome.problem.code, body.bytes_read) == (Code.API_PAUSED, 0)


async def test_a_free_call_beside_a_known_authorisation_is_served_with_its_body(
    gateway: InProcessGateway, payer: Payer
) -> None:
    listing = await gateway.publish()
    asked = await payer.quote("POST")
    shown = payer.show(asked, nonce=NONCE)
    assert (await gateway.ask("POST", TARGET, shown, [b"paid"])).status == 200
    await gateway.revise(listing, price=Price.parse("0"))
    forged = forge(shown, payer, asked, Dialect.X402_V2)
    for headers in (forged, [*forged, ("Idempotency-Key", "other")]):
        answer = await gateway.ask("POST", TARGET, headers, [b"free"])
        assert (answer.status, answer.headers["tollway-payment-state"]) == (200, "none")
        assert bytes(gateway.upstream.arrived[-1].body) == b"free"
