"""Sample payments, claims and closes for tests of the ledger and of its stores. Every field can be given."""

import asyncio
from dataclasses import replace
from itertools import count
from typing import Any

from tests.kit.waits import DEADLINE_S
from tollway.audit_log import AuditOrigin
from tollway.ids import Address, CallId, ChainId, ListingId, TxHash, keccak256
from tollway.ledger.ledger import Claim, Close, Finish
from tollway.ledger.records import (
    Authorization,
    CallState,
    Cover,
    Delivery,
    Dialect,
    NewPayment,
    Payment,
    SettledTransfer,
    SettlementAttempt,
)

CHAIN = ChainId(84532)
USDC = "0x036cbd53842c5426634e7929541ec2318f3dcf7e"
PAYER = Address(b"\xaa" * 20)
PAYEE = Address(b"\xbb" * 20)
PROVIDER = Address(b"\xcc" * 20)
GAS_KEY = Address(b"\xdd" * 20)
NOW_MS = 1_800_000_000_000

_NUMBERS = count(1)


def operator_origin(at_ms: int = NOW_MS, *, reason: str = "") -> AuditOrigin:
    """an entry of the audit log at that time."""
    return AuditOrigin(actor="alice@desk.example", at_ms=at_ms, reason=reason)


def tx_hash(name: str) -> TxHash:
    return TxHash(keccak256(name.encode()))


def new_payment(value_units: int, name: str = "tx", **fields: Any) -> NewPayment:
    """A payment of USDC from PAYER to PAYEE, final unless said otherwise."""
    defaults: dict[str, Any] = {
        "chain_id": CHAIN,
        "tx_hash": tx_hash(name),
        "asset": USDC,
        "payer": PAYER,
        "payee": PAYEE,
        "value_units": value_units,
        "block_number": 100,
        "block_hash": b"\x01" * 32,
        "block_time": NOW_MS // 1000,
        "is_final": True,
    }
    return NewPayment(**{**defaults, **fields})


def claim_on(payment: Payment | None, price_units: int = 1, **fields: Any) -> Claim:
    """A claim of a new call on a payment; on None a free call."""
    number = next(_NUMBERS)
    defaults: dict[str, Any] = {
        "call_id": CallId(f"call_{number:08}"),
        "listing_id": ListingId("api_1"),
        "listing_name": "Quotes",
        "provider": PROVIDER,
        "payer": payment.payer if payment else None,
        "method": "GET",
        "path": "/quote",
        "digest": keccak256(str(number).encode()),
        "price": "0.01",
        "price_units": price_units if payment else 0,
        "currency": "USDC",
        "payment_id": payment.id if payment else None,
        "chain_id": payment.chain_id if payment else None,
        "asset": payment.asset if payment else None,
        "decimals": 6,
        "tx_hash": payment.tx_hash if payment else None,
        "pay_to": payment.payee if payment else None,
        "nonce": None,
        "ends_plain": False,
        "is_plain": False,
        "idempotency_key": None,
        "request_id": f"request-{number}",
        "created_ms": NOW_MS + number,
    }
    return Claim(**{**defaults, **fields})


def authorization_of(base_units: int = 1, **fields: Any) -> Authorization:
    """An authorisation of USDC from PAYER to PAYEE with a nonce of its own."""
    defaults: dict[str, Any] = {
        "chain_id": CHAIN,
        "token": Address(bytes.fromhex(USDC[2:])),
        "payer": PAYER,
        "payee": PAYEE,
        "base_units": base_units,
        "valid_after": 0,
        "valid_before": NOW_MS // 1000 + 120,
        "nonce": keccak256(f"nonce {next(_NUMBERS)}".encode()),
        "signature": b"\x05" * 65,
        "dialect": Dialect.X402_V2,
    }
    return Authorization(**{**defaults, **fields})


def authorized_claim(
    authorization: Authorization, balance_units: int = 10**9, block_number: int = 100, **fields: Any
) -> Claim:
    """A claim of a new call that is paid by an authorisation, on a balance seen at a block."""
    defaults: dict[str, Any] = {
        "payer": authorization.payer,
        "price_units": authorization.base_units,
        "chain_id": authorization.chain_id,
        "asset": authorization.asset,
        "pay_to": authorization.payee,
        "authorization": authorization,
        "cover": Cover(balance_units=balance_units, block_number=block_number),
    }
    return replace(claim_on(None), **{**defaults, **fields})


def attempt_of(claim: Claim, nonce: int = 0, name: str = "", **fields: Any) -> SettlementAttempt:
    """A signed transaction that settles a claim; its hash is made of `name`, or of the call and the nonce."""
    defaults: dict[str, Any] = {
        "chain_id": CHAIN,
        "tx_hash": tx_hash(name or f"{claim.call_id} {nonce}"),
        "call_id": claim.call_id,
        "listing_id": claim.listing_id,
        "sender": GAS_KEY,
        "nonce": nonce,
        "raw": b"\x02signed",
        "fee_max_wei": 1_000,
        "created_ms": NOW_MS,
    }
    return SettlementAttempt(**{**defaults, **fields})


def transfer_in(name: str = "settled", **fields: Any) -> SettledTransfer:
    defaults: dict[str, Any] = {
        "tx_hash": tx_hash(name),
        "block_number": 101,
        "block_hash": b"\x02" * 32,
        "block_time": NOW_MS // 1000,
    }
    return SettledTransfer(**{**defaults, **fields})


def close_of(claim: Claim, after: CallState = CallState.CONSUMED, **fields: Any) -> Close:
    """The end of a claimed call, first epoch."""
    defaults: dict[str, Any] = {
        "call_id": claim.call_id,
        "epoch": 1,
        "after": after,
        "http_status": 200,
        "upstream_status": 200,
        "latency_ms": 12,
        "upstream_latency_ms": 10,
        "error": None,
    }
    return Close(**{**defaults, **fields})


def finish_of(claim: Claim, **fields: Any) -> Finish:
    defaults: dict[str, Any] = {
        "call_id": claim.call_id,
        "epoch": 1,
        "delivery": Delivery.COMPLETE,
        "request_bytes": 3,
        "response_bytes": 1000,
        "completed_ms": NOW_MS + 50,
    }
    return Finish(**{**defaults, **fields})


async def wait_finished(ledger: Any, call_id: CallId) -> None:
    """A finish is written without a hurry, and on PostgreSQL beside the claims that come behind it."""
    async with asyncio.timeout(DEADLINE_S):
        while (await ledger.find_call(call_id)).delivery is None:
            await asyncio.sleep(0)
