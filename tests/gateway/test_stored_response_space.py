"""Keyed calls of wallets that pay their own APIs delete no stored response of another caller, whatever stores it."""

from collections.abc import AsyncIterator

import pytest

from tests.kit.gateway import InProcessGateway, open_gateway
from tests.kit.payer import KeyWallet, Payer, is_replayed
from tests.kit.upstream import plain
from tollway.ids import Address, ListingId
from tollway.ledger.records import Dialect
from tollway.money import Price

KIB = 1024
MILLIONTH = Price.parse("0.000001")
SPACE = {
    "response_bytes_max": 4 * KIB,
    "responses_per_payer_bytes_max": 16 * KIB,
    "answers_per_provider_bytes_max": 32 * KIB,
    "responses_bytes_max": 64 * KIB,
}


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway(settle_wait_s=0.05, **SPACE) as small:
        await small.publish()
        yield small


def owner_of(api: int) -> Address:
    return Address(bytes([api + 1]) * 20)


async def attack(gateway: InProcessGateway, *, apis: int, wallets: int, calls: int) -> None:
    """Keyed calls for a millionth, with the largest responses that are stored."""
    gateway.upstream.answer = plain(b"x" * (3 * KIB))
    for number in range(apis):
        await gateway.publish(id=ListingId(f"api_{number}"), provider=owner_of(number), price=MILLIONTH)
    for number in range(calls):
        wallet = KeyWallet.named(f"attacker {number % wallets}")
        payment = await gateway.pay(1, wallet=wallet)
        key = [("Idempotency-Key", f"key {number}")]
        shown = [*gateway.plain_proof(payment.tx_hash, wallet=wallet), *key]
        answer = await gateway.ask("GET", f"/a?n={number}", shown, listing=f"api_{number % apis}")
        assert answer.status == 200, answer.body


@pytest.mark.parametrize(("apis", "wallets"), [(1, 18), (20, 20)])
async def test_a_keyed_response_is_replayed_after_the_keyed_calls_of_others(
    gateway: InProcessGateway, apis: int, wallets: int
) -> None:
    shown = [*await gateway.plain_payment(), ("Idempotency-Key", "one")]
    assert (await gateway.ask("POST", "/orders", shown, [b"order"])).status == 200
    await attack(gateway, apis=apis, wallets=wallets, calls=40)
    of_first = [one.size for one in gateway.ledger.rows.answers.values() if one.provider == owner_of(0)]
    assert 0 < sum(of_first) <= SPACE["answers_per_provider_bytes_max"]
    assert is_replayed(await gateway.ask("POST", "/orders", shown, [b"order"]))


@pytest.mark.parametrize("dialect", [Dialect.X402_V2, Dialect.MPP])
async def test_the_response_of_an_undecided_settlement_is_replayed_after_the_keyed_calls_of_others(
    gateway: InProcessGateway, payer: Payer, dialect: Dialect
) -> None:
    gateway.stop_mining()
    shown = payer.show(await payer.quote(), dialect)
    assert (await gateway.ask("GET", "/quote?x=1", shown)).status == 503
    await attack(gateway, apis=1, wallets=18, calls=40)
    await gateway.recover_chain()
    assert is_replayed(await gateway.ask("GET", "/quote?x=1", shown))
