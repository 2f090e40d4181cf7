"""Calls that a payment channel pays, from the offer in the 402 to the charge at the head, and each refusal. Chain and ledger are the models in
memory; everything else is real."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from eth_account import Account

from tests.kit.asgi_exchange import Exchange
from tests.kit.channel_payer import ChannelPayer, Json
from tests.kit.channel_sales import AUTHORIZER, TARGET, WITHDRAW_DELAY_S, ChannelCaller, ChannelSales
from tests.kit.gateway import CHAIN, NOW_MS, PAY_TO, TOKEN, USDC, open_gateway
from tests.kit.metered_gateway import TOTAL_TOKENS, make_metering
from tests.kit.payer import decode_header, has_terms
from tests.kit.upstream import Arrived, hang_up, held, plain, raw
from tests.kit.waits import until
from tollway.chain.channel_contract import (
    SETTLEMENT_CONTRACT,
    ChannelConfig,
    encode_initiate_withdraw,
)
from tollway.gateway.channel_payment import TURN_POLL_S, TURN_WAIT_S
from tollway.ids import Address, ChainId, keccak256
from tollway.ledger.channels import ChannelState, Receiver
from tollway.ledger.records import CallState, Rail
from tollway.money import Price
from tollway.payments.channel_wire import ChannelReason
from tollway.payments.wire import AuthorizationReason

PRICE = 10_000
DEPOSIT = 1_000_000
DEPOSIT_FLOOR = 85_800
"""Three times the gas of a channel, in base units."""
FUNDS = 10**8
KEY = ("Idempotency-Key", "one")


@pytest.fixture
async def gateway() -> AsyncIterator[ChannelSales]:
    limits: dict[str, Any] = {"settle_wait_s": 0.2, "lookups_per_minute": 1_000}
    async with open_gateway(kind=ChannelSales, **limits) as small:
        assert isinstance(small, ChannelSales)
        await small.channel_networks.refresh()
        yield small


@pytest.fixture
async def caller(gateway: ChannelSales) -> ChannelCaller:
    """Of the one listing, at 0.01 USDC a call; without a deposit yet."""
    await gateway.publish()
    return ChannelCaller.funded(gateway, FUNDS)


@pytest.fixture
async def opened(caller: ChannelCaller) -> ChannelCaller:
    """After a first call, which deposited 1 USDC."""
    answer = await caller.open(DEPOSIT, ceiling=PRICE)
    assert answer.status == 200, answer.body
    caller.gateway.chain.requests.clear()
    return caller


def read_response(answer: Exchange) -> Json:
    receipt: Json = decode_header(answer.headers["payment-response"].encode())
    return receipt


def read_corrective(answer: Exchange) -> Json:
    """The one entry of the terms."""
    required = decode_header(answer.headers["payment-required"].encode())
    assert required["error"] == answer.problem["reason"]
    (entry,) = required["accepts"]
    found: Json = entry
    return found


def edit_channel(caller: ChannelCaller, **changes: Any) -> None:
    """Changes the channel in the ledger."""
    rows = caller.gateway.ledger.rows
    (name,) = rows.channels
    rows.channels[name] = replace(rows.channels[name], **changes)


async def charged_units(caller: ChannelCaller) -> tuple[int, int]:
    """The announced sum, and what the calls owe."""
    await caller.gateway.check_balanced()
    channel = await caller.channel()
    return channel.announced, channel.taken_units


# ---------------------------------------------------------------------- paid


async def test_the_first_call_brings_a_deposit_and_is_charged_at_its_head(
    gateway: ChannelSales, caller: ChannelCaller
) -> None:
    answer = await caller.open(DEPOSIT, ceiling=PRICE)
    assert (answer.status, answer.body) == (200, b"ok")
    assert answer.headers["tollway-payment-state"] == "charged"
    assert answer.headers["tollway-price"] == "0.01 USDC"
    assert answer.headers["tollway-credit-remaining"] == "0.99 USDC"
    assert not has_terms(answer)
    (call,) = await gateway.history()
    assert (call.state, call.rail, call.pay_to) == (CallState.CONSUMED, Rail.CHANNEL, PAY_TO)
    assert (call.id, call.price_units) == (answer.headers["tollway-call-id"], PRICE)
    receipt = read_response(answer)
    transaction = receipt.pop("transaction")
    assert transaction.startswith("0x")
    assert receipt == {
        "success": True,
        "network": "eip155:84532",
        "payer": str(caller.signer.address),
        "amount": str(DEPOSIT),
        "extra": {
            "chargedAmount": str(PRICE),
            "channelState": {
                "channelId": str(caller.signer.channel_id),
                "balance": str(DEPOSIT),
                "totalClaimed": "0",
                "withdrawRequestedAt": 0,
                "refundNonce": "0",
                "chargedCumulativeAmount": str(PRICE),
            },
        },
    }
    assert await charged_units(caller) == (PRICE, PRICE)
    assert gateway.chain.balance(CHAIN, TOKEN, SETTLEMENT_CONTRACT) == DEPOSIT
    assert (gateway.earned, gateway.transfers, gateway.served) == (0, 1, 1)
    (arrived,) = gateway.upstream.arrived
    assert "payment-signature" not in arrived.names


async def test_a_voucher_pays_the_next_call_without_the_chain(
    gateway: ChannelSales, opened: ChannelCaller
) -> None:
    answer = await opened.spend(2 * PRICE)
    assert (answer.status, answer.headers["tollway-payment-state"]) == (200, "charged")
    assert answer.headers["tollway-credit-remaining"] == "0.98 USDC"
    receipt = read_response(answer)
    assert (receipt["transaction"], receipt["amount"]) == ("", "")
    assert receipt["extra"]["chargedAmount"] == str(PRICE)
    assert receipt["extra"]["channelState"]["chargedCumulativeAmount"] == str(2 * PRICE)
    assert await charged_units(opened) == (2 * PRICE, 2 * PRICE)
    assert (gateway.chain_requests, gateway.transfers, gateway.served) == (0, 1, 2)


async def test_what_remains_is_the_balance_less_the_announced_sum(
    gateway: ChannelSales, opened: ChannelCaller
) -> None:
    """A stream announces its maximum, so the sum of the calls can be below it."""
    edit_channel(opened, announced=4 * PRICE)
    answer = await opened.spend(5 * PRICE)
    assert answer.headers["tollway-credit-remaining"] == "0.96 USDC"
    assert read_response(answer)["extra"]["chargedAmount"] == "0"
    assert await charged_units(opened) == (4 * PRICE, 2 * PRICE)


@pytest.mark.parametrize("step", [PRICE, 2 * PRICE])
async def test_each_price_that_counts_is_a_step_and_the_lowest_is_charged(
    gateway: ChannelSales, opened: ChannelCaller, step: int
) -> None:
    listing = (await gateway.catalog.find(gateway.sample("api_quotes").id)).listing  # type: ignore[union-attr]  # published
    gateway.now_ms += 1_000
    await gateway.revise(listing, price=Price.parse("0.02"))
    answer = await opened.spend(PRICE + step)
    assert (answer.status, answer.headers["tollway-price"]) == (200, "0.01 USDC")
    assert read_response(answer)["extra"]["chargedAmount"] == str(PRICE)
    assert await charged_units(opened) == (2 * PRICE, 2 * PRICE)


@pytest.mark.parametrize(("step", "status"), [(PRICE, 402), (2 * PRICE, 200)])
async def test_ten_minutes_after_an_edit_only_the_new_price_counts(
    gateway: ChannelSales, opened: ChannelCaller, step: int, status: int
) -> None:
    listing = (await gateway.catalog.find(gateway.sample("api_quotes").id)).listing  # type: ignore[union-attr]  # published
    await gateway.revise(listing, price=Price.parse("0.02"))
    await gateway.pass_time(gateway.limits.price_memory_s * 1000 + 1)
    answer = await opened.spend(PRICE + step)
    assert answer.status == status
    if status == 402:
        assert read_corrective(answer)["amount"] == str(2 * PRICE)


async def test_a_metered_call_charges_at_its_head_what_its_answer_has_used(gateway: ChannelSales) -> None:
    await gateway.publish(metering=make_metering(TOTAL_TOKENS))
    caller = ChannelCaller.funded(gateway, FUNDS)
    assert (await caller.open(DEPOSIT, ceiling=PRICE)).status == 200
    gateway.upstream.answer = plain(used(7), headers=("Content-Type: application/json",))
    answer = await caller.spend(2 * PRICE)
    assert answer.headers["tollway-price"] == "0.0017 USDC"
    assert answer.headers["tollway-credit-remaining"] == "0.9883 USDC"
    assert read_response(answer)["extra"]["chargedAmount"] == "1700"
    assert await charged_units(caller) == (PRICE + 1_700, PRICE + 1_700)
    assert (await caller.spend(PRICE + 1_700 + PRICE)).status == 200


async def test_a_metered_client_goes_on_after_a_claim_has_announced_its_newest_voucher(
    gateway: ChannelSales,
) -> None:
    await gateway.publish(metering=make_metering(TOTAL_TOKENS))
    caller = ChannelCaller.funded(gateway, FUNDS)
    assert (await caller.open(DEPOSIT, ceiling=PRICE)).status == 200
    gateway.upstream.answer = plain(used(7), headers=("Content-Type: application/json",))
    assert (await caller.spend(2 * PRICE)).status == 200
    edit_channel(caller, published=2 * PRICE, announced=2 * PRICE)
    extra = read_corrective(await caller.spend(PRICE + 1_700 + PRICE))["extra"]
    assert extra["channelState"]["chargedCumulativeAmount"] == str(2 * PRICE)
    assert extra["voucherState"]["signedMaxClaimable"] == str(2 * PRICE)
    following = await caller.spend(2 * PRICE + PRICE)
    assert (following.status, read_response(following)["extra"]["chargedAmount"]) == (200, "0")
    assert await charged_units(caller) == (2 * PRICE, PRICE + 2 * 1_700)


@pytest.mark.parametrize("headers", [(), (KEY,)], ids=["plain", "keyed"])
async def test_a_metered_call_with_a_deposit_or_a_key_charges_what_it_used(
    gateway: ChannelSales, headers: tuple[tuple[str, str], ...]
) -> None:
    await gateway.publish(metering=make_metering(TOTAL_TOKENS))
    caller = ChannelCaller.funded(gateway, FUNDS)
    gateway.upstream.answer = plain(used(70), headers=("Content-Type: application/json",))
    payload = caller.signer.deposit(DEPOSIT, ceiling=PRICE)
    first = await caller.pay(payload, *headers)
    assert first.headers["tollway-price"] == "0.008 USDC"
    assert read_response(first)["extra"]["chargedAmount"] == "8000"
    assert await charged_units(caller) == (8_000, 8_000)
    other = [(name, value + "-2") for name, value in headers]
    second = await caller.spend(8_000 + PRICE, *other)
    assert read_response(second)["extra"]["chargedAmount"] == "8000"
    assert await charged_units(caller) == (16_000, 16_000)


async def test_a_stream_charges_its_maximum_and_the_next_call_less(gateway: ChannelSales) -> None:
    await gateway.publish(metering=make_metering(TOTAL_TOKENS))
    caller = ChannelCaller.funded(gateway, FUNDS)
    assert (await caller.open(DEPOSIT, ceiling=PRICE)).status == 200
    gateway.upstream.answer = stream(used(7), "text/event-stream")
    streamed = await caller.spend(2 * PRICE)
    assert streamed.headers["tollway-price-max"] == "0.01 USDC"
    assert streamed.headers["tollway-payment-state"] == "held"
    assert read_response(streamed)["extra"]["chargedAmount"] == str(PRICE)
    assert await charged_units(caller) == (2 * PRICE, PRICE + 1_700)
    gateway.upstream.answer = plain()
    following = await caller.spend(3 * PRICE)
    assert read_response(following)["extra"]["chargedAmount"] == "1700"
    assert await charged_units(caller) == (PRICE + 1_700 + PRICE, PRICE + 1_700 + PRICE)


def stream(content: bytes, content_type: str) -> Any:
    body = b"data: " + content + b"\n\n" if content_type == "text/event-stream" else content
    head = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: %s\r\n\r\n" % content_type.encode()
    )
    return raw(head, b"%x\r\n%s\r\n" % (len(body), body), b"0\r\n\r\n")


def used(tokens: int) -> bytes:
    return b'{"usage": {"total_tokens": %d}}' % tokens


# ---------------------------------------------------------------------- the corrective 402


@pytest.mark.parametrize("ceiling", [PRICE, 2 * PRICE - 1, 2 * PRICE + 1, 3 * PRICE])
async def test_another_ceiling_gets_the_corrective_402(
    gateway: ChannelSales, opened: ChannelCaller, ceiling: int
) -> None:
    before = await opened.channel()
    answer = await opened.spend(ceiling)
    assert (answer.status, answer.problem["code"]) == (402, "payment_verification_failed")
    assert answer.problem["reason"] == ChannelReason.CUMULATIVE_MISMATCH.value
    assert answer.problem["paymentState"] == "none"
    assert "payment" not in answer.problem
    assert "accepts" not in answer.problem
    assert not {"payment-response", "www-authenticate"} & set(answer.headers)
    entry = read_corrective(answer)
    assert (entry["scheme"], entry["amount"], entry["payTo"]) == (
        "batch-settlement",
        str(PRICE),
        str(PAY_TO),
    )
    extra = entry["extra"]
    assert extra["channelState"]["chargedCumulativeAmount"] == str(PRICE)
    assert extra["channelState"]["balance"] == str(DEPOSIT)
    assert extra["voucherState"] == {
        "signedMaxClaimable": str(PRICE),
        "signature": "0x" + opened.signer.sign_voucher(PRICE).hex(),
    }
    assert await opened.channel() == before
    assert (gateway.chain_requests, gateway.served, len(await gateway.history())) == (0, 1, 1)
    assert (await opened.spend(2 * PRICE)).status == 200


@pytest.mark.parametrize(
    ("ceiling", "published", "is_shown"),
    [(PRICE + 1, 0, True), (PRICE + 1, PRICE, True), (PRICE, PRICE, True), (PRICE - 1, PRICE - 1, False)],
)
async def test_a_public_voucher_is_shown_to_all_and_a_private_one_to_a_private_asker(
    opened: ChannelCaller, ceiling: int, published: int, is_shown: bool
) -> None:
    edit_channel(opened, published=published)
    extra = read_corrective(await opened.spend(ceiling))["extra"]
    assert ("voucherState" in extra) is is_shown


async def test_a_ceiling_below_what_is_claimed_has_its_own_reason(
    gateway: ChannelSales, opened: ChannelCaller
) -> None:
    before = await opened.channel()
    edit_channel(opened, facts=replace(before.facts, total_claimed=PRICE))
    answer = await opened.spend(PRICE)
    assert answer.problem["reason"] == ChannelReason.BELOW_CLAIMED.value
    assert read_corrective(answer)["extra"]["channelState"]["totalClaimed"] == str(PRICE)


async def test_a_ceiling_above_the_balance_gets_the_corrective_402(
    gateway: ChannelSales, caller: ChannelCaller
) -> None:
    await caller.open(DEPOSIT_FLOOR, ceiling=PRICE)
    for calls in range(2, 9):
        assert (await caller.spend(calls * PRICE)).status == 200
    served = gateway.served
    answer = await caller.spend(9 * PRICE)
    assert (answer.status, gateway.served) == (402, served)
    assert read_corrective(answer)["extra"]["channelState"]["balance"] == str(DEPOSIT_FLOOR)
    more = caller.signs(deposit_salt=b"\x2d" * 32)
    assert (await more.open(DEPOSIT, ceiling=9 * PRICE)).status == 200
    assert await charged_units(caller) == (9 * PRICE, 9 * PRICE)


# ---------------------------------------------------------------------- refusals that no state of the channel mends


DELEGATE = Address.parse(Account.from_key(keccak256(b"a delegate")).address)


class DelegatingPayer(ChannelPayer):
    """Names another key for its vouchers, and signs them itself: no contract accepts them."""

    @property
    def config(self) -> ChannelConfig:
        return replace(super().config, payer_authorizer=DELEGATE)


def forge_channel(content: Json) -> None:
    content["payload"]["voucher"]["channelId"] = "0x" + "ab" * 32


def raise_ceiling(content: Json) -> None:
    content["payload"]["voucher"]["maxClaimableAmount"] = str(3 * PRICE)


def keep(content: Json) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Faulty:
    """`signed`: what is different about the channel. `rewrite`: changes the payment after it was signed. `listing`: what is different about the listing."""

    reason: str
    status: int = 402
    signed: Json = field(default_factory=dict)
    rewrite: Callable[[Json], None] = keep
    is_refund: bool = False
    is_delegated: bool = False
    listing: Json = field(default_factory=dict)


OTHER = Address(b"\xee" * 20)
FAULTS = {
    "receiver": Faulty(reason=ChannelReason.RECEIVER, signed={"receiver": OTHER}),
    "authorizer": Faulty(
        reason=ChannelReason.RECEIVER_AUTHORIZER,
        signed={"authorizer": Account.from_key(keccak256(b"another authorizer"))},
    ),
    "delay": Faulty(reason=ChannelReason.WITHDRAW_DELAY, signed={"withdraw_delay": WITHDRAW_DELAY_S + 1}),
    "token": Faulty(reason=ChannelReason.TOKEN, signed={"asset": replace(USDC, token=OTHER)}),
    "currency": Faulty(reason=ChannelReason.TOKEN, listing={"currency": "EURC"}),
    "delegated": Faulty(reason=ChannelReason.VOUCHER_SIGNATURE, is_delegated=True),
    "signature": Faulty(reason=ChannelReason.VOUCHER_SIGNATURE, rewrite=raise_ceiling),
    "channel id": Faulty(reason=ChannelReason.CHANNEL_ID, rewrite=forge_channel),
    "refund": Faulty(reason=ChannelReason.PAYLOAD_TYPE, is_refund=True),
    "network": Faulty(
        reason=AuthorizationReason.NETWORK, signed={"asset": replace(USDC, chain_id=ChainId(1))}
    ),
    "own wallet": Faulty(reason=AuthorizationReason.RETURNED, listing={"pay_to": None}),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("has_deposit", [False, True])
async def test_refuses_with_the_reason_and_keeps_nothing(
    gateway: ChannelSales, fault: Faulty, has_deposit: bool
) -> None:
    caller = ChannelCaller.funded(gateway, FUNDS, **fault.signed)
    if "pay_to" in fault.listing:
        caller = caller.signs(receiver=caller.signer.address)
    changes: Json = {name: value or caller.signer.address for name, value in fault.listing.items()}
    await gateway.publish(**changes)
    signer = caller.signer
    if fault.is_delegated:
        signer = DelegatingPayer(account=signer.account, authorizer=signer.authorizer)
    payload = signer.deposit(DEPOSIT, ceiling=PRICE) if has_deposit else signer.voucher(PRICE)
    if fault.is_refund:
        payload = signer.refund(ceiling=PRICE)
    gateway.chain.requests.clear()
    answer = await caller.pay(payload, edit=fault.rewrite)
    assert (answer.status, answer.problem["reason"]) == (402, fault.reason), answer.body
    assert answer.problem["paymentState"] == "none"
    assert await gateway.ledger.find_channel(signer.asset.chain_id, signer.channel_id) is None
    assert (gateway.chain_requests, gateway.served, await gateway.history()) == (0, 0, ())


async def test_refuses_a_token_whose_deposits_cannot_be_verified(
    gateway: ChannelSales, caller: ChannelCaller
) -> None:
    rules = gateway.rules[CHAIN]
    gateway.channel_rail.offers.rules = {CHAIN: replace(rules, assets=(replace(USDC, domain=None),))}
    answer = await caller.open(DEPOSIT, ceiling=PRICE)
    assert answer.problem["reason"] == ChannelReason.TOKEN_DOMAIN.value
    assert gateway.served == 0


async def test_a_voucher_beside_a_transaction_is_refused(
    gateway: ChannelSales, opened: ChannelCaller
) -> None:
    proof = await gateway.plain_payment(PRICE)
    answer = await opened.spend(2 * PRICE, *proof)
    assert (answer.status, answer.problem["reason"]) == (400, "more_than_one_rail")
    assert (gateway.served, await charged_units(opened)) == (1, (PRICE, PRICE))


# ---------------------------------------------------------------------- deposits


@dataclass(frozen=True, kw_only=True)
class BadDeposit:
    reason: str
    base_units: int = DEPOSIT
    ceiling: int = PRICE
    funds: int = FUNDS
    signed: Json = field(default_factory=dict)
    is_watched: bool = True


DEPOSITS = {
    "below the floor": BadDeposit(reason=ChannelReason.DEPOSIT_TOO_SMALL, base_units=DEPOSIT_FLOOR - 1),
    "below the call": BadDeposit(reason=ChannelReason.EXCEEDS_BALANCE, base_units=PRICE - 1),
    "expired": BadDeposit(reason=ChannelReason.EXPIRED, signed={"valid_before": NOW_MS // 1000 + 5}),
    "too early": BadDeposit(reason=ChannelReason.NOT_YET_VALID, signed={"valid_after": NOW_MS // 1000 + 60}),
    "no funds": BadDeposit(reason=ChannelReason.INSUFFICIENT_BALANCE, funds=DEPOSIT - 1),
    "unwatched": BadDeposit(reason="rail_withdrawn", is_watched=False),
}


@pytest.mark.parametrize("case", DEPOSITS.values(), ids=DEPOSITS)
async def test_refuses_a_deposit_and_keeps_nothing(gateway: ChannelSales, case: BadDeposit) -> None:
    await gateway.publish()
    caller = ChannelCaller.funded(gateway, case.funds, **case.signed)
    if not case.is_watched:
        gateway.looked_ms = None
        await gateway.channel_networks.refresh()
    answer = await caller.open(case.base_units, ceiling=case.ceiling)
    assert (answer.status, answer.problem["reason"]) == (402, case.reason), answer.body
    assert answer.problem["paymentState"] == "none"
    assert await caller.find_channel() is None
    assert (gateway.transfers, gateway.served, await gateway.history()) == (0, 0, ())


async def test_a_deposit_of_three_times_the_gas_is_taken(
    gateway: ChannelSales, caller: ChannelCaller
) -> None:
    answer = await caller.open(DEPOSIT_FLOOR, ceiling=PRICE)
    assert (answer.status, read_response(answer)["amount"]) == (200, str(DEPOSIT_FLOOR))


async def test_a_deposit_that_another_wallet_signed_is_refused(
    gateway: ChannelSales, caller: ChannelCaller
) -> None:
    payload = caller.signer.deposit(DEPOSIT, ceiling=PRICE)
    forged = ChannelPayer(authorizer=AUTHORIZER).deposit(DEPOSIT, ceiling=PRICE)
    payload["deposit"] = forged["deposit"]
    answer = await caller.pay(payload)
    assert answer.problem["reason"] == ChannelReason.DEPOSIT_SIGNATURE.value
    assert (gateway.transfers, gateway.served, await caller.find_channel()) == (0, 0, None)


@pytest.mark.parametrize("ceiling", [PRICE - 1, PRICE + 1])
async def test_a_deposit_with_another_ceiling_is_not_sent(
    gateway: ChannelSales, caller: ChannelCaller, ceiling: int
) -> None:
    answer = await caller.open(DEPOSIT, ceiling=ceiling)
    assert answer.problem["reason"] == ChannelReason.CUMULATIVE_MISMATCH.value
    assert read_corrective(answer)["extra"]["channelState"]["chargedCumulativeAmount"] == "0"
    assert (gateway.transfers, gateway.served, await charged_units(caller)) == (0, 0, (0, 0))
    assert (await caller.open(DEPOSIT, ceiling=PRICE)).status == 200


async def test_a_voucher_without_any_deposit_has_no_channel(
    gateway: ChannelSales, caller: ChannelCaller
) -> None:
    answer = await caller.spend(PRICE)
    assert (answer.status, answer.problem["reason"]) == (402, ChannelReason.NOT_FOUND.value)
    assert (gateway.served, await caller.find_channel()) == (0, None)


async def test_a_deposit_that_has_landed_counts_once(gateway: ChannelSales, opened: ChannelCaller) -> None:
    answer = await opened.open(DEPOSIT, ceiling=2 * PRICE)
    assert (answer.status, read_response(answer)["amount"]) == (200, "")
    assert (gateway.transfers, (await opened.channel()).balance_units) == (1, DEPOSIT)
    assert await charged_units(opened) == (2 * PRICE, 2 * PRICE)


async def test_a_deposit_whose_call_failed_pays_the_next_one(
    gateway: ChannelSales, caller: ChannelCaller
) -> None:
    gateway.upstream.answer = plain(status=500)
    answer = await caller.open(DEPOSIT, ceiling=PRICE)
    assert (answer.status, answer.headers["tollway-payment-state"]) == (500, "released")
    assert "payment-response" not in answer.headers
    assert (gateway.transfers, await charged_units(caller)) == (0, (0, 0))
    gateway.upstream.answer = plain()
    assert (await caller.open(DEPOSIT, ceiling=PRICE)).status == 200
    assert (gateway.transfers, await charged_units(caller)) == (1, (PRICE, PRICE))


async def test_a_deposit_that_fails_on_the_chain_releases_its_call(
    gateway: ChannelSales, caller: ChannelCaller
) -> None:
    async def spend_elsewhere(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        gateway.chain.fund(CHAIN, TOKEN, caller.signer.address, 0)
        await plain(b"secret answer")(arrived, writer)

    gateway.upstream.answer = spend_elsewhere
    answer = await caller.open(DEPOSIT, ceiling=PRICE)
    assert (answer.status, answer.problem["code"]) == (402, "payment_settlement_failed")
    assert answer.problem["paymentState"] == "released"
    assert b"secret answer" not in answer.body
    assert await charged_units(caller) == (0, 0)
    assert (await caller.channel()).reserved_call is None


async def test_while_a_deposit_is_undecided_its_channel_takes_no_call(
    gateway: ChannelSales, caller: ChannelCaller
) -> None:
    gateway.stop_mining()
    answer = await caller.open(DEPOSIT, ceiling=PRICE)
    assert (answer.status, answer.problem["code"]) == (503, "payment_outcome_unknown")
    url = answer.problem["call"]
    for payload in (
        caller.signer.deposit(DEPOSIT, ceiling=PRICE),
        caller.signs(deposit_salt=b"\x2d" * 32).signer.deposit(DEPOSIT, ceiling=PRICE),
        caller.signer.voucher(PRICE),
    ):
        again = await caller.pay(payload, target="/another")
        assert (again.status, again.problem["code"]) == (503, "payment_outcome_unknown")
        assert (again.problem["call"], again.problem["paymentState"]) == (url, "held")
        assert again.headers["retry-after"] == "5"
    assert gateway.served == 1
    await gateway.recover_chain()
    assert await charged_units(caller) == (PRICE, PRICE)
    assert (await caller.spend(2 * PRICE)).status == 200
    assert len(await gateway.history()) == 2


# ---------------------------------------------------------------------- a channel whose chain knows more than the ledger


def deposit_directly(caller: ChannelCaller, base_units: int) -> None:
    """A transaction of the payer, which the gateway has not sent."""
    signer = replace(caller.signer, deposit_salt=keccak256(b"%d" % base_units))
    caller.gateway.chain.call_channels(CHAIN, signer.encode_deposit(base_units))
    caller.gateway.chain.bury(CHAIN, 10)


async def test_a_channel_that_the_payer_has_opened_takes_a_voucher(
    gateway: ChannelSales, caller: ChannelCaller
) -> None:
    deposit_directly(caller, DEPOSIT)
    answer = await caller.spend(PRICE)
    assert (answer.status, answer.headers["tollway-credit-remaining"]) == (200, "0.99 USDC")
    assert (gateway.transfers, await charged_units(caller)) == (0, (PRICE, PRICE))


async def test_a_balance_that_the_payer_has_raised_is_read_once_it_is_needed(
    gateway: ChannelSales, caller: ChannelCaller
) -> None:
    edge = PRICE + 5_000
    deposit_directly(caller, edge)
    assert (await caller.spend(PRICE)).status == 200
    assert read_corrective(await caller.spend(2 * PRICE))["extra"]["channelState"]["balance"] == str(edge)
    deposit_directly(caller, DEPOSIT)
    answer = await caller.spend(2 * PRICE)
    assert (answer.status, (await caller.channel()).balance_units) == (200, edge + DEPOSIT)


async def test_a_withdrawal_that_the_chain_shows_at_the_first_look_closes_the_channel(
    gateway: ChannelSales, caller: ChannelCaller
) -> None:
    deposit_directly(caller, DEPOSIT)
    calldata = encode_initiate_withdraw(caller.signer.config, base_units=DEPOSIT)
    gateway.chain.call_channels(CHAIN, calldata, sender=caller.signer.address)
    answer = await caller.spend(PRICE)
    assert (answer.status, answer.problem["reason"]) == (503, "withdrawal_pending")
    assert (gateway.served, await charged_units(caller)) == (0, (0, 0))


# ---------------------------------------------------------------------- an upstream that fails, and outcomes that are not known


@pytest.mark.parametrize("status", [500, 404])
async def test_a_voucher_whose_call_failed_pays_the_next_one(
    gateway: ChannelSales, opened: ChannelCaller, status: int
) -> None:
    gateway.upstream.answer = plain(status=status)
    answer = await opened.spend(2 * PRICE)
    assert (answer.status, answer.headers["tollway-payment-state"]) == (status, "released")
    assert await charged_units(opened) == (PRICE, PRICE)
    gateway.upstream.answer = plain()
    assert (await opened.spend(2 * PRICE, target="/another")).status == 200
    assert await charged_units(opened) == (2 * PRICE, 2 * PRICE)


@pytest.mark.parametrize(("target", "is_same"), [(TARGET, True), ("/another", False)])
async def test_after_an_unknown_outcome_the_same_voucher_pays_the_same_call_or_another(
    gateway: ChannelSales, opened: ChannelCaller, target: str, is_same: bool
) -> None:
    gateway.upstream.answer = hang_up
    unknown = await opened.spend(2 * PRICE)
    assert (unknown.status, unknown.problem["paymentState"]) == (504, "held")
    assert (await opened.channel()).reserved_state is CallState.UNKNOWN
    gateway.upstream.answer = plain()
    answer = await opened.spend(2 * PRICE, target=target)
    assert answer.status == 200
    assert (answer.headers["tollway-call-id"] == unknown.problem["callId"]) is is_same
    states = {call.id: call.state for call in await gateway.history()}
    assert states[unknown.problem["callId"]] is (CallState.CONSUMED if is_same else CallState.RELEASED)
    assert await charged_units(opened) == (2 * PRICE, 2 * PRICE)
    assert (await opened.channel()).reserved_call is None


@pytest.mark.parametrize("headers", [(), (KEY,)], ids=["plain", "keyed"])
async def test_after_an_unknown_outcome_the_deposit_settles_with_the_repeat(
    gateway: ChannelSales, caller: ChannelCaller, headers: tuple[tuple[str, str], ...]
) -> None:
    payload = caller.signer.deposit(DEPOSIT, ceiling=PRICE)
    gateway.upstream.answer = hang_up
    assert (await caller.pay(payload, *headers)).problem["paymentState"] == "held"
    gateway.upstream.answer = plain()
    answer = await caller.pay(payload, *headers)
    assert (answer.status, answer.headers["tollway-payment-state"]) == (200, "charged")
    assert read_response(answer)["amount"] == str(DEPOSIT)
    assert (gateway.transfers, await charged_units(caller)) == (1, (PRICE, PRICE))
    assert (await caller.channel()).reserved_call is None


async def test_a_repeat_whose_deposit_cannot_settle_asks_for_no_payment(
    gateway: ChannelSales, caller: ChannelCaller
) -> None:
    payload = caller.signer.deposit(DEPOSIT, ceiling=PRICE)
    gateway.upstream.answer = hang_up
    unknown = await caller.pay(payload, KEY)
    gateway.chain.fund(CHAIN, TOKEN, caller.signer.address, 0)
    answer = await caller.pay(payload, KEY)
    assert (answer.status, answer.problem["code"]) == (409, "payment_already_used")
    assert (answer.problem["callId"], answer.problem["paymentState"]) == (unknown.problem["callId"], "held")
    assert gateway.served == 1


@pytest.mark.parametrize("has_deposit", [False, True])
async def test_a_cut_response_runs_again_under_its_key_and_is_charged_once(
    gateway: ChannelSales, caller: ChannelCaller, has_deposit: bool
) -> None:
    ceiling = PRICE
    if not has_deposit:
        assert (await caller.open(DEPOSIT, ceiling=PRICE)).status == 200
        ceiling = 2 * PRICE
    signer = caller.signer
    payload = signer.deposit(DEPOSIT, ceiling=ceiling) if has_deposit else signer.voucher(ceiling)
    gateway.upstream.answer = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nsome", close=True)
    cut = await caller.pay(payload, KEY)
    assert (cut.status, cut.is_ended) == (200, False)
    assert await charged_units(caller) == (ceiling, ceiling)
    gateway.upstream.answer = plain()
    again = await caller.pay(payload, KEY)
    assert (again.status, again.body) == (200, b"ok")
    assert again.headers["tollway-call-id"] == cut.headers["tollway-call-id"]
    assert read_response(again)["extra"]["chargedAmount"] == "0"
    assert (gateway.transfers, await charged_units(caller)) == (1, (ceiling, ceiling))
    assert (await caller.spend(ceiling + PRICE)).status == 200


# ---------------------------------------------------------------------- one call at a time


async def test_a_second_call_waits_until_the_first_has_its_head(
    gateway: ChannelSales, opened: ChannelCaller
) -> None:
    may_answer = asyncio.Event()
    gateway.upstream.answer = held(may_answer, body=b"ok")
    async with asyncio.TaskGroup() as group:
        first = group.create_task(opened.spend(2 * PRICE))
        await until(lambda: gateway.served == 2)

        async def end_first() -> None:
            may_answer.set()
            await asyncio.wait([first])

        gateway.while_paused = end_first
        second = await opened.spend(3 * PRICE)
    assert (first.result().status, second.status) == (200, 200)
    assert gateway.pauses == [TURN_POLL_S]
    assert await charged_units(opened) == (3 * PRICE, 3 * PRICE)


async def test_a_call_that_waits_too_long_is_refused(gateway: ChannelSales, opened: ChannelCaller) -> None:
    may_answer = asyncio.Event()
    gateway.upstream.answer = held(may_answer, body=b"ok")
    async with asyncio.TaskGroup() as group:
        first = group.create_task(opened.spend(2 * PRICE))
        await until(lambda: gateway.served == 2)
        second = await opened.spend(3 * PRICE)
        may_answer.set()
    assert (second.status, second.problem["code"]) == (503, "channel_busy")
    assert second.problem["callId"] == first.result().headers["tollway-call-id"]
    assert (second.headers["retry-after"], second.problem["paymentState"]) == ("1", "none")
    assert sum(gateway.pauses) == pytest.approx(TURN_WAIT_S)
    assert gateway.served == 2
    assert await charged_units(opened) == (2 * PRICE, 2 * PRICE)


async def test_of_many_calls_with_one_voucher_one_is_served(
    gateway: ChannelSales, opened: ChannelCaller
) -> None:
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(opened.spend(2 * PRICE, target=f"/{number}")) for number in range(6)]
        gateway.while_paused = lambda: until(lambda: any(call.done() for call in calls))
    refused = [call.result() for call in calls if call.result().status != 200]
    assert len(refused) == 5
    assert {answer.status for answer in refused} <= {402, 503}
    assert all("payment-response" not in answer.headers for answer in refused)
    assert (gateway.served, await charged_units(opened)) == (2, (2 * PRICE, 2 * PRICE))


async def test_of_many_deposits_at_once_one_is_sent(gateway: ChannelSales, caller: ChannelCaller) -> None:
    salted = [caller.signs(deposit_salt=bytes([number]) * 32) for number in range(6)]
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(one.open(DEPOSIT, ceiling=PRICE)) for one in salted]
        gateway.while_paused = lambda: until(lambda: any(call.done() for call in calls))
    assert [call.result().status for call in calls].count(200) == 1
    assert (gateway.transfers, gateway.served) == (1, 1)
    assert await charged_units(caller) == (PRICE, PRICE)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": ChannelState.WITHDRAWING}, "withdrawal_pending"),
        ({"state": ChannelState.DRAINING}, "channel_draining"),
    ],
)
async def test_a_channel_that_takes_no_call_says_why(
    gateway: ChannelSales, opened: ChannelCaller, changes: Json, reason: str
) -> None:
    edit_channel(opened, **changes)
    answer = await opened.spend(2 * PRICE)
    assert (answer.status, answer.problem["code"]) == (503, "channel_busy")
    assert (answer.problem["reason"], answer.problem["paymentState"]) == (reason, "none")
    assert gateway.served == 1
    assert await charged_units(opened) == (PRICE, PRICE)


async def test_a_receiver_that_the_token_does_not_pay_has_no_channels(
    gateway: ChannelSales, opened: ChannelCaller
) -> None:
    def count_channels(offers: list[Json]) -> int:
        return [one["scheme"] for one in offers].count("batch-settlement")

    assert count_channels(await gateway.offers()) == 1
    channel = await opened.channel()
    gateway.refused = (Receiver(CHAIN, channel.config.receiver, channel.config.token),)
    await gateway.channel_networks.refresh()
    assert count_channels(await gateway.offers()) == 0
    answer = await opened.spend(2 * PRICE)
    assert (answer.status, answer.problem["code"]) == (503, "channel_busy")
    assert (answer.problem["reason"], gateway.served) == ("receiver_refused", 1)
    gateway.refused = ()
    await gateway.channel_networks.refresh()
    assert (await opened.spend(2 * PRICE)).status == 200


async def test_what_is_unclaimed_has_a_maximum(gateway: ChannelSales) -> None:
    """Of five units of the currency: two calls at 2.5."""
    step = 2_500_000
    await gateway.publish(price=Price.parse("2.5"))
    caller = ChannelCaller.funded(gateway, FUNDS)
    assert (await caller.open(10 * DEPOSIT, ceiling=step)).status == 200
    assert (await caller.spend(2 * step)).status == 200
    answer = await caller.spend(3 * step)
    assert (answer.status, answer.problem["code"]) == (503, "channel_busy")
    assert (answer.problem["reason"], gateway.served) == ("unclaimed_max", 2)
    edit_channel(caller, facts=replace((await caller.channel()).facts, total_claimed=1))
    assert (await caller.spend(3 * step)).status == 503
    edit_channel(caller, facts=replace((await caller.channel()).facts, total_claimed=step))
    assert (await caller.spend(3 * step)).status == 200


# ---------------------------------------------------------------------- keys, access, the caller's maximum


async def test_the_stored_answer_comes_before_the_ceiling(
    gateway: ChannelSales, opened: ChannelCaller
) -> None:
    first = await opened.spend(2 * PRICE, KEY)
    assert (await opened.spend(3 * PRICE)).status == 200
    again = await opened.spend(2 * PRICE, KEY)
    assert (again.status, again.body) == (200, b"ok")
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["tollway-call-id"] == first.headers["tollway-call-id"]
    assert (gateway.served, await charged_units(opened)) == (3, (3 * PRICE, 3 * PRICE))


def name_call(content: Json) -> None:
    """The extension `payment-identifier` of x402."""
    content["extensions"] = {"payment-identifier": {"info": {"id": "pay_0123456789abcdef"}}}


@pytest.mark.parametrize(
    ("headers", "edit"), [((KEY,), keep), ((), name_call)], ids=["header", "payment identifier"]
)
async def test_a_repeat_with_the_next_voucher_gets_the_stored_answer(
    gateway: ChannelSales,
    opened: ChannelCaller,
    headers: tuple[tuple[str, str], ...],
    edit: Callable[[Json], None],
) -> None:
    """The client lost the first answer, and believes that it was not charged, or that it was."""
    first = await opened.spend(2 * PRICE, *headers, edit=edit)
    for ceiling in (2 * PRICE, 3 * PRICE):
        again = await opened.spend(ceiling, *headers, edit=edit)
        assert (again.status, again.headers["idempotency-replayed"]) == (200, "true")
        assert again.headers["tollway-call-id"] == first.headers["tollway-call-id"]
    channel = await opened.channel()
    assert channel.candidate is not None
    assert (channel.candidate.ceiling, gateway.served) == (2 * PRICE, 2)


@dataclass
class StockSum:
    """The sum of a stock client, as `@x402/evm` keeps it: it adds each charge, and writes nothing where the gateway names another sum."""

    charged: int = 0

    def read(self, answer: Exchange) -> None:
        assert answer.status == 200
        receipt = read_response(answer)
        charged = self.charged + int(receipt["extra"]["chargedAmount"])
        if receipt["success"] and receipt["extra"]["channelState"]["chargedCumulativeAmount"] == str(charged):
            self.charged = charged


@pytest.mark.parametrize("has_other_call", [False, True])
@pytest.mark.parametrize("is_received", [False, True])
async def test_a_stored_answer_carries_its_own_charge_and_keeps_the_sum_of_a_stock_client(
    gateway: ChannelSales, opened: ChannelCaller, is_received: bool, has_other_call: bool
) -> None:
    client = StockSum(PRICE)
    first = await opened.spend(client.charged + PRICE, KEY)
    if is_received:
        client.read(first)
    if has_other_call:
        if not is_received:  # the corrective 402 tells the client what the lost answer has charged
            state = read_corrective(await opened.spend(client.charged + PRICE, target="/another"))["extra"]
            client = StockSum(int(state["channelState"]["chargedCumulativeAmount"]))
        client.read(await opened.spend(client.charged + PRICE, target="/another"))
    again = await opened.spend(client.charged + PRICE, KEY)
    assert again.headers["idempotency-replayed"] == "true"
    assert read_response(again) == read_response(first)
    client.read(again)
    assert (client.charged, client.charged) == await charged_units(opened)
    assert (await opened.spend(client.charged + PRICE, target="/next")).status == 200


async def test_a_stored_answer_of_a_metered_call_without_use_charges_nothing(gateway: ChannelSales) -> None:
    await gateway.publish(metering=make_metering(TOTAL_TOKENS, base="0"))
    caller = ChannelCaller.funded(gateway, FUNDS)
    gateway.upstream.answer = plain(used(0), headers=("Content-Type: application/json",))
    client = StockSum()
    client.read(await caller.open(DEPOSIT, ceiling=PRICE))
    for _ in range(2):
        client.read(await caller.spend(PRICE, KEY))
    assert client.charged == 0
    assert (gateway.served, await charged_units(caller)) == (2, (0, 0))


@pytest.mark.parametrize("tokens", [None, 70])
async def test_a_stored_answer_whose_deposit_was_undecided_carries_its_charge(
    gateway: ChannelSales, tokens: int | None
) -> None:
    charged = PRICE if tokens is None else 8_000
    await gateway.publish(metering=None if tokens is None else make_metering(TOTAL_TOKENS))
    if tokens is not None:
        gateway.upstream.answer = plain(used(tokens), headers=("Content-Type: application/json",))
    caller = ChannelCaller.funded(gateway, FUNDS)
    gateway.stop_mining()
    payload = caller.signer.deposit(DEPOSIT, ceiling=PRICE)
    assert (await caller.pay(payload, KEY)).status == 503
    await gateway.recover_chain()
    client = StockSum()
    for _ in range(2):
        again = await caller.pay(payload, KEY)
        assert again.headers["idempotency-replayed"] == "true"
        client.read(again)
    assert (client.charged, await charged_units(caller)) == (charged, (charged, charged))
    assert (await caller.spend(client.charged + PRICE, target="/next")).status == 200


@pytest.mark.parametrize("content_type", ["text/event-stream", "application/json"])
async def test_a_streamed_answer_whose_deposit_was_undecided_costs_what_it_used(
    gateway: ChannelSales, content_type: str
) -> None:
    await gateway.publish(metering=make_metering(TOTAL_TOKENS))
    caller = ChannelCaller.funded(gateway, FUNDS)
    gateway.upstream.answer = stream(used(7), content_type)
    gateway.stop_mining()
    payload = caller.signer.deposit(DEPOSIT, ceiling=PRICE)
    assert (await caller.pay(payload, KEY)).status == 503
    await gateway.recover_chain()
    (call,) = await gateway.history()
    assert (call.state, call.actual_units) == (CallState.CONSUMED, 1_700)
    client = StockSum()
    again = await caller.pay(payload, KEY)
    client.read(again)
    assert (again.headers["tollway-price"], client.charged) == ("0.0017 USDC", 1_700)
    assert await charged_units(caller) == (1_700, 1_700)
    assert (await caller.spend(client.charged + PRICE, target="/next")).status == 200
    await gateway.check_balanced()


async def is_free_again(caller: ChannelCaller, *, served: int) -> bool:
    """After that many heads."""
    return caller.gateway.served == served and (await caller.channel()).reserved_call is None


async def test_a_stored_answer_promises_what_is_charged_also_where_a_stream_before_it_ends_later(
    gateway: ChannelSales,
) -> None:
    await gateway.publish(metering=make_metering(TOTAL_TOKENS))
    caller, client = ChannelCaller.funded(gateway, FUNDS), StockSum()
    client.read(await caller.open(DEPOSIT, ceiling=PRICE))
    may_end = asyncio.Event()
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"
    gateway.upstream.answer = held(may_end, head, b"%x\r\n%s\r\n0\r\n\r\n" % (len(used(7)), used(7)))
    another = caller.signs(deposit_salt=b"\x2d" * 32)
    payload = another.signer.deposit(DEPOSIT, ceiling=3 * PRICE)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(caller.spend(2 * PRICE, target="/stream"))
        await until(lambda: is_free_again(caller, served=2))
        gateway.upstream.answer = stream(used(7), "application/json")
        gateway.stop_mining()
        assert (await another.pay(payload, KEY)).status == 503
        may_end.set()
    client.read(running.result())
    await gateway.recover_chain()
    client.read(await another.pay(payload, KEY))
    assert client.charged == (await caller.channel()).announced == 2 * PRICE + 1_700
    client.read(await another.spend(client.charged + PRICE, target="/next"))
    assert client.charged == (await caller.channel()).announced
    await gateway.check_balanced()


async def test_a_public_voucher_opens_no_stored_answer(gateway: ChannelSales, opened: ChannelCaller) -> None:
    await opened.spend(2 * PRICE, KEY)
    edit_channel(opened, published=2 * PRICE)
    answer = await opened.spend(2 * PRICE, KEY)
    assert (answer.status, answer.problem["reason"]) == (402, ChannelReason.CUMULATIVE_MISMATCH.value)
    assert gateway.served == 2


@pytest.mark.parametrize(
    "signed",
    [
        {"authorizer": Account.from_key(keccak256(b"another authorizer"))},
        {"receiver": OTHER},
        {"salt": b"\x01" * 32},
    ],
    ids=["another gateway", "another receiver", "a channel that is not known"],
)
async def test_a_voucher_of_another_channel_opens_no_stored_answer(
    gateway: ChannelSales, opened: ChannelCaller, signed: Json
) -> None:
    """It can be public: another gateway may have claimed with it."""
    await opened.spend(2 * PRICE, KEY)
    answer = await opened.signs(**signed).spend(2 * PRICE, KEY)
    assert (answer.status, answer.problem["code"]) == (402, "payment_verification_failed")
    assert gateway.served == 2


async def test_a_key_of_another_request_is_refused(gateway: ChannelSales, opened: ChannelCaller) -> None:
    await opened.spend(2 * PRICE, KEY)
    answer = await opened.spend(3 * PRICE, KEY, target="/another")
    assert (answer.status, answer.problem["code"]) == (422, "idempotency_key_reused")
    assert (gateway.served, await charged_units(opened)) == (2, (2 * PRICE, 2 * PRICE))


@pytest.mark.parametrize(("maximum", "status"), [("0.01", 200), ("0.009999", 412)])
async def test_the_callers_maximum_is_kept(
    gateway: ChannelSales, opened: ChannelCaller, maximum: str, status: int
) -> None:
    answer = await opened.spend(2 * PRICE, ("Tollway-Max-Price", maximum))
    assert answer.status == status, answer.body
    assert gateway.served == (2 if status == 200 else 1)


@pytest.mark.parametrize("headers", [(), (KEY,)], ids=["plain", "keyed"])
@pytest.mark.parametrize(("maximum", "status"), [("0.01", 200), ("0.009", 412)])
async def test_the_callers_maximum_counts_for_the_price_that_an_earlier_run_holds(
    gateway: ChannelSales,
    opened: ChannelCaller,
    headers: tuple[tuple[str, str], ...],
    maximum: str,
    status: int,
) -> None:
    gateway.upstream.answer = hang_up
    unknown = await opened.spend(2 * PRICE, *headers)
    gateway.upstream.answer = plain()
    listing = (await gateway.catalog.find(gateway.sample("api_quotes").id)).listing  # type: ignore[union-attr]  # published
    await gateway.revise(listing, price=Price.parse("0.005"))
    answer = await opened.spend(2 * PRICE, *headers, ("Tollway-Max-Price", maximum))
    assert answer.status == status, answer.body
    if status == 412:
        assert answer.problem["code"] == "price_above_max"
        assert answer.problem["callId"] == unknown.problem["callId"]
        assert answer.problem["paymentState"] == "held"
    assert await charged_units(opened) == ((2 if status == 200 else 1) * PRICE, 2 * PRICE)


@pytest.mark.parametrize("has_deposit", [False, True])
async def test_a_blocked_wallet_pays_nothing(
    gateway: ChannelSales, opened: ChannelCaller, has_deposit: bool
) -> None:
    gateway.blocked.add(opened.signer.address)
    signer = opened.signs(deposit_salt=b"\x2d" * 32).signer
    payload = signer.deposit(DEPOSIT, ceiling=2 * PRICE) if has_deposit else opened.signer.voucher(2 * PRICE)
    answer = await opened.pay(payload)
    assert (answer.status, answer.problem["code"]) == (403, "wallet_blocked")
    assert (gateway.chain_requests, gateway.transfers, gateway.served) == (0, 1, 1)
    assert await charged_units(opened) == (PRICE, PRICE)
