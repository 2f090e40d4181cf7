"""Finality by the wallet's own node: the only fact by which a signed payment stops counting as spent. Sub-flows of
`client/flow.py`. Pure; they yield steps.

An authorisation can be settled until its `validBefore` (EIP-3009: the token compares it with the block's
timestamp), with every response of the gateway and without one. In a final block of that time or later, an unused nonce
proves that it can never be settled. A transaction with a reverted receipt can be replaced by a reorganisation until its block is final.

A node that is away, refuses or returns invalid data changes nothing: signed payments go on counting.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tollway.client.errors import BudgetExhausted
from tollway.client.steps import (
    BUDGET,
    ApprovePayment,
    AuthorizationState,
    FindLapsedAuthorizations,
    Flow,
    NodeError,
    NodeResult,
    NodeUnavailable,
    OverBudget,
    PaymentQuote,
    QueryNode,
    RecordAuthorizationState,
    SignedAuthorization,
    StepOutcome,
    StoreAuthorization,
    StoreOutcome,
    StoreTransfer,
)
from tollway.ids import ChainId, TxHash, keccak256

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


def fetch_final_block(chain_id: ChainId) -> Flow[FinalBlock | None]:
    """The newest final block; where the node does not support `finalized`, the block `FINAL_DEPTH` below the head."""
    outcome = yield QueryNode(chain_id=chain_id, method="eth_getBlockByNumber", params=("finalized", False))
    if isinstance(outcome, NodeUnavailable):
        return None
    block = _read_block(outcome.result) if isinstance(outcome, NodeResult) else None
    if block is not None:
        return block
    head = yield QueryNode(chain_id=chain_id, method="eth_blockNumber")
    number = parse_quantity(head.result) if isinstance(head, NodeResult) else None
    if number is None or number < FINAL_DEPTH:
        return None
    deep = hex(number - FINAL_DEPTH)
    outcome = yield QueryNode(chain_id=chain_id, method="eth_getBlockByNumber", params=(deep, False))
    return _read_block(outcome.result) if isinstance(outcome, NodeResult) else None


def _read_block(block: object) -> FinalBlock | None:
    if not isinstance(block, Mapping):
        return None
    number, time_s = parse_quantity(block.get("number")), parse_quantity(block.get("timestamp"))
    return None if number is None or time_s is None else FinalBlock(number=number, time_s=time_s)


# ---- Transactions.


def is_finally_reverted(chain_id: ChainId, tx_hash: TxHash) -> Flow[bool]:
    """Checks again a transaction whose first receipt was reverted: its block must be final, and the receipt still
    reverted."""
    final = yield from fetch_final_block(chain_id)
    if final is None:
        return False
    outcome = yield QueryNode(chain_id=chain_id, method="eth_getTransactionReceipt", params=(str(tx_hash),))
    receipt = outcome.result if isinstance(outcome, NodeResult) else None
    if not isinstance(receipt, Mapping) or receipt.get("transactionHash") != str(tx_hash):
        return False
    mined, status = parse_quantity(receipt.get("blockNumber")), parse_quantity(receipt.get("status"))
    return status == 0 and mined is not None and mined <= final.number


# ---- Authorisations.


def check_lapsed(nonce: bytes | None = None) -> Flow[Mapping[bytes, AuthorizationState | None]]:
    """Checks authorisations after their `validBefore`: what the chain shows of each by its nonce, `EXPIRED` (it can never be settled) or
    `CHARGED`; None where it shows neither yet. `nonce`: only this one.

    Reads at most one block for each chain, and `store.LAPSED_MAX` states. What is shown is recorded.
    """
    lapsed = yield FindLapsedAuthorizations(nonce=nonce)
    assert isinstance(lapsed, tuple)
    by_chain: dict[ChainId, list[SignedAuthorization]] = {}
    for signed in lapsed:
        if isinstance(signed, SignedAuthorization):
            by_chain.setdefault(signed.asset.chain_id, []).append(signed)
    shown: dict[bytes, AuthorizationState | None] = {}
    for chain_id, waiting in by_chain.items():
        shown |= {signed.nonce: None for signed in waiting}
        final = yield from fetch_final_block(chain_id)
        if final is not None:
            shown |= yield from _check_at(final, waiting)
    return shown


def _check_at(
    final: FinalBlock, waiting: Sequence[SignedAuthorization]
) -> Flow[dict[bytes, AuthorizationState]]:
    shown: dict[bytes, AuthorizationState] = {}
    for signed in waiting:
        if final.time_s < signed.valid_before:  # the token still accepts it in a block of this time
            continue
        outcome = yield _query_state(signed, hex(final.number))
        if isinstance(outcome, NodeError):
            # A node without old states has only that of the head. A nonce that is unused there was unused in every block before.
            outcome = yield _query_state(signed, "latest")
        if not isinstance(outcome, NodeResult):
            break
        state = _STATES.get(str(outcome.result).lower())
        if state is not None:
            # One without an outcome has paid its call: the same request sends it again, and pays nothing else.
            is_sent_again = state is AuthorizationState.CHARGED
            yield RecordAuthorizationState(nonce=signed.nonce, state=state, is_sent_again=is_sent_again)
            shown[signed.nonce] = state
    return shown


def _query_state(signed: SignedAuthorization, block: str) -> QueryNode:
    calldata = _AUTHORIZATION_STATE + bytes(12) + signed.payer + signed.nonce
    call_object = {"to": str(signed.asset.token), "data": "0x" + calldata.hex()}
    return QueryNode(chain_id=signed.asset.chain_id, method="eth_call", params=(call_object, block))


def approve_in_budget(quote: PaymentQuote) -> Flow[None]:
    """Passes a payment that the limits allow to the caller, before it is signed. The store decides again when it is signed, because calls at the same
    time share the limits. Raises `BudgetExhausted`."""
    outcome = yield from _repeat_in_budget(ApprovePayment(quote=quote))
    if isinstance(outcome, OverBudget):
        raise BudgetExhausted(outcome.explain(quote))
    assert outcome is None


def store_in_budget(step: StoreTransfer | StoreAuthorization) -> Flow[StoreOutcome]:
    """Stores a payment, or returns why it must not be made."""
    outcome = yield from _repeat_in_budget(step)
    assert isinstance(outcome, StoreOutcome)
    return outcome


def _repeat_in_budget(step: ApprovePayment | StoreTransfer | StoreAuthorization) -> Flow[StepOutcome]:
    """The outcome of the step. Where the wallet's budget is exhausted, checks on the chain which authorisations have expired,
    and takes the step again if one has."""
    outcome = yield step
    if isinstance(outcome, OverBudget) and outcome.limit == BUDGET:
        shown = yield from check_lapsed()
        if AuthorizationState.EXPIRED in shown.values():
            outcome = yield step
    return outcome
