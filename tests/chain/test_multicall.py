"""Calldata and results of Multicall3's `aggregate3`, compared with eth-abi's."""

import pytest
from eth_abi.abi import encode
from hypothesis import given
from hypothesis import strategies as st

from tollway.chain.multicall import CallReturn, ContractCall, encode_calls, parse_calls, parse_returns
from tollway.ids import Address, keccak256

CALLS = st.lists(
    st.builds(
        ContractCall,
        to=st.binary(min_size=20, max_size=20).map(Address),
        calldata=st.binary(max_size=100),
        may_fail=st.booleans(),
    ),
    max_size=4,
).map(tuple)
RETURNS = st.lists(
    st.builds(CallReturn, succeeded=st.booleans(), payload=st.binary(max_size=100)), max_size=4
)


@given(calls=CALLS)
def test_calls_are_encoded_as_eth_abi_does_and_parsed_again(calls: tuple[ContractCall, ...]) -> None:
    calldata = encode_calls(calls)
    rows = [(str(call.to), call.may_fail, call.calldata) for call in calls]
    assert calldata[:4] == keccak256(b"aggregate3((address,bool,bytes)[])")[:4] == bytes.fromhex("82ad56cb")
    assert calldata[4:] == encode(["(address,bool,bytes)[]"], [rows])
    assert parse_calls(calldata) == calls


@given(returns=RETURNS)
def test_results_are_parsed(returns: list[CallReturn]) -> None:
    payload = encode(["(bool,bytes)[]"], [[(one.succeeded, one.payload) for one in returns]])
    assert parse_returns(payload) == tuple(returns)


WHOLE = encode(["(bool,bytes)[]"], [[(True, b"one"), (False, b"two")]])


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        bytes(31),
        WHOLE[:-32],
        WHOLE[:64],
        b"\xff" * 64,
        (32).to_bytes(32, "big") + b"\xff" * 32,
        (32).to_bytes(32, "big") + (1).to_bytes(32, "big") + b"\xff" * 32,
    ],
)
def test_refuses_other_results(payload: bytes) -> None:
    with pytest.raises(ValueError, match="payload"):
        parse_returns(payload)


def test_refuses_calldata_of_another_function() -> None:
    with pytest.raises(ValueError, match="aggregate3"):
        parse_calls(b"\xde\xad\xbe\xef" + WHOLE)
