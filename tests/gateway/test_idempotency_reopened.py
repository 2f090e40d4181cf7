"""Repeats that race with another request: a request with a key runs no call that the key does not name, and a settled call is not
settled again."""

from typing import Any

import pytest

from tests.kit.gateway import CHAIN, PAY_TO, USDC, open_gateway
from tests.kit.payer import Payer, has_terms
from tests.kit.upstream import hang_up, plain
from tollway.ledger.records import CallState

PRICE = 10_000
TARGET = "/quote?x=1"
NONCE = b"\x42" * 32


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_repeat_whose_money_recovery_finds_while_it_dials_is_not_settled_again(
    is_answered: bool,
) -> None:
    """Recovery moves `unknown` to `consumed` under the same epoch. A repeat that has read `unknown` reopens the consumed call."""
    async with open_gateway(unknown_hold_s=10) as gateway:
        await gateway.publish()
        payer = Payer.funded(gateway, 100_000)
        gateway.upstream.answer = hang_up
        ends_s = gateway.now_ms // 1000 + 3_600
        shown = payer.show(await payer.quote(), nonce=NONCE, valid_before=ends_s)
        assert (await gateway.ask("GET", TARGET, shown)).status == 504
        gateway.chain.settle_by_third_party(
            CHAIN, USDC.token, payer=payer.address, payee=PAY_TO, base_units=PRICE, nonce=NONCE
        )
        await gateway.pass_time(11_000)
        reopen = gateway.ledger.reopen

        async def sweep_and_reopen(*given: Any, **named: Any) -> Any:
            await gateway.settlement.sweep()
            return await reopen(*given, **named)

        gateway.ledger.reopen = sweep_and_reopen  # type: ignore[method-assign]  # recovery at this very moment
        if is_answered:
            gateway.upstream.answer = plain()
        again = await gateway.ask("GET", TARGET, shown)
        gateway.ledger.reopen = reopen  # type: ignore[method-assign]  # as above
        (call,) = await gateway.history()
        assert call.state is CallState.CONSUMED
        assert (again.status, again.headers["tollway-payment-state"]) == (
            200 if is_answered else 504,
            "charged",
        )


async def test_a_key_never_runs_a_call_that_it_does_not_name() -> None:
    """Else a repeat with the key would find no call of that key, and get a 402 or a second charge."""
    async with open_gateway() as gateway:
        await gateway.publish()
        proof = await gateway.plain_payment(15_000)
        gateway.upstream.answer = hang_up
        assert (await gateway.ask("GET", TARGET, proof)).status == 504
        gateway.upstream.answer = plain(b"once")
        keyed = [*proof, ("Idempotency-Key", "one")]
        first = await gateway.ask("GET", TARGET, keyed)
        again = await gateway.ask("GET", TARGET, keyed)
        if first.status == 200:
            assert (again.status, again.body) == (200, b"once")
            assert again.headers["idempotency-replayed"] == "true"
        else:
            assert (first.status, first.problem["paymentState"]) == (409, "held")
            assert again.status == 409
        assert not has_terms(again)


async def test_one_key_is_charged_once_although_its_proof_came_before_without_the_key() -> None:
    async with open_gateway() as gateway:
        await gateway.publish()
        payment = await gateway.pay(3 * PRICE)
        proof = gateway.bound_proof(payment.tx_hash, target=TARGET)
        gateway.upstream.answer = hang_up
        assert (await gateway.ask("GET", TARGET, proof)).status == 504
        gateway.upstream.answer = plain(b"once")
        key = ("Idempotency-Key", "one")
        first = await gateway.ask("GET", TARGET, [*proof, key])
        fresh = gateway.bound_proof(payment.tx_hash, target=TARGET)
        again = await gateway.ask("GET", TARGET, [*fresh, key])
        assert {first.status, again.status} <= {200, 401, 409}
        runs = [
            one for one in (first, again) if one.status == 200 and "idempotency-replayed" not in one.headers
        ]
        assert len(runs) <= 1, "one key has run, and was charged, twice"
