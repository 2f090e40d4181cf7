"""Each response of a node about final blocks -> the payments that stop counting. Every other response changes nothing."""

import pytest

from tests.kit.call_io import ScriptedNode, build_authorization
from tollway.client.call_io import (
    AuthorizationState,
    NodeError,
    NodeResult,
    NodeUnavailable,
)
from tollway.client.exchange import run_blocking
from tollway.client.finality import (
    FINAL_DEPTH,
    FinalBlock,
    check_lapsed,
    fetch_final_block,
    is_finally_reverted,
)
from tollway.ids import Address, ChainId, TxHash
from tollway.money import Asset

CHAIN, TX = ChainId(84532), TxHash(b"\x0a" * 32)
REFUSED, AWAY = NodeError(code=-32000, message="no"), NodeUnavailable(detail="away")
UNUSED, USED = "0x" + "0" * 64, "0x" + "0" * 63 + "1"


def block(number=100, time_s=1_000):
    return NodeResult(result={"number": hex(number), "timestamp": hex(time_s)})


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ([block()], FinalBlock(number=100, time_s=1_000)),
        ([AWAY], None),
        ([REFUSED, NodeResult(result=hex(FINAL_DEPTH + 7)), block(7)], FinalBlock(number=7, time_s=1_000)),
        (
            [NodeResult(result=None), NodeResult(result=hex(FINAL_DEPTH)), block(0)],
            FinalBlock(number=0, time_s=1_000),
        ),
        ([REFUSED, NodeResult(result=hex(FINAL_DEPTH - 1))], None),
        ([REFUSED, NodeResult(result="nonsense")], None),
        ([REFUSED, AWAY], None),
        ([REFUSED, NodeResult(result=hex(FINAL_DEPTH)), AWAY], None),
        ([NodeResult(result={"number": "0x1"}), REFUSED], None),
        ([NodeResult(result={"number": 1, "timestamp": "0x1"}), REFUSED], None),
    ],
)
def test_the_final_block_is_the_nodes_or_a_deep_one(answers, found):
    node = ScriptedNode(answers)
    assert run_blocking(fetch_final_block(node, CHAIN)) == found
    assert node.responses == []


def receipt(**changes):
    return NodeResult(result={"transactionHash": str(TX), "blockNumber": "0x64", "status": "0x0", **changes})


@pytest.mark.parametrize(
    ("final", "told", "is_reverted"),
    [
        (block(100), receipt(), True),
        (block(99), receipt(), False),
        (AWAY, receipt(), False),
        (block(100), receipt(status="0x1"), False),
        (block(100), receipt(status=None), False),
        (block(100), receipt(blockNumber=None), False),
        (block(100), receipt(transactionHash="0x" + "0b" * 32), False),
        (block(100), NodeResult(result=None), False),
        (block(100), REFUSED, False),
        (block(100), AWAY, False),
    ],
)
def test_a_revert_counts_after_a_second_read_in_a_final_block(final, told, is_reverted):
    assert run_blocking(is_finally_reverted(ScriptedNode([final, told]), CHAIN, TX)) is is_reverted


def authorization(number, *, chain=84532, valid_before=1_000):
    asset = Asset(chain_id=ChainId(chain), token=Address(b"\x05" * 20), symbol="USDC", decimals=6)
    return build_authorization(
        number, asset=asset, valid_before=valid_before, state=AuthorizationState.RELEASED
    )


class LapsedIo(ScriptedNode):
    """A node whose final block is `block()`, and a store with these lapsed authorisations. `recorded`: each state by the number of its
    authorisation."""

    def __init__(self, lapsed, states):
        super().__init__(states)
        self.lapsed = lapsed
        self.recorded = []
        self.methods = []

    async def find_lapsed_authorizations(self, nonce=None):
        assert nonce is None
        return self.lapsed

    async def query_node(self, chain_id, method, *params):
        self.methods.append(method)
        return await super().query_node(chain_id, method, *params) if method == "eth_call" else block()

    async def record_authorization_state(self, nonce, state, *, is_sent_again):
        assert is_sent_again is (state is CHARGED)
        self.recorded.append((nonce[0], state))


def expire(*lapsed, states=()):
    """Returns what is shown of each by its number, what was recorded, and how many requests read the state of a nonce."""
    io = LapsedIo(lapsed, states)
    shown = run_blocking(check_lapsed(io))
    return {nonce[0]: state for nonce, state in shown.items()}, io.recorded, len(states) - len(io.responses)


EXPIRED, CHARGED = AuthorizationState.EXPIRED, AuthorizationState.CHARGED


@pytest.mark.parametrize(
    ("states", "state"),
    [
        ([NodeResult(result=UNUSED)], EXPIRED),
        ([NodeResult(result=USED)], CHARGED),
        ([REFUSED, NodeResult(result=UNUSED)], EXPIRED),  # at the head: it keeps few states
        ([REFUSED, NodeResult(result=USED)], CHARGED),
        ([REFUSED, REFUSED], None),
        ([AWAY], None),
        ([NodeResult(result="0x")], None),
        ([NodeResult(result=None)], None),
        ([NodeResult(result="0x0")], None),
        ([NodeResult(result=UNUSED + "00")], None),
    ],
)
def test_only_the_state_of_the_token_ends_an_authorisation(states, state):
    learnt = [] if state is None else [(1, state)]
    assert expire(authorization(1), states=states) == ({1: state}, learnt, len(states))


def test_a_block_of_its_last_second_is_late_enough_and_one_before_is_not():
    early, late = authorization(1, valid_before=1_001), authorization(2, valid_before=1_000)
    told = expire(early, late, states=[NodeResult(result=UNUSED)])
    assert told == ({1: None, 2: EXPIRED}, [(2, EXPIRED)], 1)


def test_an_unavailable_node_gets_one_request_and_the_next_chain_is_read():
    released = [authorization(1), authorization(2), authorization(3, chain=1)]
    told = expire(*released, states=[AWAY, NodeResult(result=UNUSED)])
    assert told == ({1: None, 2: None, 3: EXPIRED}, [(3, EXPIRED)], 2)


def test_nothing_is_read_where_nothing_has_lapsed():
    io = LapsedIo((), ())
    assert run_blocking(check_lapsed(io)) == {}
    assert (io.methods, io.recorded) == ([], [])
