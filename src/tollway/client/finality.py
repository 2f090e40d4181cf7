"""Finality by the wallet's own node: the only fact by which a signed payment stops counting as spent. Sub-flows of
`client/flow.py`.

An authorisation can be settled until its `validBefore` (EIP-3009: the token compares it with the block's
timestamp), with every response of the gateway and without one. In a final block of that time or later, an unused nonce
proves that it can never be settled. A transaction with a reverted receipt can be replaced by a reorganisation until its block is final.

A node that is away, refuses or returns invalid data changes nothing: signed payments go on counting.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tollway.client.call_io import (
    BUDGET,
    AuthorizationState,
    CallIo,
    NodeError,
    NodeIo,
    NodeOutcome,
    NodeResult,
    NodeUnavailable,
    OverBudget,
    PaymentQuote,
    SignedAuthorization,
)
from tollway.client.errors import BudgetExhausted
from tollway.ids import ChainId, TxHash, keccak256

T = TypeVar("T")

FINAL_DEPTH = 4_800
"""The depth that counts as final where a node does not support `finalized`: the deepest of the presets."""

_AUTHORIZATION_STATE = keccak256(b"authorizationState(address,bytes32)")[:4]
_QUANTITY = re.compile(r"0x[0-9a-fA-F]{1,64}")
_STATES = {
    "0x" + "0" * 64: AuthorizationState.EXPIRED,
    "0x" + "0" * 63 + "1": AuthorizationState.CHARGED,
}
"""The meaning of a result of `authorizationState` after `validBefore`: 0 unused, 1 used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalBlock:
    """A block that one node reports as final. `time_s`: its timestamp."""

    number: int
    time_s: int


def parse_quantity(value: object) -> int | None:
    """Parses a JSON-RPC quantity: `0x` + hex. None for any other value."""
    if not isinstance(value, str) or not _QUANTITY.fullmatch(value):
        return None
    return int(value, 16)


async def fetch_final_block(io: NodeIo, chain_id: ChainId) -> FinalBlock | None:
    """The newest final block; where the node does not support `finalized`, the block `FINAL_DEPTH` below the head."""
    outcome = await io.query_node(chain_id, "eth_getBlockByNumber", "finalized", False)
    if isinstance(outcome, NodeUnavailable):
        return None
    block = _read_block(outcome.result) if isinstance(outcome, NodeResult) else None
    if block is not None:
        return block
    head = await io.query_node(chain_id, "eth_blockNumber")
    number = parse_quantity(head.result) if isinstance(head, NodeResult) else None
    if number is None or number < FINAL_DEPTH:
        return None
    deep = hex(number - FINAL_DEPTH)
    outcome = await io.query_node(chain_id, "eth_getBlockByNumber", deep, False)
    return _read_block(outcome.result) if isinstance(outcome, NodeResult) else None


def _read_block(block: object) -> FinalBlock | None:
    if not isinstance(block, Mapping):
        return None
    number, time_s = parse_quantity(block.get("number")), parse_quantity(block.get("timestamp"))
    return None if number is None or time_s is None else FinalBlock(number=number, time_s=time_s)


# ---- Transactions.


async def is_finally_reverted(io: NodeIo, chain_id: ChainId, tx_hash: TxHash) -> bool:
    """Checks again a transaction whose first receipt was reverted: its block must be final, and the receipt still
    reverted."""
    final = await fetch_final_block(io, chain_id)
    if final is None:
        return False
    outcome = await io.query_node(chain_id, "eth_getTransactionReceipt", str(tx_hash))
    receipt = outcome.result if isinstance(outcome, NodeResult) else None
    if not isinstance(receipt, Mapping) or receipt.get("transactionHash") != str(tx_hash):
        return False
    mined, status = parse_quantity(receipt.get("blockNumber")), parse_quantity(receipt.get("status"))
    return status == 0 and mined is not None and mined <= final.number


# ---- Authorisations.


async def check_lapsed(io: CallIo, nonce: bytes | None = None) -> Mapping[bytes, AuthorizationState | None]:
    """Checks authorisations after their `validBefore`: what the chain shows of each by its nonce, `EXPIRED` (it can never be settled) or
    `CHARGED`; None where it shows neither yet. `nonce`: only this one.

    Reads at most one block for each chain, and `store.LAPSED_MAX` states. What is shown is recorded.
    """
    lapsed = await io.find_lapsed_authorizations(nonce)
    by_chain: dict[ChainId, list[SignedAuthorization]] = {}
    for signed in lapsed:
        by_chain.setdefault(signed.asset.chain_id, []).append(signed)
    shown: dict[bytes, AuthorizationState | None] = {}
    for chain_id, waiting in by_chain.items():
        shown |= {signed.nonce: None for signed in waiting}
        final = await fetch_final_block(io, chain_id)
        if final is not None:
            shown |= await _check_at(io, final, waiting)
    return shown


async def _check_at(
    io: CallIo, final: FinalBlock, waiting: Sequence[SignedAuthorization]
) -> dict[bytes, AuthorizationState]:
    shown: dict[bytes, AuthorizationState] = {}
    for signed in waiting:
        if final.time_s < signed.valid_before:  # the token still accepts it in a block of this time
            continue
        outcome = await _query_state(io, signed, hex(final.number))
        if isinstance(outcome, NodeError):
            # A node without old states has only that of the head. A nonce that is unused there was unused in every block before.
            outcome = await _query_state(io, signed, "latest")
        if not isinstance(outcome, NodeResult):
            break
        state = _STATES.get(str(outcome.result).lower())
        if state is not None:
            # One without an outcome has paid its call: the same request sends it again, and pays nothing else.
            is_sent_again = state is AuthorizationState.CHARGED
            await io.record_authorization_state(signed.nonce, state, is_sent_again=is_sent_again)
            shown[signed.nonce] = state
    return shown


async def _query_state(io: NodeIo, signed: SignedAuthorization, block: str) -> NodeOutcome:
    calldata = _AUTHORIZATION_STATE + bytes(12) + signed.payer + signed.nonce
    call_object = {"to": str(signed.asset.token), "data": "0x" + calldata.hex()}
    return await io.query_node(signed.asset.chain_id, "eth_call", call_object, block)


async def approve_in_budget(io: CallIo, quote: PaymentQuote) -> None:
    """Passes a payment that the limits allow to the caller, before it is signed. The store decides again when it is signed, because calls at the same
    time share the limits. Raises `BudgetExhausted`."""
    outcome = await repeat_in_budget(io, partial(io.approve_payment, quote))
    if outcome is not None:
        raise BudgetExhausted(outcome.explain(quote))


async def repeat_in_budget(io: CallIo, decide: Callable[[], Awaitable[T]]) -> T:
    """The decision about a payment. Where the wallet's budget is exhausted, checks on the chain which authorisations have expired,
    and decides again if one has."""
    outcome = await decide()
    if isinstance(outcome, OverBudget) and outcome.limit == BUDGET:
        shown = await check_lapsed(io)
        if AuthorizationState.EXPIRED in shown.values():
            outcome = await decide()
    return outcome
