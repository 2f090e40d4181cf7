"""The reader with a real node, compared with web3.py on the same chain."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from web3 import AsyncHTTPProvider, AsyncWeb3

from tollway.chain import tokens
from tollway.chain.port import ChainFacts, ContractResult, NotMined
from tollway.chain.rpc import ChainEndpoints, RpcReader
from tollway.errors import ChainUnavailable
from tollway.ids import Address, ChainId, TxHash
from tollway.limits import DEFAULT_LIMITS, Limits

LIMITS = Limits(rpc_deadline_s=20.0)  # long, because the machine may be busy; no test here measures time


@pytest.fixture
def round_trips() -> list[int]:
    return []


@pytest.fixture
async def reader(anvil, round_trips) -> AsyncIterator[RpcReader]:
    chains = {anvil.chain_id: ChainEndpoints(urls=(anvil.rpc_url,))}
    async with RpcReader(chains, limits=LIMITS, on_request=round_trips.append) as reader:
        yield reader


@pytest.fixture
async def referee(anvil) -> AsyncIterator[AsyncWeb3]:
    provider = AsyncHTTPProvider(anvil.rpc_url)
    yield AsyncWeb3(provider)
    await provider.disconnect()


async def check_against(referee: AsyncWeb3, facts: ChainFacts) -> None:
    receipt = await referee.eth.get_transaction_receipt(bytes(facts.tx_hash))
    transaction = await referee.eth.get_transaction(bytes(facts.tx_hash))
    block = await referee.eth.get_block(receipt["blockNumber"])
    head, final = await referee.eth.get_block("latest"), await referee.eth.get_block("finalized")
    assert facts == ChainFacts(
        chain_id=ChainId(await referee.eth.chain_id),
        tx_hash=TxHash(receipt["transactionHash"]),
        succeeded=receipt["status"] == 1,
        sender=Address.parse(transaction["from"]),
        recipient=None if transaction.get("to") is None else Address.parse(transaction["to"]),
        value=transaction["value"],
        logs=facts.logs,
        block_number=receipt["blockNumber"],
        block_hash=bytes(receipt["blockHash"]),
        block_time=block["timestamp"],
        canonical_hash=bytes(block["hash"]),
        head_number=head["number"],
        head_time=head["timestamp"],
        finalized_number=final["number"],
        fee_wei=receipt["gasUsed"] * receipt["effectiveGasPrice"],
    )
    assert [(str(log.address), log.topics, log.payload, log.removed) for log in facts.logs] == [
        (log["address"], tuple(bytes(topic) for topic in log["topics"]), bytes(log["data"]), log["removed"])
        for log in receipt["logs"]
    ]


async def test_a_token_payment_is_read_as_web3_reads_it_in_two_round_trips(
    reader, referee, round_trips, scenarios, chain, playground, caller, provider_account
) -> None:
    receipt = await scenarios.pay_token(caller, provider_account.address, 10_000)
    await chain.mine(5)
    facts = await reader.fetch_facts(chain.chain_id, receipt.tx_hash)
    assert len(round_trips) <= 2
    await check_against(referee, facts)
    assert facts.confirmations == 6
    assert facts.block_hash == facts.canonical_hash
    assert facts.finalized_number == facts.head_number - 2
    token = playground.token.address
    assert tokens.parse_transfers(facts.logs, token=token) == (
        tokens.TokenTransfer(sender=caller.address, recipient=provider_account.address, base_units=10_000),
    )
    assert tokens.find_authorizers(facts.logs, token) == frozenset()


async def test_a_payment_in_the_head_block_takes_one_round_trip(
    reader, referee, round_trips, scenarios, chain, caller, provider_account
) -> None:
    receipt = await scenarios.pay_token(caller, provider_account.address, 1)
    facts = await reader.fetch_facts(chain.chain_id, receipt.tx_hash)
    assert (len(round_trips), facts.confirmations) == (1, 1)
    await check_against(referee, facts)


async def test_a_native_payment_is_its_transaction(
    reader, referee, scenarios, chain, caller, provider_account
) -> None:
    receipt = await scenarios.pay_native(caller, provider_account.address, 10**18)
    facts = await reader.fetch_facts(chain.chain_id, receipt.tx_hash)
    assert (facts.succeeded, facts.sender, facts.recipient, facts.value, facts.logs) == (
        True,
        caller.address,
        provider_account.address,
        10**18,
        (),
    )
    await check_against(referee, facts)


async def test_a_reverted_transaction_did_not_succeed(reader, referee, scenarios, chain, caller) -> None:
    receipt = await scenarios.fail(caller, 7)
    facts = await reader.fetch_facts(chain.chain_id, receipt.tx_hash)
    assert (facts.succeeded, facts.value, facts.logs) == (False, 7, ())
    await check_against(referee, facts)


async def test_a_creation_has_no_recipient(reader, referee, chain, playground, caller) -> None:
    tx_hash = await chain.send(key=caller.key, to=None, payload=b"\x00")
    await chain.wait_receipt(tx_hash)
    facts = await reader.fetch_facts(chain.chain_id, tx_hash)
    assert facts.recipient is None
    await check_against(referee, facts)


async def test_a_relayed_transfer_names_its_authorizer(
    reader, scenarios, chain, playground, caller, stranger, provider_account
) -> None:
    receipt = await scenarios.relay(stranger, caller, provider_account.address, 10_000, extra=5)
    facts = await reader.fetch_facts(chain.chain_id, receipt.tx_hash)
    token = playground.token.address
    assert tokens.find_authorizers(facts.logs, token) == {caller.address}
    assert [t.base_units for t in tokens.parse_transfers(facts.logs, token=token)] == [10_000, 5]


async def test_a_spoofed_transfer_is_no_transfer_of_the_token(
    reader, scenarios, chain, playground, caller, stranger, provider_account
) -> None:
    receipt = await scenarios.spoof(stranger, payer=caller.address, to=provider_account.address, amount=10**6)
    facts = await reader.fetch_facts(chain.chain_id, receipt.tx_hash)
    assert facts.logs
    assert tokens.parse_transfers(facts.logs, token=playground.token.address) == ()


async def test_unknown_pending_and_mined_are_three_results(reader, chain, caller, provider_account) -> None:
    unknown = TxHash(b"\x5a" * 32)
    assert await reader.fetch_facts(chain.chain_id, unknown) == NotMined(
        chain_id=chain.chain_id, is_pending=False
    )
    await chain.rpc("evm_setAutomine", False)
    try:
        tx_hash = await chain.send_native(key=caller.key, to=provider_account.address, value=1)
        assert await reader.fetch_facts(chain.chain_id, tx_hash) == NotMined(
            chain_id=chain.chain_id, is_pending=True
        )
    finally:
        await chain.rpc("evm_setAutomine", True)
    await chain.mine()
    assert isinstance(await reader.fetch_facts(chain.chain_id, tx_hash), ChainFacts)


async def test_a_reorg_drops_a_transaction_or_moves_it_to_a_block_of_another_hash(
    reader, referee, chain, caller, provider_account
) -> None:
    raw, tx_hash = await chain.sign(key=caller.key, to=provider_account.address, value=3)
    await chain.rpc("eth_sendRawTransaction", "0x" + raw.hex())
    await chain.wait_receipt(tx_hash)
    await chain.mine(2)
    before = await reader.fetch_facts(chain.chain_id, tx_hash)
    await chain.reorg(3, [(raw, 1)])
    after = await reader.fetch_facts(chain.chain_id, tx_hash)
    assert isinstance(before, ChainFacts)
    assert isinstance(after, ChainFacts)
    assert after.head_number == before.head_number
    assert after.block_number == before.block_number + 1
    assert after.canonical_hash == after.block_hash != before.block_hash
    await check_against(referee, after)
    await chain.reorg(3)
    assert isinstance(await reader.fetch_facts(chain.chain_id, tx_hash), NotMined)


async def test_a_balance_read_through_the_contract_is_that_of_web3(
    reader, referee, chain, playground, caller
) -> None:
    token = playground.token.address
    calldata = tokens.encode_balance_of(caller.address)
    answer = await reader.call_contract(
        chain.chain_id, to=token, calldata=calldata, gas=100_000, bytes_max=32, deadline_s=20.0
    )
    expected = await referee.eth.call({"to": str(token), "data": "0x" + calldata.hex()})
    assert answer == ContractResult(reverted=False, payload=bytes(expected))
    assert tokens.parse_uint256(answer.payload) > 0


@pytest.mark.parametrize(
    ("code", "reverted", "payload"),
    [
        pytest.param("60ff60005260206000f3", False, bytes(31) + b"\xff", id="returns a word"),
        pytest.param("62100000600060006000", False, b"", id="returns nothing"),
        pytest.param("600160005260206000fd", True, bytes(31) + b"\x01", id="reverts with a word"),
        pytest.param("5b600056", True, b"", id="burns all gas"),
        pytest.param("fe", True, b"", id="invalid opcode"),
        pytest.param("01", True, b"", id="stack underflow"),
        pytest.param("600356", True, b"", id="invalid jump"),
        pytest.param("620186a06000f3", False, bytes(4096), id="return bomb of 100 KB"),
    ],
)
async def test_a_contract_can_only_answer_or_revert(
    reader, chain, code: str, reverted: bool, payload: bytes
) -> None:
    contract = Address(b"\x77" * 20)
    await chain.set_code(contract, bytes.fromhex(code))
    answer = await reader.call_contract(
        chain.chain_id,
        to=contract,
        calldata=b"",
        gas=DEFAULT_LIMITS.erc1271_gas,
        bytes_max=DEFAULT_LIMITS.erc1271_bytes_max,
        deadline_s=20.0,
    )
    assert answer == ContractResult(reverted=reverted, payload=payload)


@pytest.mark.parametrize(
    ("code", "reverted"),
    [
        pytest.param("60ff60005260206000f3", False, id="returns a word"),
        pytest.param("600160005260206000fd", True, id="reverts"),
        pytest.param("620186a06000f3", True, id="more code than a contract may have"),
    ],
)
async def test_deployment_code_can_only_answer_or_revert(reader, chain, code: str, reverted: bool) -> None:
    answer = await reader.call_contract(
        chain.chain_id, to=None, calldata=bytes.fromhex(code), gas=200_000, bytes_max=32, deadline_s=20.0
    )
    assert answer.reverted == reverted


async def test_the_code_size_distinguishes_a_contract_from_a_plain_wallet(
    reader, referee, chain, playground, caller
) -> None:
    token = playground.token.address
    assert await reader.fetch_code_size(chain.chain_id, token) == len(await referee.eth.get_code(str(token)))
    assert await reader.fetch_code_size(chain.chain_id, caller.address) == 0


async def test_the_chain_id_is_checked(anvil, reader) -> None:
    await reader.check_chain(anvil.chain_id)
    wrong = ChainId(8453)
    async with RpcReader({wrong: ChainEndpoints(urls=(anvil.rpc_url,))}, limits=LIMITS) as stray:
        with pytest.raises(ChainUnavailable):
            await stray.check_chain(wrong)
        with pytest.raises(ChainUnavailable):
            await stray.fetch_facts(wrong, TxHash(b"\x5a" * 32))


async def test_many_requests_at_once_get_their_own_results(
    reader, scenarios, chain, caller, provider_account
) -> None:
    receipts = [await scenarios.pay_token(caller, provider_account.address, n) for n in range(1, 6)]
    async with asyncio.TaskGroup() as group:
        asks = [
            group.create_task(reader.fetch_facts(chain.chain_id, receipt.tx_hash))
            for receipt in receipts * 30
        ]
    assert [ask.result().tx_hash for ask in asks] == [receipt.tx_hash for receipt in receipts * 30]
