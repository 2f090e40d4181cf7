"""What a wallet's own node says once it is final: the only word by which a signed payment stops counting. Sub-flows of
the payer. Pure; they yield steps.

A released authorisation can be cashed until its `validBefore` (EIP-3009: the token compares it with the block's
timestamp). A final block of that time or later in which the token does not know the nonce ends that for good. A
transaction that a receipt calls reverted can be replaced by a reorganisation until its block is final.

A node that is away, refuses or answers nonsense changes nothing: what is signed goes on counting.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tollway.client.steps import (
    BUDGET,
    AuthorizationState,
    FindReleasedAuthorizations,
    Flow,
    NodeError,
    NodeResult,
    NodeUnavailable,
    OverBudget,
    QueryNode,
    RecordAuthorizationState,
    SignedAuthorization,
    StoreAuthorization,
    StoreOutcome,
    StoreTransfer,
)
from tollway.ids import ChainId, TxHash, keccak256

FINAL_DEPTH = 4_800
"""Blocks behind the head that count as final where a node knows no `finalized`: the deepest of the presets."""

_AUTHORIZATION_STATE = keccak256(b"authorizationState(address,bytes32)")[:4]
_QUANTITY = re.compile(r"0x[0-9a-fA-F]{1,64}")
_STATES = {
    "0x" + "0" * 64: AuthorizationState.EXPIRED,
    "0x" + "0" * 63 + "1": AuthorizationState.CHARGED,
}
"""What `authorizationState` answers, after `validBefore`: unused, used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalBlock:
    """A block that no reorganisation replaces, by the word of one node. `time_s`: its timestamp."""

    number: int
    time_s: int


def parse_quantity(value: object) -> int | None:
    """A JSON-RPC quantity: `0x` + hex. None for everything else."""
    if not isinstance(value, str) or not _QUANTITY.fullmatch(value):
        return None
    return int(value, 16)


def fetch_final_block(chain_id: ChainId) -> Flow[FinalBlock | None]:
    """The newest final block; one `FINAL_DEPTH` below the head where the node knows no `finalized`."""
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
    """A second look at a transaction that a first receipt calls reverted: the node must have finalised its block, and
    say the same again."""
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


def expire_released() -> Flow[frozenset[bytes]]:
    """Looks at released authorisations whose time is over, and gives the nonces of those that can never be cashed.

    At most one block and `authorization_rows.RELEASED_MAX` looks for each chain. One that was cashed after all is
    written down as charged.
    """
    released = yield FindReleasedAuthorizations()
    assert isinstance(released, tuple)
    by_chain: dict[ChainId, list[SignedAuthorization]] = {}
    for signed in released:
        if isinstance(signed, SignedAuthorization):
            by_chain.setdefault(signed.asset.chain_id, []).append(signed)
    expired: set[bytes] = set()
    for chain_id, waiting in by_chain.items():
        final = yield from fetch_final_block(chain_id)
        if final is not None:
            expired |= yield from _expire_before(final, waiting)
    return frozenset(expired)


def _expire_before(final: FinalBlock, waiting: Sequence[SignedAuthorization]) -> Flow[frozenset[bytes]]:
    expired: set[bytes] = set()
    for signed in waiting:
        if final.time_s < signed.valid_before:  # a token takes it while the time of its block is below that
            continue
        outcome = yield _query_state(signed, hex(final.number))
        if isinstance(outcome, NodeError):
            # A node that keeps few states knows the head alone. What is unused there was unused in every block before.
            outcome = yield _query_state(signed, "latest")
        if not isinstance(outcome, NodeResult):
            break
        state = _STATES.get(str(outcome.result).lower())
        if state is not None:
            yield RecordAuthorizationState(nonce=signed.nonce, state=state)
        if state is AuthorizationState.EXPIRED:
            expired.add(signed.nonce)
    return frozenset(expired)


def _query_state(signed: SignedAuthorization, block: str) -> QueryNode:
    calldata = _AUTHORIZATION_STATE + bytes(12) + signed.payer + signed.nonce
    call_object = {"to": str(signed.asset.token), "data": "0x" + calldata.hex()}
    return QueryNode(chain_id=signed.asset.chain_id, method="eth_call", params=(call_object, block))


def store_in_budget(step: StoreTransfer | StoreAuthorization) -> Flow[StoreOutcome]:
    """Stores. Where the wallet's budget is exhausted, first asks the chain which released authorisations have ended,
    and stores once more if that frees anything."""
    outcome = yield step
    if isinstance(outcome, OverBudget) and outcome.limit == BUDGET and (yield from expire_released()):
        outcome = yield step
    assert isinstance(outcome, StoreOutcome)
    return outcome
