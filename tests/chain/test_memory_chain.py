"""The chain in memory follows the rules of a real chain; otherwise its tests would prove nothing.
`tests/system/live/test_settlement_chain.py` asks the same of a real node.
"""

from typing import Any

import pytest

from tests.kit.chain import MemoryChain
from tests.kit.narrowing import of_type
from tollway.chain import tokens
from tollway.chain.port import AuthorizationFacts, ChainFacts, NotMined, SendFault, SendRefused
from tollway.chain.signer import GasKey, SignedTransaction
from tollway.errors import ChainUnavailable
from tollway.ids import Address, ChainId

CHAIN = ChainId(84532)
TOKEN, PAYER, PAYEE = (Address(bytes([n]) * 20) for n in (3, 1, 2))
NONCE = b"\x09" * 32
KEY = GasKey.parse("11" * 32)


def calldata(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "payer": PAYER,
        "payee": PAYEE,
        "base_units": 10,
        "valid_after": 0,
        "valid_before": 2**48,
        "nonce": NONCE,
        "signature": bytes(64) + b"\x1b",
    }
    return tokens.encode_transfer_with_authorization(**{**fields, **changes})


def sign(lane_nonce: int = 0, *, max_fee_wei: int = 10**9, **changes: Any) -> SignedTransaction:
    return KEY.sign(
        chain_id=CHAIN,
        nonce=lane_nonce,
        to=TOKEN,
        calldata=calldata(**changes),
        gas=100_000,
        max_fee_wei=max_fee_wei,
        tip_wei=10**6,
    )


@pytest.fixture
def chain() -> MemoryChain:
    chain = MemoryChain(CHAIN)
    chain.fund(CHAIN, TOKEN, PAYER, 15)
    return chain


async def look(chain: MemoryChain, **changes: Any) -> AuthorizationFacts:
    nonce = changes.get("nonce", NONCE)
    return await chain.fetch_authorization(
        CHAIN,
        token=TOKEN,
        payer=PAYER,
        nonce=nonce,
        sender=KEY.address,
        calldata=calldata(**changes),
        gas=200_000,
        valid_after=changes.get("valid_after", 0),
    )


async def test_a_sent_transfer_moves_the_money_once(chain) -> None:
    signed = sign()
    assert not (await look(chain)).simulation.reverted
    assert await chain.send_transaction(CHAIN, signed.raw) is None
    facts = of_type(ChainFacts, await chain.fetch_facts(CHAIN, signed.tx_hash))
    assert tokens.has_settled(facts.logs, token=TOKEN, payer=PAYER, payee=PAYEE, base_units=10, nonce=NONCE)
    assert facts.fee_wei
    assert (chain.balance(CHAIN, TOKEN, PAYER), chain.balance(CHAIN, TOKEN, PAYEE)) == (5, 10)
    after = await look(chain)
    assert (after.is_used, after.simulation.reverted, after.gas_estimate) == (True, True, None)
    assert await chain.send_transaction(CHAIN, signed.raw) is None  # it has it
    assert chain.balance(CHAIN, TOKEN, PAYEE) == 10
    account = await chain.fetch_account(CHAIN, KEY.address)
    assert (account.mined_nonce, account.balance_wei) == (1, 10**18 - facts.fee_wei)


@pytest.mark.parametrize(
    "changes",
    [{"base_units": 16}, {"valid_before": 1}, {"valid_after": 2**40}],
    ids=["too much", "expired", "not yet valid"],
)
async def test_the_rules_of_the_token_hold(chain, changes: dict[str, int]) -> None:
    assert (await look(chain, **changes)).simulation.reverted
    signed = sign(**changes)
    await chain.send_transaction(CHAIN, signed.raw)
    facts = of_type(ChainFacts, await chain.fetch_facts(CHAIN, signed.tx_hash))
    assert (facts.succeeded, facts.logs) == (False, ())
    assert not (await look(chain)).is_used


@pytest.mark.parametrize(("early_s", "is_taken"), [(0, True), (999, True), (1_000, False), (1_001, False)])
async def test_an_idle_chain_simulates_at_its_next_block(early_s: int, is_taken: bool) -> None:
    chain = MemoryChain(CHAIN, block_time_s=1_000)
    chain.fund(CHAIN, TOKEN, PAYER, 15)
    valid_after = (await look(chain)).head_time + early_s
    assert (await look(chain, valid_after=valid_after)).simulation.reverted is not is_taken
    signed = sign(valid_after=valid_after)
    await chain.send_transaction(CHAIN, signed.raw)
    assert of_type(ChainFacts, await chain.fetch_facts(CHAIN, signed.tx_hash)).succeeded is is_taken


async def test_two_in_one_block_share_one_balance(chain) -> None:
    chain.is_automining = False
    first, second = sign(0), sign(1, nonce=b"\x0a" * 32)
    for signed in (second, first):  # the order of a sequence is that of its nonces
        await chain.send_transaction(CHAIN, signed.raw)
    assert await chain.fetch_facts(CHAIN, first.tx_hash) == NotMined(chain_id=CHAIN, is_pending=True)
    chain.mine_sent(CHAIN)
    receipts = await chain.fetch_receipts(CHAIN, [first.tx_hash, second.tx_hash])
    assert [facts.succeeded for facts in receipts.values()] == [True, False]
    assert chain.sent(CHAIN) == ()


