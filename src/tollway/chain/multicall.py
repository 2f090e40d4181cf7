"""Encodes and parses `aggregate3` of Multicall3, which makes several calls in one transaction. Pure.

Multicall3 has the same address and code on every chain that has it. It has no owner, no rights and no funds, and it calls in its own
name: a called contract cannot use the rights of the account that sent the transaction.

The transaction reverts when a call fails that may not fail. Source: `aggregate3((address,bool,bytes)[])` of Multicall3.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tollway.ids import Address, keccak256

MULTICALL3 = Address.parse("0xcA11bde05977b3631167028862bE2a173976CA11")

_AGGREGATE_SELECTOR = keccak256(b"aggregate3((address,bool,bytes)[])")[:4]
_WORD = 32
_PAD = bytes(12)
_CALL_HEAD = 3 * _WORD


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
    return _AGGREGATE_SELECTOR + _word(_WORD) + _encode_array([_encode_call(call) for call in calls])


def parse_calls(calldata: bytes) -> tuple[ContractCall, ...]:
    """The calls of `encode_calls`. Raises ValueError for other calldata."""
    if calldata[:4] != _AGGREGATE_SELECTOR:
        raise ValueError("not calldata of aggregate3")
    return tuple(
        ContractCall(
            to=Address(_slice(item, 12, 20)),
            calldata=_read_bytes(item, _read_number(item, 2 * _WORD)),
            may_fail=_read_number(item, _WORD) != 0,
        )
        for item in _split_array(calldata[4:])
    )


def parse_returns(payload: bytes) -> tuple[CallReturn, ...]:
    """The results of `aggregate3`. Raises ValueError for other payloads, such as that of an address without code."""
    return tuple(
        CallReturn(succeeded=_read_number(item, 0) != 0, payload=_read_bytes(item, _read_number(item, _WORD)))
        for item in _split_array(payload)
    )


def _encode_call(call: ContractCall) -> bytes:
    length = len(call.calldata)
    head = _PAD + call.to + _word(int(call.may_fail)) + _word(_CALL_HEAD)
    return head + _word(length) + call.calldata + bytes(-length % _WORD)


def _encode_array(items: Sequence[bytes]) -> bytes:
    offsets, place = b"", len(items) * _WORD
    for item in items:
        offsets += _word(place)
        place += len(item)
    return _word(len(items)) + offsets + b"".join(items)


def _split_array(payload: bytes) -> list[bytes]:
    """The items of the only array in the payload; each begins where its offset says and ends with the payload."""
    array = payload[_read_number(payload, 0) :]
    count = _read_number(array, 0)
    items = array[_WORD:]
    if count * _WORD > len(items):
        raise ValueError("the array is longer than the payload")
    return [items[_read_number(items, place * _WORD) :] for place in range(count)]


def _read_bytes(payload: bytes, start: int) -> bytes:
    return _slice(payload, start + _WORD, _read_number(payload, start))


def _read_number(payload: bytes, start: int) -> int:
    return int.from_bytes(_slice(payload, start, _WORD), "big")


def _slice(payload: bytes, start: int, length: int) -> bytes:
    if start + length > len(payload):
        raise ValueError("the payload is too short")
    return payload[start : start + length]


def _word(number: int) -> bytes:
    return number.to_bytes(_WORD, "big")
