"""The free calls that a listing gives to each wallet, through a whole gateway."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import PROVIDER, InProcessGateway, open_gateway
from tests.kit.metered_gateway import USAGE_HEADER, make_metering
from tests.kit.payer import KeyWallet, sign_in_with_x
from tests.kit.upstream import hang_up, plain
from tollway.errors import StorageUnavailable
from tollway.ids import ListingId
from tollway.ledger.ledger import Claim, ClaimOutcome
from tollway.ledger.records import CallState
from tollway.money import Price
from tollway.registry.listing import FreeCalls

TWO = FreeCalls(count=2)
OTHER = KeyWallet.named("another buyer")
KEY = ("Idempotency-Key", "one")


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway() as small:
        await small.publish(free_calls=TWO)
        yield small


class Caller:
    """A wallet that signs each call with a new nonce."""

    def __init__(self, gateway: InProcessGateway, wallet: KeyWallet | None = None) -> None:
        self.gateway = gateway
        self.wallet = wallet or gateway.wallet
        self.number = 0

    async def call(
        self,
        *headers: tuple[str, str],
        method: str = "GET",
        body: bytes = b"",
        listing: str = "api_quotes",
        **more: Any,
    ) -> Exchange:
        self.number += 1
        nonce = f"{self.wallet.address}-{self.number}"[-40:]
        proof = self.gateway.sign_call(method, listing, body=body, wallet=self.wallet, nonce=nonce)
        chunks = [body] if body else ()
        return await self.gateway.ask(method, "", [*proof, *headers], chunks, listing=listing, **more)


async def test_the_first_calls_of_a_wallet_are_free_then_it_pays(gateway: InProcessGateway) -> None:
    caller = Caller(gateway)
    for _ in range(2):
        free = await caller.call()
        assert (free.status, free.headers["tollway-payment-state"]) == (200, "none")
        assert free.headers["tollway-price"] == "0 USDC"
        assert free.headers["cache-control"] == "private, no-store"
    asked = await caller.call()
    assert (asked.status, asked.problem["code"], asked.problem["reason"]) == (
        402,
        "payment_required",
        "free_calls_used",
    )
    assert asked.problem["payment"]["amount"] == "0.01"
    assert gateway.served == 2
    records = await gateway.history()
    assert [(one.state, one.price, one.price_units, one.rail) for one in records] == [
        (CallState.CONSUMED, "0", 0, "none")
    ] * 2


async def test_a_call_without_a_wallet_is_asked_to_pay_and_learns_of_the_free_calls(
    gateway: InProcessGateway,
) -> None:
    asked = await gateway.ask()
    assert (asked.status, "reason" in asked.problem) == (402, False)
    assert asked.problem["detail"].endswith(
        "The first 2 calls of a wallet are free: sign the request (ERC-8128), or send SIGN-IN-WITH-X."
    )
    assert asked.problem["freeCalls"] == {"count": 2}


async def test_a_sign_in_message_proves_the_wallet_too(gateway: InProcessGateway) -> None:
    challenge = await gateway.sign_in.create_challenge()
    free = await gateway.ask(headers=[("SIGN-IN-WITH-X", sign_in_with_x(challenge, gateway.wallet))])
    assert (free.status, free.headers["tollway-payment-state"]) == (200, "none")


async def test_the_signature_covers_the_body(gateway: InProcessGateway) -> None:
    caller = Caller(gateway)
    assert (await caller.call(method="POST", body=b"{}")).status == 200
    proof = gateway.sign_call("POST", body=b"{}", nonce="n-9")
    other = await gateway.ask("POST", "", proof, [b"[]"])
    assert (other.status, other.problem["code"]) == (401, "invalid_signature")
    assert gateway.served == 1


async def test_a_proof_counts_once(gateway: InProcessGateway) -> None:
    proof = gateway.sign_call()
    assert (await gateway.ask(headers=proof)).status == 200
    again = await gateway.ask(headers=proof)
    assert (again.status, again.problem["code"], gateway.served) == (401, "nonce_reused", 1)


async def test_a_signature_of_another_kind_is_no_proof_and_is_asked_to_pay(gateway: InProcessGateway) -> None:
    other = [("Signature-Input", 'mine=("@method");created=1'), ("Signature", "mine=:AA==:")]
    asked = await gateway.ask(headers=other)
    assert (asked.status, asked.problem["code"], gateway.served) == (402, "payment_required", 0)


async def test_a_shown_payment_pays_and_uses_no_free_call(gateway: InProcessGateway) -> None:
    payment = await gateway.pay()
    paid = await Caller(gateway).call(*gateway.plain_proof(payment.tx_hash))
    assert (paid.status, paid.headers["tollway-payment-state"]) == (200, "charged")
    caller = Caller(gateway, OTHER)
    assert [(await caller.call()).status for _ in range(3)] == [200, 200, 402]


async def test_a_listing_without_free_calls_ignores_the_proof(gateway: InProcessGateway) -> None:
    await gateway.publish("api_paid")
    asked = await Caller(gateway).call(listing="api_paid")
    assert (asked.status, "freeCalls" in asked.problem, gateway.served) == (402, False, 0)


@pytest.mark.parametrize("status", [500, 404, 429])
async def test_a_response_that_does_not_cost_leaves_the_free_call(
    gateway: InProcessGateway, status: int
) -> None:
    caller = Caller(gateway)
    gateway.upstream.answer = plain(b"", status=status)
    assert [(await caller.call()).status for _ in range(3)] == [status] * 3
    gateway.upstream.answer = plain(b"")
    assert [(await caller.call()).status for _ in range(3)] == [200, 200, 402]


async def test_a_call_without_a_head_counts(gateway: InProcessGateway) -> None:
    """The provider may have worked."""
    caller = Caller(gateway)
    gateway.upstream.answer = hang_up
    lost = await caller.call()
    assert lost.status in (502, 504)
    gateway.upstream.answer = plain(b"")
    assert [(await caller.call()).status for _ in range(2)] == [200, 402]


async def test_a_repeat_by_its_key_counts_once(gateway: InProcessGateway) -> None:
    caller = Caller(gateway)
    first, repeated = [await caller.call(KEY) for _ in range(2)]
    assert (first.status, repeated.status, gateway.served) == (200, 200, 1)
    assert repeated.headers["idempotency-replayed"] == "true"
    assert first.headers["tollway-call-id"] == repeated.headers["tollway-call-id"]
    assert [(await caller.call()).status for _ in range(2)] == [200, 402]


async def test_a_lost_call_of_a_key_runs_again_and_counts_once(gateway: InProcessGateway) -> None:
    caller = Caller(gateway)
    gateway.upstream.answer = hang_up
    await caller.call(KEY)
    gateway.upstream.answer = plain(b"")
    again = await caller.call(KEY)
    assert (again.status, gateway.served) == (200, 2)
    (record,) = await gateway.history()
    assert record.id == again.headers["tollway-call-id"]
    assert [(await caller.call()).status for _ in range(2)] == [200, 402]


async def test_a_paid_call_of_the_key_is_not_run_again_without_its_payment(gateway: InProcessGateway) -> None:
    payment = await gateway.pay()
    gateway.upstream.answer = hang_up
    lost = await gateway.ask(headers=[*gateway.plain_proof(payment.tx_hash), KEY])
    assert lost.problem["paymentState"] == "held"
    gateway.upstream.answer = plain(b"")
    caller = Caller(gateway)
    refused = await caller.call(KEY)
    assert (refused.status, refused.problem["code"], gateway.served) == (409, "payment_already_used", 1)
    assert [(await caller.call()).status for _ in range(3)] == [200, 200, 402]


async def test_a_claim_that_fails_gives_the_free_call_back(
    gateway: InProcessGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(claim: Claim) -> ClaimOutcome:
        raise StorageUnavailable

    caller = Caller(gateway)
    with monkeypatch.context() as patched:
        patched.setattr(gateway.ledger, "claim", fail)
        assert (await caller.call()).status == 503
    assert [(await caller.call()).status for _ in range(3)] == [200, 200, 402]


async def test_the_calls_count_in_the_rate_of_free_calls() -> None:
    async with open_gateway(free_calls_per_minute=1) as gateway:
        await gateway.publish(free_calls=TWO)
        caller = Caller(gateway)
        assert (await caller.call()).status == 200
        limited = await caller.call()
        assert (limited.status, limited.problem["rateLimit"]["policy"]) == (429, "free-calls")
        assert (await caller.call(client="203.0.113.6")).status == 200  # refused calls used none


async def test_an_address_begins_with_three_wallets_a_day(gateway: InProcessGateway) -> None:
    asked = [
        await Caller(gateway, KeyWallet.named(f"wallet {number}")).call(client="2001:db8::1")
        for number in range(3)
    ]
    assert [one.status for one in asked] == [200] * 3
    fourth = Caller(gateway, KeyWallet.named("wallet 3"))
    refused = await fourth.call(client="2001:db8::2")  # the same /64
    assert (refused.status, refused.problem["reason"]) == (402, "free_calls_of_address")
    assert (await fourth.call(client="2001:db8:0:1::1")).status == 200


ADDRESSES = {
    "256 of one /64": ([f"2001:db8:0:7::{number:x}" for number in range(256)], 3),
    "one as IPv4 and mapped into IPv6": (["203.0.113.9", "::ffff:203.0.113.9", "::ffff:cb00:7109"] * 2, 3),
    "each of a /64 of its own": ([f"2001:db8:0:{number:x}::1" for number in range(5)], 5),
}


@pytest.mark.parametrize("case", ADDRESSES)
async def test_addresses_that_one_client_can_have_are_one(case: str) -> None:
    addresses, served = ADDRESSES[case]
    async with open_gateway(free_calls_per_minute=1_000) as gateway:
        await gateway.publish(free_calls=TWO)
        asked = [
            (await Caller(gateway, KeyWallet.named(f"{case} {number}")).call(client=address)).status
            for number, address in enumerate(addresses)
        ]
        assert asked == [200] * served + [402] * (len(addresses) - served)
        assert gateway.served == served


async def test_a_new_version_of_the_terms_gives_no_free_call_again() -> None:
    async with open_gateway() as gateway:
        listing = await gateway.publish(free_calls=TWO)
        caller = Caller(gateway)
        assert [(await caller.call()).status for _ in range(3)] == [200, 200, 402]
        versions: list[tuple[dict[str, Any], list[int]]] = [
            ({"price": Price.parse("0.02")}, [402]),
            ({"free_calls": None}, [402]),
            ({"free_calls": TWO}, [402]),
            ({"free_calls": FreeCalls(count=3)}, [200, 402]),
        ]
        for changes, expected in versions:
            listing = await gateway.revise(listing, **changes)
            assert [(await caller.call()).status for _ in expected] == expected, changes


async def test_the_calls_come_back_after_the_period(gateway: InProcessGateway) -> None:
    await gateway.publish("api_daily", free_calls=FreeCalls(count=1, per_s=86_400))
    caller = Caller(gateway)
    assert [(await caller.call(listing="api_daily")).status for _ in range(2)] == [200, 402]
    gateway.now_ms += 86_400_000
    assert (await caller.call(listing="api_daily")).status == 200


async def test_a_blocked_wallet_gets_none(gateway: InProcessGateway) -> None:
    gateway.blocked.add(gateway.wallet.address)  # type: ignore[arg-type]  # an address is what is looked up
    refused = await Caller(gateway).call()
    assert (refused.status, refused.problem["code"], gateway.served) == (403, "wallet_blocked", 0)


async def test_free_calls_are_no_part_of_the_quality(gateway: InProcessGateway) -> None:
    await Caller(gateway).call()
    assert not gateway.tally.take_counts()


async def test_a_free_call_of_a_metered_price_hides_the_usage_header(gateway: InProcessGateway) -> None:
    await gateway.publish("api_metered", free_calls=TWO, metering=make_metering(USAGE_HEADER))
    gateway.upstream.answer = plain(b"", headers=("X-Usage-Units: 7",))
    free = await Caller(gateway).call(listing="api_metered")
    assert (free.status, free.headers["tollway-price"]) == (200, "0 USDC")
    assert "x-usage-units" not in free.headers


async def test_the_price_is_not_zero_for_anybody_else(gateway: InProcessGateway) -> None:
    """Free calls begin a version of the terms, and its price stays."""
    (entry,) = [await gateway.catalog.find(ListingId("api_quotes"))]
    assert entry is not None
    assert entry.versions[0].free_calls == TWO
    assert (entry.versions[0].price.text, entry.listing.provider) == ("0.01", PROVIDER)
