"""Payers who cheat with a payment channel, at a gateway process on a real chain: each hears why, no call reaches the provider, and no money moves."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import pytest_asyncio
from eth_account import Account

from tests.kit.channel_payer import ChannelPayer, Json
from tests.kit.gateway_process import poll
from tests.system.live.channel_listing import (
    PRICE,
    UNCLAIMED,
    ChannelListing,
    OwnChannel,
    fresh_salt,
    open_channel_listing,
    read_receipt,
)
from tollway.chain.channel_contract import CHANNEL_AMOUNT_MAX, SETTLEMENT_CONTRACT, ChannelConfig
from tollway.ids import ZERO_ADDRESS, Address, keccak256
from tollway.payments.channel_wire import ChannelReason
from tollway.payments.wire import AuthorizationReason

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEPOSIT = 10 * PRICE
STRANGER = Account.from_key(keccak256(b"a stranger"))
OTHER = Address(b"\xee" * 20)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stall(cluster: Any) -> AsyncIterator[ChannelListing]:
    async with open_channel_listing(cluster, **UNCLAIMED) as stall:
        yield stall


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def own(stall: ChannelListing) -> OwnChannel:
    """After one call; the next voucher is over `NEXT`."""
    own = await stall.open_channel()
    await own.fill(DEPOSIT)
    return own


NEXT = 2 * PRICE


@dataclass(frozen=True, kw_only=True)
class Attack:
    """`pay`: what the payer signs. `forge`: changes the payment afterwards. `signed`: what is different about the channel."""

    reason: str
    status: int = 402
    pay: Callable[[OwnChannel], Json] = lambda own: own.signer.voucher(NEXT)
    forge: Callable[[Json], object] = lambda content: None
    signed: Json | None = None


def of_voucher(name: str, value: str) -> Callable[[Json], object]:
    def forge(content: Json) -> None:
        content["payload"]["voucher"][name] = value

    return forge


def of_config(name: str, value: str) -> Callable[[Json], object]:
    def forge(content: Json) -> None:
        content["payload"]["channelConfig"][name] = value

    return forge


def of_deposit(name: str, value: str) -> Callable[[Json], object]:
    def forge(content: Json) -> None:
        content["payload"]["deposit"]["authorization"]["erc3009Authorization"][name] = value

    return forge


def sign_for_another_channel(own: OwnChannel) -> Json:
    """The voucher of the wallet's other channel."""
    payload = own.signer.voucher(NEXT)
    other = own.signs(salt=b"\x01" * 32).signer.voucher(NEXT)
    payload["voucher"]["signature"] = other["voucher"]["signature"]
    return payload


def sign_as_stranger(own: OwnChannel) -> Json:
    payload = own.signer.voucher(NEXT)
    payload["voucher"]["signature"] = "0x" + own.signs(account=STRANGER).signer.sign_voucher(NEXT).hex()
    return payload


class ContractAuthorizer(ChannelPayer):
    """A wallet that leaves its vouchers to a contract."""

    @property
    def config(self) -> ChannelConfig:
        return replace(super().config, payer_authorizer=SETTLEMENT_CONTRACT)


def delegate_to_contract(own: OwnChannel) -> Json:
    values = {one.name: getattr(own.signer, one.name) for one in fields(own.signer)}
    return ContractAuthorizer(**values).voucher(PRICE)


def pay_in_another_token(own: OwnChannel) -> Json:
    return own.signs(asset=replace(own.signer.asset, token=OTHER)).signer.voucher(PRICE)


def deposit(units: int = DEPOSIT, ceiling: int = NEXT) -> Callable[[OwnChannel], Json]:
    return lambda own: own.signs(deposit_salt=fresh_salt()).signer.deposit(units, ceiling=ceiling)