async def test_a_later_nonce_waits_for_the_earlier_one(chain) -> None:
    chain.is_automining = False
    late = sign(1)
    await chain.send_transaction(CHAIN, late.raw)
    chain.mine_sent(CHAIN)
    assert isinstance(await chain.fetch_facts(CHAIN, late.tx_hash), NotMined)


async def test_a_higher_fee_replaces_a_waiting_transaction_and_a_lower_one_is_refused(chain) -> None:
    chain.is_automining = False
    signed, bumped = sign(), sign(max_fee_wei=2 * 10**9)
    await chain.send_transaction(CHAIN, signed.raw)
    refused = of_type(SendRefused, await chain.send_transaction(CHAIN, sign(max_fee_wei=10**9 + 1).raw))
    assert refused.fault is SendFault.UNDERPRICED
    assert await chain.send_transaction(CHAIN, bumped.raw) is None
    chain.mine_sent(CHAIN)
    assert isinstance(await chain.fetch_facts(CHAIN, bumped.tx_hash), ChainFacts)
    assert await chain.fetch_facts(CHAIN, signed.tx_hash) == NotMined(chain_id=CHAIN, is_pending=False)
    refused = of_type(SendRefused, await chain.send_transaction(CHAIN, signed.raw))
    assert refused.fault is SendFault.NONCE_TOO_LOW


async def test_a_key_without_gas_is_refused(chain) -> None:
    chain.fund_gas(CHAIN, KEY.address, 1)
    refused = of_type(SendRefused, await chain.send_transaction(CHAIN, sign().raw))
    assert refused.fault is SendFault.INSUFFICIENT_FUNDS


async def test_finds_the_first_use_or_cancellation_of_a_nonce(chain) -> None:
    other = b"\x0a" * 32
    used = chain.settle_by_third_party(CHAIN, TOKEN, payer=PAYER, payee=PAYEE, base_units=10, nonce=NONCE)
    ended = chain.cancel_authorization(CHAIN, TOKEN, payer=PAYER, nonce=other)
    found = [
        await chain.find_authorization_use(CHAIN, token=TOKEN, payer=PAYER, nonce=nonce, from_block=0)
        for nonce in (NONCE, other, b"\x0b" * 32)
    ]
    assert found == [used, ended, None]
    head = chain.head(CHAIN).number
    assert (
        await chain.find_authorization_use(CHAIN, token=TOKEN, payer=PAYER, nonce=NONCE, from_block=head)
        is None
    )
    assert (await look(chain)).is_used
    assert (await look(chain, nonce=other)).is_used
    assert chain.balance(CHAIN, TOKEN, PAYEE) == 10


async def test_a_transfer_can_pass_simulation_and_fail_in_its_block(chain) -> None:
    chain.revert_transfer(CHAIN, PAYER, NONCE)
    assert not (await look(chain)).simulation.reverted
    signed = sign()
    await chain.send_transaction(CHAIN, signed.raw)
    facts = of_type(ChainFacts, await chain.fetch_facts(CHAIN, signed.tx_hash))
    assert not facts.succeeded
    chain.refuse_transfer(CHAIN, PAYER, NONCE)
    assert (await look(chain)).simulation.reverted
    chain.allow_transfer(CHAIN, PAYER, NONCE)
    await chain.send_transaction(CHAIN, sign(1).raw)
    assert chain.balance(CHAIN, TOKEN, PAYEE) == 10


async def test_a_reorganisation_reverts_transfer_and_nonce(chain) -> None:
    await chain.send_transaction(CHAIN, sign().raw)
    chain.reorg(CHAIN, 1)
    assert not (await look(chain)).is_used
    assert chain.balance(CHAIN, TOKEN, PAYER) == 15
    assert (await chain.fetch_account(CHAIN, KEY.address)).mined_nonce == 0
    assert await chain.send_transaction(CHAIN, sign().raw) is None


async def test_a_lost_response_hides_an_accepted_transaction(chain) -> None:
    chain.loses_send_responses = True
    signed = sign()
    with pytest.raises(ChainUnavailable):
        await chain.send_transaction(CHAIN, signed.raw)
    assert isinstance(await chain.fetch_facts(CHAIN, signed.tx_hash), ChainFacts)
    assert chain.broadcasts == [signed.raw]
    chain.loses_send_responses = False
    chain.refuse_sends(CHAIN, SendRefused(reason="no"))
    assert await chain.send_transaction(CHAIN, sign(1).raw) == SendRefused(reason="no")


async def test_blocks_are_read_by_their_height(chain) -> None:
    chain.bury(CHAIN, 12)
    tip = await chain.fetch_tip(CHAIN)
    assert (tip.head_number, tip.finalized_number) == (12, 2)
    told = await chain.fetch_block_hashes(CHAIN, [12, 13])
    assert told.known == {12: chain.head(CHAIN).block_hash, 13: None}
    chain.reorg(CHAIN, 1)
    assert (await chain.fetch_block_hashes(CHAIN, [12])).known != {12: told.known[12]}
