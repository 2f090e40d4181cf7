"""A transfer with a head older than `validAfter`: simulated again at the first valid time, which counts only where the node's next
block is not earlier."""

from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from tollway.chain.nodes import RpcNode, open_session
from tollway.chain.port import AuthorizationFacts
from tollway.chain.requests import read_authorization
from tollway.chain.responses import UnusableResponse
from tollway.ids import Address, ChainId
from tollway.limits import Limits

CHAIN = ChainId(84532)
HEAD_TIME = 1_700_000_010
VALID_AFTER = HEAD_TIME + 100
FIRST_MOMENT = hex(VALID_AFTER + 1)
REVERT = {"!error": {"code": 3, "message": "execution reverted", "data": "0xdead"}}
NOT_KNOWN = {"!error": {"code": -32602, "message": "too many arguments, want at most 3"}}
WORD = "0x{:064x}".format
UPCOMING = {"number": "0xb", "hash": None, "timestamp": hex(VALID_AFTER + 1)}


def know_idle_chain(script: Any, *, upcoming: object = UPCOMING, **later: object) -> list[list[Any]]:
    """A token that accepts the transfer from `FIRST_MOMENT` on. The requests about that time are recorded."""
    told = {"eth_call": "0x", "eth_estimateGas": "0xea60", **later}
    asked: list[list[Any]] = []

    def answer(method: str) -> Callable[[list[Any]], object]:
        def read(params: list[Any]) -> object:
            if params[0]["data"] != "0xcafe":
                return WORD(500) if params[0]["data"].startswith("0x70a08231") else WORD(0)
            if len(params) < 4:
                return REVERT
            asked.append(params)
            return told[method]

        return read

    script.blocks["pending"] = upcoming
    script.answers |= {
        "eth_getCode": "0x",
        "eth_call": answer("eth_call"),
        "eth_estimateGas": answer("eth_estimateGas"),
    }
    return asked


async def look(url: str, *, valid_after: int = VALID_AFTER) -> AuthorizationFacts:
    node = RpcNode(url, chain_id=CHAIN, position=1, limits=Limits(), clock=lambda: 0.0, on_request=None)
    session: aiohttp.ClientSession = open_session()
    async with session:
        return await read_authorization(
            node,
            session,
            CHAIN,
            token=Address(b"\xc3" * 20),
            payer=Address(b"\xa1" * 20),
            nonce=b"\x09" * 32,
            sender=Address(b"\xd4" * 20),
            to=Address(b"\xc3" * 20),
            calldata=b"\xca\xfe",
            gas=200_000,
            valid_after=valid_after,
            bytes_max=4096,
        )


async def test_a_transfer_valid_in_the_next_block_counts_although_the_head_is_old(make_node) -> None:
    script, url = await make_node()
    asked = know_idle_chain(script)
    facts = await look(url)
    assert (facts.simulation.reverted, facts.gas_estimate) == (False, 60_000)
    assert (facts.head_number, facts.head_time) == (10, HEAD_TIME)
    assert len(script.batches) == 2
    # The state of the head: only its clock is another. And the earliest moment, not the latest.
    assert [params[1:] for params in asked] == [["latest", {}, {"time": FIRST_MOMENT}]] * 2


@pytest.mark.parametrize(
    ("upcoming", "later"),
    [
        pytest.param({**UPCOMING, "timestamp": hex(VALID_AFTER)}, {}, id="the next block is too early as well"),
        pytest.param({**UPCOMING, "timestamp": hex(HEAD_TIME)}, {}, id="pending is the head"),
        pytest.param(None, {}, id="no pending block"),
        pytest.param(NOT_KNOWN, {}, id="the tag is not known"),
        pytest.param(UPCOMING, {"eth_call": REVERT}, id="it passes at no time"),
        pytest.param(UPCOMING, {"eth_call": NOT_KNOWN}, id="calls have no other clock"),
        pytest.param(UPCOMING, {"eth_estimateGas": NOT_KNOWN}, id="estimates have no other clock"),
        pytest.param(UPCOMING, {"eth_estimateGas": REVERT}, id="no gas is enough"),
    ],
)  # fmt: skip
async def test_a_transfer_without_a_later_simulation_stays_refused(
    make_node, upcoming: object, later: Any
) -> None:
    script, url = await make_node()
    know_idle_chain(script, upcoming=upcoming, **later)
    facts = await look(url)
    assert (facts.simulation.reverted, facts.simulation.payload) == (True, b"\xde\xad")
    assert facts.gas_estimate is None


async def test_a_transfer_that_is_valid_at_the_head_is_simulated_once(make_node) -> None:
    script, url = await make_node()
    asked = know_idle_chain(script)
    facts = await look(url, valid_after=HEAD_TIME - 1)
    assert facts.simulation.reverted
    assert (len(script.batches), asked) == (1, [])


async def test_a_next_block_without_a_time_is_unusable(make_node) -> None:
    script, url = await make_node()
    know_idle_chain(script, upcoming={"number": "0xb"})
    with pytest.raises(UnusableResponse):
        await look(url)