INVALID = AuthorizationReason.UNREADABLE.value
ATTACKS = {
    "a forged channelId": Attack(reason=ChannelReason.CHANNEL_ID, forge=of_voucher("channelId", "0x" + "ab" * 32)),
    "a voucher of another channel": Attack(reason=ChannelReason.VOUCHER_SIGNATURE, pay=sign_for_another_channel),
    "a voucher of another wallet": Attack(reason=ChannelReason.VOUCHER_SIGNATURE, pay=sign_as_stranger),
    "a ceiling raised after it was signed": Attack(reason=ChannelReason.VOUCHER_SIGNATURE, forge=of_voucher("maxClaimableAmount", str(NEXT + 1))),
    "a ceiling of one unit too little": Attack(reason=ChannelReason.CUMULATIVE_MISMATCH, pay=lambda own: own.signer.voucher(NEXT - 1)),
    "a ceiling of one unit too much": Attack(reason=ChannelReason.CUMULATIVE_MISMATCH, pay=lambda own: own.signer.voucher(NEXT + 1)),
    "the last ceiling again": Attack(reason=ChannelReason.CUMULATIVE_MISMATCH, pay=lambda own: own.signer.voucher(PRICE)),
    "a ceiling of nothing": Attack(reason=ChannelReason.BELOW_CLAIMED, pay=lambda own: own.signer.voucher(0)),
    "the highest ceiling": Attack(reason=ChannelReason.CUMULATIVE_MISMATCH, pay=lambda own: own.signer.voucher(CHANNEL_AMOUNT_MAX)),
    "a ceiling above 128 bits": Attack(reason=INVALID, status=400, forge=of_voucher("maxClaimableAmount", str(2**128))),
    "a ceiling of a thousand digits": Attack(reason=INVALID, status=400, forge=of_voucher("maxClaimableAmount", "9" * 1_000)),
    "a payerAuthorizer of zero": Attack(reason=ChannelReason.VOUCHER_SIGNATURE, forge=of_config("payerAuthorizer", str(ZERO_ADDRESS))),
    "a payerAuthorizer with code": Attack(reason=ChannelReason.VOUCHER_SIGNATURE, pay=delegate_to_contract),
    "another token": Attack(reason=ChannelReason.TOKEN, pay=pay_in_another_token),
    "a config changed after it was signed": Attack(reason=ChannelReason.CHANNEL_ID, forge=of_config("payerAuthorizer", str(SETTLEMENT_CONTRACT))),
    "another receiver": Attack(reason=ChannelReason.RECEIVER, signed={"receiver": OTHER}),
    "another delay": Attack(reason=ChannelReason.WITHDRAW_DELAY, signed={"withdraw_delay": 901}),
    "a delay that no contract takes": Attack(reason=ChannelReason.WITHDRAW_DELAY_RANGE, signed={"withdraw_delay": 1}),
    "an authorizer of another gateway": Attack(reason=ChannelReason.RECEIVER_AUTHORIZER, signed={"authorizer": STRANGER}),
    "a channel without money": Attack(reason=ChannelReason.NOT_FOUND, signed={"salt": b"\x02" * 32}, pay=lambda own: own.signer.voucher(PRICE)),
    "a deposit with the salt of another one": Attack(reason=ChannelReason.DEPOSIT_SIGNATURE, pay=deposit(), forge=of_deposit("salt", "0x" + "5a" * 32)),
    "a deposit of another wallet's money": Attack(reason=ChannelReason.DEPOSIT_SIGNATURE, pay=deposit(), forge=of_deposit("signature", "0x" + "11" * 32 + "22" * 32 + "1b")),
    "a deposit below the least": Attack(reason=ChannelReason.DEPOSIT_TOO_SMALL, pay=deposit(PRICE - 1)),
    "a deposit of more than the wallet has": Attack(reason=ChannelReason.INSUFFICIENT_BALANCE, pay=deposit(10**12)),
    "the highest deposit": Attack(reason=ChannelReason.INSUFFICIENT_BALANCE, pay=deposit(CHANNEL_AMOUNT_MAX)),
    "a refund in place of a call": Attack(reason=ChannelReason.PAYLOAD_TYPE, pay=lambda own: own.signer.refund(ceiling=PRICE)),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_a_false_payment_buys_nothing_and_moves_nothing(
    stall: ChannelListing, own: OwnChannel, attack: Attack
) -> None:
    cheat = own.signs(**(attack.signed or {}))
    before = await take_stock(own)
    reply = await cheat.pay(attack.pay(cheat), edit=attack.forge)
    assert (reply.status, reply.json["reason"]) == (attack.status, attack.reason), reply.body
    assert reply.json["paymentState"] == "none"
    assert "PAYMENT-RESPONSE" not in reply.headers
    assert await take_stock(own) == before


async def take_stock(own: OwnChannel) -> tuple[Any, ...]:
    """What no attack may change."""
    return (
        own.seen,
        await own.read(),
        await own.escrow(),
        await own.wallet_units(),
        await own.states(),
        await own.stall.pending(),
    )


async def test_a_deposit_shown_again_after_a_refund_buys_nothing(stall: ChannelListing) -> None:
    own = await stall.open_channel()
    await own.fill(DEPOSIT)
    refunded = await own.refund(ceiling=PRICE)
    assert (refunded.status, read_receipt(refunded)["amount"]) == (200, str(DEPOSIT - PRICE))
    before = await take_stock(own)

    replayed = await own.deposit(DEPOSIT, ceiling=NEXT)

    assert (replayed.status, replayed.json["reason"]) == (402, ChannelReason.CUMULATIVE_MISMATCH)
    assert await take_stock(own) == before
    assert await own.count_deposits() == 1
    await stall.check_ledger()


async def test_a_refund_while_a_call_runs_leaves_its_money(stall: ChannelListing) -> None:
    own = await stall.open_channel()
    await own.fill(DEPOSIT)
    async with asyncio.TaskGroup() as group:
        async with stall.cluster.holding():
            call = group.create_task(own.spend(NEXT))
            await poll(lambda: own.seen == 2, what="a call under way")
            refund = group.create_task(own.refund(ceiling=PRICE))
        assert (await call).status == 200
        refused = await refund
    assert refused.code == "channel_busy" or refused.json["reason"] == ChannelReason.CUMULATIVE_MISMATCH
    assert await own.escrow() == (DEPOSIT, 0)
    refunded = await own.refund(ceiling=NEXT)
    assert (refunded.status, read_receipt(refunded)["amount"]) == (200, str(DEPOSIT - NEXT))
    assert (await own.escrow(), await own.states()) == ((NEXT, NEXT), ["charged", "charged"])
    await stall.check_ledger()
