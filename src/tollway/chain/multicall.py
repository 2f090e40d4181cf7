"""Encodes and parses `aggregate3` of Multicall3, which makes several calls in one transaction. Pure.

Multicall3 has the same address and code on every chain that has it. It has no owner, no rights and no funds, and it calls in its own
name: a called contract cannot use the rights of the account that sent the transaction.

The transaction reverts when a call fails that may not fail. Source: `aggregate3((address,bool,bytes)[])` of Multicall3.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tollway.chain.abi_words import (
    WORD,
    Dynamic,
    compute_selector,
    encode_arguments,
    encode_array,
    encode_bytes,
    read_bytes,
    read_number,
    read_slice,
    split_array,
    word,
)
from tollway.ids import Address

MULTICALL3 = Address.parse("0xcA11bde05977b3631167028862bE2a173976CA11")

_AGGREGATE_SELECTOR = compute_selector("aggregate3((address,bool,bytes)[])")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractCall:
    """One call of the transaction, without value. `may_fail`: the other calls count although this one reverts."""

    to: Address
    calldata: bytes = field(repr=False)
    may_fail: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReturn:
    succeeded: bool
    payload: bytes


def encode_calls(calls: Sequence[ContractCall]) -> bytes:
    """Calldata of `aggregate3`, in this order."""
    encoded = [
        Dynamic(encode_arguments(word(call.to), word(int(call.may_fail)), encode_bytes(call.calldata)))
        for call in calls
    ]
    return _AGGREGATE_SELECTOR + encode_arguments(encode_array(encoded))


def parse_calls(calldata: bytes) -> tuple[ContractCall, ...]:
    """The calls of `encode_calls`. Raises ValueError for other calldata."""
    if calldata[:4] != _AGGREGATE_SELECTOR:
        raise ValueError("not calldata of aggregate3")
    return tuple(
        ContractCall(
            to=Address(read_slice(element, 12, 20)),
            calldata=read_bytes(element, read_number(element, 2 * WORD)),
            may_fail=read_number(element, WORD) != 0,
        )
        for element in split_array(calldata[4:])
    )


def parse_returns(payload: bytes) -> tuple[CallReturn, ...]:
    """The results of `aggregate3`. Raises ValueError for other payloads, such as that of an address without code."""
    return tuple(
        CallReturn(
            succeeded=read_number(element, 0) != 0, payload=read_bytes(element, read_number(element, WORD))
        )
        for element in split_array(payload)
    )
