"""Sample channels, vouchers and deposits, and the steps of a test with them. `ledger`: in memory or over a database, so its type is `Any`."""

from dataclasses import replace
from typing import Any

from tests.kit.channel_payer import ChannelPayer
from tests.kit.ledger_records import (
    CHAIN,
    NOW_MS,
    PAYEE,
    PAYER,
    PROVIDER,
    USDC,
    authorization_of,
    claim_on,
    close_of,
)
from tests.kit.narrowing import of_type
from tollway.chain.channel_contract import ChannelConfig
from tollway.ids import Address, keccak256
from tollway.ledger.channels import Channel, ChannelClaim, ChannelFacts, ChannelState, Voucher
from tollway.ledger.ledger import Claim, Claimed, Closed
from tollway.ledger.records import CallState, ChannelDeposit, Cover

TOKEN = Address(bytes.fromhex(USDC[2:]))
COLLECTOR = Address(b"\x40\x20" + b"\x04" * 18)
OPENED_BLOCK = 100
UNCLAIMED_MAX = 5_000_000


def config_of(name: str = "channel", **fields: Any) -> ChannelConfig:
    """Of PAYER for PAYEE."""
    defaults: dict[str, Any] = {
        "payer": PAYER,
        "payer_authorizer": PAYER,
        "receiver": PAYEE,
        "receiver_authorizer": PROVIDER,
        "token": TOKEN,
        "withdraw_delay": 900,
        "salt": keccak256(name.encode()),
    }
    return ChannelConfig(**{**defaults, **fields})


def facts_of(balance: int = 0, **fields: Any) -> ChannelFacts:
    defaults: dict[str, Any] = {
        "balance": balance,
        "total_claimed": 0,
        "refund_nonce": 0,
        "withdrawal_amount": 0,
        "withdrawal_since_s": 0,
        "block_number": OPENED_BLOCK,
    }
    return ChannelFacts(**{**defaults, **fields})


def sample_channel(payer: ChannelPayer, key: int, facts: ChannelFacts, **fields: Any) -> Channel:
    """An open channel of a ledger, with the balance of its facts and without a call."""
    defaults: dict[str, Any] = {
        "chain_id": payer.asset.chain_id,
        "decimals": 6,
        "start_units": 0,
        "balance_units": facts.balance,
        "taken_units": 0,
        "announced": 0,
        "published": 0,
        "spent": None,
        "waiting": None,
        "candidate": None,
        "state": ChannelState.OPEN,
        "reserved_call": None,
        "reserved_state": None,
    }
    names: dict[str, Any] = {"key": key, "payment_id": key, "id": payer.channel_id, "config": payer.config}
    return Channel(**names, facts=facts, **{**defaults, **fields})


async def open_channel(
    ledger: Any,
    balance: int = 1_000,
    name: str = "channel",
    *,
    decimals: int = 6,
    payer: Address = PAYER,
    **facts: Any,
) -> Channel:
    config = config_of(name, payer=payer, payer_authorizer=payer)
    found: Channel = await ledger.open_channel(
        CHAIN,
        keccak256(b"id" + config.salt),
        config,
        facts_of(balance, **facts),
        decimals=decimals,
        now_ms=NOW_MS,
    )
    return found


async def reread(ledger: Any, channel: Channel) -> Channel:
    return of_type(Channel, await ledger.find_channel(channel.chain_id, channel.id))


def voucher_of(ceiling: int) -> Voucher:
    return Voucher(ceiling=ceiling, signature=ceiling.to_bytes(65, "big"))


def voucher_claim(
    channel: Channel, price_units: int = 10, *, ceiling: int | None = None, **fields: Any
) -> Claim:
    """A claim of a new call by a voucher alone, over the announced sum and the price."""
    shown = ChannelClaim(
        channel_id=channel.id,
        voucher=voucher_of(channel.announced + price_units if ceiling is None else ceiling),
        step_units=price_units,
        deposit_units=0,
        unclaimed_max=UNCLAIMED_MAX,
    )
    defaults: dict[str, Any] = {
        "payer": channel.config.payer,
        "price_units": price_units,
        "payment_id": channel.payment_id,
        "chain_id": channel.chain_id,
        "asset": USDC,
        "pay_to": channel.config.receiver,
        "channel": shown,
    }
    return replace(claim_on(None), **{**defaults, **fields})


def deposit_claim(
    channel: Channel,
    deposit_units: int = 500,
    price_units: int = 10,
    *,
    nonce: bytes | None = None,
    **fields: Any,
) -> Claim:
    """A claim of a new call by a voucher and a deposit."""
    salt = keccak256(b"salt" + claim_on(None).digest)
    deposit = ChannelDeposit(config=channel.config, channel_id=channel.id, salt=salt)
    authorization = authorization_of(
        deposit_units, payee=COLLECTOR, deposit=deposit, nonce=nonce or keccak256(channel.id + salt)
    )
    claim = voucher_claim(channel, price_units)
    assert claim.channel is not None
    defaults: dict[str, Any] = {
        "payment_id": None,
        "channel": replace(claim.channel, deposit_units=deposit_units),
        "authorization": authorization,
        "cover": Cover(balance_units=10**9, block_number=OPENED_BLOCK),
    }
    return replace(claim, **{**defaults, **fields})


async def open_call(ledger: Any, channel: Channel, price_units: int = 10, **fields: Any) -> Claim:
    """A granted call on the channel as the ledger has it now."""
    claim = voucher_claim(await reread(ledger, channel), price_units, **fields)
    assert isinstance(await ledger.claim(claim), Claimed)
    return claim


async def end_call(ledger: Any, claim: Claim, after: CallState = CallState.CONSUMED, **fields: Any) -> Closed:
    if after is CallState.UNKNOWN:
        fields.setdefault("upstream_status", None)
    return of_type(Closed, await ledger.close(close_of(claim, after, **fields)))


async def buy(ledger: Any, channel: Channel, price_units: int = 10, **fields: Any) -> Claim:
    """A call on the channel that is charged."""
    claim = await open_call(ledger, channel, price_units, **fields)
    await end_call(ledger, claim)
    return claim


async def open_deposit(ledger: Any, channel: Channel, deposit_units: int = 500, **fields: Any) -> Claim:
    """A granted call with a deposit."""
    claim = deposit_claim(await reread(ledger, channel), deposit_units, **fields)
    assert isinstance(await ledger.claim(claim), Claimed)
    return claim


async def owe_on(
    ledger: Any, units: int, name: str = "channel", *, balance: int = 10**6, **config: Any
) -> Channel:
    """A channel with one charged call. `config`: other fields of its config."""
    own = config_of(name, **config)
    channel: Channel = await ledger.open_channel(
        CHAIN, keccak256(b"id" + own.salt), own, facts_of(balance), decimals=6, now_ms=NOW_MS
    )
    if units:
        await buy(ledger, channel, units)
    return await reread(ledger, channel)
