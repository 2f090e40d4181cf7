from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from eth_abi.abi import encode

from tests.kit.narrowing import of_type
from tests.kit.scripted_node import hang
from tollway.chain import channel_contract as contract
from tollway.chain import tokens
from tollway.chain.channel_contract import SETTLEMENT_CONTRACT, encode_channel_state
from tollway.chain.port import (
    AccountFacts,
    AuthorizationFacts,
    ChainFacts,
    ChainTip,
    ContractResult,
    Disputed,
    EscrowFacts,
    EscrowState,
    Fees,
    NotMined,
    Quorum,
    SendFault,
    SendRefused,
)
from tollway.chain.rpc import ChainEndpoints, RpcReader
from tollway.errors import ChainMismatch, ChainUnavailable, NodesDisagree
from tollway.ids import Address, ChainId, ChannelId, TxHash, keccak256
from tollway.limits import Limits

CHAIN = ChainId(84532)
TX = TxHash.parse(f"0x{0xABC:064x}")
ALICE = Address(b"\xa1" * 20)
LIMITS = Limits(rpc_deadline_s=60.0)

MakeReader = Callable[..., Awaitable[RpcReader]]


@pytest.fixture
async def make_reader() -> AsyncIterator[MakeReader]:
    readers: list[RpcReader] = []

    async def make(*urls: str, **options: Any) -> RpcReader:
        endpoints = ChainEndpoints(
            urls=urls,
            agreement_min=options.pop("agreement_min", 1),
            is_by_value=options.pop("is_by_value", False),
        )
        reader = RpcReader({CHAIN: endpoints}, limits=options.pop("limits", LIMITS), **options)
        await reader.open()
        readers.append(reader)
        return reader

    yield make
    for reader in readers:
        await reader.close()


@pytest.fixture
def open_reader(make_node, make_reader) -> Callable[..., Awaitable[tuple[Any, ...]]]:
    """Starts nodes; gives a reader of them, in their order, and the script of each."""

    async def open_reader(count: int = 1, **options: Any) -> tuple[Any, ...]:
        nodes = [await make_node() for _ in range(count)]
        return await make_reader(*(url for _, url in nodes), **options), *(script for script, _ in nodes)

    return open_reader


@pytest.fixture
async def reader(make_reader: MakeReader, url: str) -> RpcReader:
    """A reader of one node."""
    return await make_reader(url)


async def fail(_: web.Request) -> web.Response:
    return web.Response(status=503)


def refuse(code: int, message: str, **more: object) -> dict[str, object]:
    """The answer of a node that refuses a call."""
    return {"!error": {"code": code, "message": message, **more}}


def set_answer(method: str, answer: object) -> Callable[[Any], None]:
    return lambda script: script.answers.update({method: answer})


def set_field(part: str, name: str, value: object) -> Callable[[Any], None]:
    return lambda script: getattr(script, part).update({name: value})


def remine(script, *, block_hash: int) -> None:
    """The same transaction in another block of the same height."""
    text = f"0x{block_hash:064x}"
    script.receipt["blockHash"] = script.transaction["blockHash"] = script.log["blockHash"] = text
    script.blocks["0x8"]["hash"] = text


async def test_facts_take_two_round_trips(script, url, make_reader) -> None:
    round_trips: list[int] = []
    reader = await make_reader(url, on_request=round_trips.append)
    facts = of_type(ChainFacts, await reader.fetch_facts(CHAIN, TX))
    assert (facts.chain_id, facts.tx_hash, facts.succeeded, facts.value) == (CHAIN, TX, True, 5)
    assert (facts.sender, facts.recipient) == (ALICE, Address(b"\xb2" * 20))
    assert (facts.block_number, facts.block_time, facts.confirmations) == (8, 1_700_000_008, 3)
    assert (facts.head_number, facts.head_time, facts.finalized_number) == (10, 1_700_000_010, 3)
    assert facts.block_hash == facts.canonical_hash == (0xB008).to_bytes(32, "big")
    assert [log.payload for log in facts.logs] == [(10_000).to_bytes(32, "big")]
    assert len(round_trips) == len(script.batches) == 2


async def test_a_transaction_in_the_head_block_needs_one_round_trip(reader, script) -> None:
    script.blocks["latest"] = script.blocks["0x8"]
    facts = await reader.fetch_facts(CHAIN, TX)
    assert (facts.confirmations, facts.canonical_hash) == (1, facts.block_hash)
    assert len(script.batches) == 1


HEAD_BEFORE = {"number": "0x7", "hash": f"0x{0xB007:064x}", "timestamp": hex(1_700_000_007)}


@pytest.mark.parametrize(
    ("bend", "members"),
    [
        pytest.param(
            lambda script: script.blocks["0x8"].update(hash=f"0x{0xDEAD:064x}"),
            {"block_hash": (0xB008).to_bytes(32, "big"), "canonical_hash": (0xDEAD).to_bytes(32, "big")},
            id="a block that left the chain shows in the canonical hash",
        ),
        pytest.param(
            set_field("blocks", "latest", HEAD_BEFORE),
            {"head_number": 8, "head_time": 1_700_000_008, "confirmations": 1},
            id="a head read before the block arrived does not make it shallower than one",
        ),
        pytest.param(set_field("receipt", "status", "0x0"), {"succeeded": False}, id="a failed transaction"),
        pytest.param(set_field("blocks", "finalized", None), {"finalized_number": 0}, id="nothing final"),
        pytest.param(
            set_field("blocks", "finalized", refuse(-32601, "unknown tag")),
            {"finalized_number": 0},
            id="a node without the finalized tag",
        ),
    ],
)
async def test_facts_are_those_of_the_node(reader, script, bend, members: dict[str, object]) -> None:
    bend(script)
    facts = await reader.fetch_facts(CHAIN, TX)
    assert {name: getattr(facts, name) for name in members} == members


@pytest.mark.parametrize("is_pending", [True, False])
async def test_an_unmined_transaction_costs_one_round_trip(reader, script, is_pending: bool) -> None:
    script.receipt = None
    script.transaction = {**script.transaction, "blockHash": None} if is_pending else None
    assert await reader.fetch_facts(CHAIN, TX) == NotMined(chain_id=CHAIN, is_pending=is_pending)
    assert len(script.batches) == 1


LIES = [
    pytest.param(set_answer("eth_chainId", "0x1"), id="another chain"),
    pytest.param(set_answer("eth_chainId", None), id="no chain"),
    pytest.param(set_field("receipt", "transactionHash", "0x" + "ee" * 32), id="receipt of another hash"),
    pytest.param(set_field("receipt", "blockHash", "0x" + "ee" * 32), id="receipt of another block"),
    pytest.param(set_field("receipt", "status", None), id="no status"),
    pytest.param(set_field("transaction", "from", "0x" + "ee" * 20), id="another sender"),
    pytest.param(set_field("log", "transactionHash", "0x" + "ee" * 32), id="log of another transaction"),
    pytest.param(set_field("blocks", "latest", None), id="no head"),
    pytest.param(set_field("blocks", "0x8", None), id="no block at that height"),
    pytest.param(set_field("blocks", "0x8", {"number": "0x8"}), id="half a block"),
    pytest.param(
        set_field("blocks", "0x8", {"number": "0x9", "hash": "0x" + "ee" * 32, "timestamp": "0x1"}),
        id="a block of another height",
    ),
    pytest.param(
        set_answer("eth_getTransactionReceipt", refuse(-32005, "limit exceeded")),
        id="receipt refused",
    ),
    pytest.param(set_answer("eth_getTransactionReceipt", lambda params: "0x"), id="receipt of a wrong shape"),
    pytest.param(lambda script: setattr(script, "http", fail), id="HTTP 503"),
    pytest.param(lambda script: setattr(script, "bend", lambda answers: answers[:-1]), id="short batch"),
    pytest.param(lambda script: setattr(script, "bend", lambda answers: answers[0]), id="no batch"),
]


@pytest.mark.parametrize("lie", LIES)
async def test_a_single_faulty_node_means_unavailable_and_never_not_mined(
    reader, script, lie: Callable[[Any], None]
) -> None:
    lie(script)
    with pytest.raises(ChainUnavailable):
        await reader.fetch_facts(CHAIN, TX)


@pytest.mark.parametrize("lie", LIES)
async def test_a_faulty_node_is_skipped_for_the_next(open_reader, lie: Callable[[Any], None]) -> None:
    reader, script, _ = await open_reader(2)
    lie(script)
    assert isinstance(await reader.fetch_facts(CHAIN, TX), ChainFacts)


async def test_a_dead_and_a_hanging_node_are_skipped(make_node, make_reader) -> None:
    hanging, hanging_url = await make_node()
    _, good_url = await make_node()
    hanging.http = hang
    reader = await make_reader(
        "http://127.0.0.1:1/", hanging_url, good_url, limits=Limits(rpc_deadline_s=0.3)
    )
    assert isinstance(await reader.fetch_facts(CHAIN, TX), ChainFacts)


async def test_nodes_are_read_in_the_configured_order_and_failed_ones_last(make_node, make_reader) -> None:
    first, first_url = await make_node()
    second, second_url = await make_node()
    now = [0.0]
    reader = await make_reader(first_url, second_url, clock=lambda: now[0])

    async def count() -> tuple[int, int]:
        before = len(first.batches), len(second.batches)
        await reader.fetch_code_size(CHAIN, ALICE)
        return len(first.batches) - before[0], len(second.batches) - before[1]

    first.answers["eth_getCode"] = second.answers["eth_getCode"] = "0x6001"
    assert await count() == (1, 0)
    first.http = fail
    assert await count() == (1, 1)
    assert await count() == (0, 1)
    second.http = fail
    first.http = None
    assert await count() == (1, 1)  # last, but never not at all
    assert await count() == (1, 0)
    now[0] += 6.0
    second.http = None
    assert await count() == (1, 0)


async def test_a_receipt_outvotes_a_lagging_node(open_reader) -> None:
    reader, lagging, _ = await open_reader(2)
    lagging.forget()
    assert isinstance(await reader.fetch_facts(CHAIN, TX), ChainFacts)


async def test_not_mined_needs_every_reachable_node(open_reader) -> None:
    reader, *scripts = await open_reader(3)
    for script in scripts:
        script.forget()
    scripts[2].transaction = {**scripts[2].__class__().transaction, "blockHash": None}
    assert await reader.fetch_facts(CHAIN, TX) == NotMined(chain_id=CHAIN, is_pending=True)
    assert [len(script.batches) for script in scripts] == [1, 1, 1]


async def test_not_mined_does_not_wait_for_a_node_that_is_down(open_reader) -> None:
    reader, good, dead = await open_reader(2)
    good.forget()
    dead.http = fail
    for _ in range(3):
        assert isinstance(await reader.fetch_facts(CHAIN, TX), NotMined)
    assert len(dead.batches) == 1


async def test_agreed_facts_have_the_lowest_head_and_final_block(open_reader) -> None:
    reader, liar, ahead, behind = await open_reader(3, agreement_min=2)
    liar.transaction["value"] = "0xffff"
    ahead.blocks["latest"] = ahead.block(12)
    behind.blocks["finalized"] = behind.block(2)
    facts = await reader.fetch_facts(CHAIN, TX)
    assert (facts.value, facts.head_number, facts.finalized_number) == (5, 10, 2)


async def test_agreement_ends_the_reads(open_reader) -> None:
    reader, *scripts = await open_reader(3, agreement_min=2)
    await reader.fetch_facts(CHAIN, TX)
    assert [len(script.batches) for script in scripts] == [2, 2, 0]


@pytest.mark.parametrize(
    "bend_second",
    [
        pytest.param(lambda script: script.transaction.update(value="0x6"), id="another value"),
        pytest.param(lambda script: script.log.update(data="0x00"), id="another log"),
        pytest.param(lambda script: remine(script, block_hash=0xDEAD), id="another block"),
        pytest.param(lambda script: script.blocks["0x8"].update(timestamp="0x1"), id="another time"),
        pytest.param(lambda script: script.forget(), id="knows nothing"),
        pytest.param(lambda script: setattr(script, "http", fail), id="down"),
    ],
)
async def test_without_agreement_the_chain_is_unavailable(open_reader, bend_second) -> None:
    reader, _, second = await open_reader(2, agreement_min=2)
    bend_second(second)
    with pytest.raises(ChainUnavailable) as caught:
        await reader.fetch_facts(CHAIN, TX)
    # A read of many transactions continues after the first error, and not after the second.
    assert isinstance(caught.value, NodesDisagree) is (second.http is not fail)


async def test_not_mined_needs_the_same_agreement(open_reader) -> None:
    reader, first, second = await open_reader(2, agreement_min=2)
    first.forget()
    second.http = fail
    with pytest.raises(ChainUnavailable):
        await reader.fetch_facts(CHAIN, TX)


# ---- Many receipts at once.

OTHER_TX = TxHash(b"\x5a" * 32)


def know_only(script: Any, *known: TxHash) -> None:
    """Receipts for these hashes alone, all of them in block 8."""
    receipt, transaction, log = script.receipt, script.transaction, script.log

    def answer(params: list[str], make: Callable[[str], Any]) -> Any:
        return make(params[0]) if TxHash.parse(params[0]) in known else None

    def receipt_of(text: str) -> Any:
        return {**receipt, "transactionHash": text, "logs": [{**log, "transactionHash": text}]}

    script.answers["eth_getTransactionReceipt"] = lambda params: answer(params, receipt_of)
    script.answers["eth_getTransactionByHash"] = lambda params: answer(
        params, lambda text: {**transaction, "hash": text}
    )


async def test_many_receipts_come_in_two_round_trips(reader, script) -> None:
    hashes = [TxHash(bytes([n]) * 32) for n in range(1, 21)]
    know_only(script, *hashes[:-1])
    facts = await reader.fetch_receipts(CHAIN, hashes)
    assert list(facts) == hashes
    assert all(isinstance(facts[tx_hash], ChainFacts) for tx_hash in hashes[:-1])
    assert facts[hashes[-1]] == NotMined(chain_id=CHAIN, is_pending=False)
    assert len(script.batches) == 2
    assert script.batches[1] == ["eth_getBlockByNumber", "eth_chainId"]  # they share a block


async def test_many_receipts_are_read_in_batches(reader, script) -> None:
    script.forget()
    hashes = [TxHash(bytes([n]) * 32) for n in range(1, 101)]
    facts = await reader.fetch_receipts(CHAIN, hashes)
    assert len(facts) == 100
    assert [len(batch) for batch in script.batches] == [83, 83, 43]


async def test_no_receipts_send_no_request(reader, script) -> None:
    assert await reader.fetch_receipts(CHAIN, []) == {}
    assert script.batches == []


async def test_a_further_node_is_read_only_for_open_transactions(open_reader) -> None:
    reader, lagging, good = await open_reader(2)
    know_only(lagging, TX)
    know_only(good, TX, OTHER_TX)
    facts = await reader.fetch_receipts(CHAIN, [TX, OTHER_TX])
    assert all(isinstance(one, ChainFacts) for one in facts.values())
    assert good.batches[0].count("eth_getTransactionReceipt") == 1


async def test_a_transaction_without_a_clear_report_is_left_out(reader, script) -> None:
    know_only(script, TX, OTHER_TX)
    honest = script.answers["eth_getTransactionReceipt"]

    def bent(params: list[str]) -> Any:
        return {**honest(params), "status": "0x7"} if params[0] == str(OTHER_TX) else honest(params)

    script.answers["eth_getTransactionReceipt"] = bent
    assert list(await reader.fetch_receipts(CHAIN, [TX, OTHER_TX])) == [TX]
    with pytest.raises(ChainUnavailable):
        await reader.fetch_receipts(CHAIN, [OTHER_TX])


async def test_receipts_need_the_same_agreement(open_reader) -> None:
    reader, first, second = await open_reader(2, agreement_min=2)
    know_only(first, TX, OTHER_TX)
    know_only(second, TX)
    assert list(await reader.fetch_receipts(CHAIN, [TX, OTHER_TX])) == [TX]


# ---- Settlement.

NONCE = b"\x09" * 32
SENDER = Address(b"\xd4" * 20)
TOKEN = Address(b"\xc3" * 20)
WORD_OF = "0x{:064x}".format
REVERT = refuse(3, "execution reverted", data="0xdead")


def know_authorization(script: Any, **answers: Any) -> None:
    """`code`, `balance`, `used`, `simulation`, `estimate`."""
    told = {
        "code": "0x",
        "balance": WORD_OF(500),
        "used": WORD_OF(0),
        "simulation": "0x",
        "estimate": "0xea60",
        **answers,
    }
    by_selector = {"0x70a08231": "balance", "0xe94a0102": "used", "0xcafe": "simulation"}
    script.answers |= {
        "eth_getCode": told["code"],
        "eth_call": lambda params: told[by_selector[params[0]["data"][:10]]],
        "eth_estimateGas": told["estimate"],
    }


async def ask_authorization(reader: RpcReader) -> AuthorizationFacts:
    return await reader.fetch_authorization(
        CHAIN, token=TOKEN, payer=ALICE, nonce=NONCE, sender=SENDER, calldata=b"\xca\xfe", gas=200_000
    )


async def test_an_authorisation_is_read_in_one_round_trip(reader, script) -> None:
    know_authorization(script)
    assert await ask_authorization(reader) == AuthorizationFacts(
        chain_id=CHAIN,
        head_number=10,
        head_time=1_700_000_010,
        code_size=0,
        balance=500,
        is_used=False,
        simulation=ContractResult(reverted=False, payload=b""),
        gas_estimate=60_000,
    )
    assert len(script.batches) == 1


async def test_a_transfer_is_simulated_as_its_sender_would_send_it(reader, script) -> None:
    know_authorization(script)
    await ask_authorization(reader)
    transfer = {"from": str(SENDER), "to": str(TOKEN), "data": "0xcafe", "gas": "0x30d40"}
    assert [transfer, "latest"] in script.params("eth_call")
    assert script.params("eth_estimateGas") == [[transfer]]


async def test_a_reverting_transfer_is_a_result(reader, script) -> None:
    know_authorization(script, simulation=REVERT, estimate=REVERT, used=WORD_OF(1), balance=WORD_OF(0))
    facts = await ask_authorization(reader)
    assert facts.simulation == ContractResult(reverted=True, payload=b"\xde\xad")
    assert (facts.gas_estimate, facts.is_used, facts.balance) == (None, True, 0)


async def test_an_estimate_with_a_revert_does_not_count(reader, script) -> None:
    know_authorization(script, simulation=REVERT)
    assert (await ask_authorization(reader)).gas_estimate is None


async def test_a_revert_does_not_agree_with_a_missing_estimate(open_reader) -> None:
    reader, first, second = await open_reader(2, agreement_min=2)
    know_authorization(first, estimate=REVERT)
    know_authorization(second, simulation=REVERT)
    with pytest.raises(ChainUnavailable):
        await ask_authorization(reader)


async def test_a_revert_of_a_megabyte_is_cut(reader, script) -> None:
    bomb = refuse(3, "execution reverted", data="0x" + "ab" * 2**20)
    know_authorization(script, simulation=bomb, estimate=bomb)
    facts = await ask_authorization(reader)
    assert facts.simulation == ContractResult(reverted=True, payload=b"\xab" * LIMITS.erc1271_bytes_max)


@pytest.mark.parametrize(
    "bent",
    [
        pytest.param({"balance": "0x"}, id="no balance"),
        pytest.param({"balance": REVERT}, id="no token"),
        pytest.param({"used": "0x" + "00" * 64}, id="two words of state"),
        pytest.param({"code": None}, id="no code"),
        pytest.param({"simulation": refuse(-32000, "header not found")}, id="node in trouble"),
        pytest.param({"estimate": refuse(-32601, "no such method")}, id="no estimates"),
    ],
)
async def test_an_unclear_response_about_an_authorisation_is_read_from_the_next_node(
    script, url, make_node, make_reader, bent: dict[str, Any]
) -> None:
    good, good_url = await make_node()
    know_authorization(script, **bent)
    know_authorization(good, balance=WORD_OF(7))
    assert (await ask_authorization(await make_reader(url, good_url))).balance == 7
    with pytest.raises(ChainUnavailable):
        await ask_authorization(await make_reader(url))


@pytest.mark.parametrize(
    "bent",
    [
        {"code": "0x6001"},
        {"balance": WORD_OF(501)},
        {"used": WORD_OF(1)},
        {"simulation": REVERT},
        {"estimate": REVERT},
    ],
    ids=["code", "balance", "state", "simulation", "estimate"],
)
async def test_nodes_that_disagree_about_an_authorisation_say_nothing(
    open_reader, bent: dict[str, Any]
) -> None:
    reader, first, second = await open_reader(2, agreement_min=2)
    know_authorization(first)
    know_authorization(second, **bent)
    with pytest.raises(ChainUnavailable):
        await ask_authorization(reader)


async def test_agreeing_nodes_give_the_lowest_head_and_the_highest_estimate(open_reader) -> None:
    reader, first, second = await open_reader(2, agreement_min=2)
    know_authorization(first, estimate="0x1")
    know_authorization(second, estimate="0x2")
    first.blocks["latest"] = first.block(12)
    facts = await ask_authorization(reader)
    assert (facts.head_number, facts.gas_estimate) == (10, 2)


async def find_use(reader: RpcReader, *, from_block: int = 5) -> TxHash | None:
    return await reader.find_authorization_use(
        CHAIN, token=TOKEN, payer=ALICE, nonce=NONCE, from_block=from_block
    )


def use_log(tx_hash: TxHash = TX, **changes: Any) -> dict[str, Any]:
    topics = [tokens.AUTHORIZATION_USED_TOPIC, bytes(12) + ALICE, NONCE]
    return {
        "address": str(TOKEN),
        "topics": ["0x" + topic.hex() for topic in topics],
        "data": "0x",
        "transactionHash": str(tx_hash),
        **changes,
    }


async def test_the_use_of_an_authorisation_is_read_by_exact_topics(reader, script) -> None:
    script.answers |= {"eth_getLogs": [use_log()], "eth_blockNumber": "0xa"}
    assert await find_use(reader) == TX
    ends = [
        "0x" + topic.hex() for topic in (tokens.AUTHORIZATION_USED_TOPIC, tokens.AUTHORIZATION_CANCELED_TOPIC)
    ]
    topics = [ends, ["0x" + (bytes(12) + ALICE).hex()], ["0x" + NONCE.hex()]]
    wanted = {"address": str(TOKEN), "topics": topics, "fromBlock": "0x5", "toBlock": "latest"}
    assert script.params("eth_getLogs") == [[wanted]]


async def test_one_node_proves_a_use_and_no_use_needs_all(open_reader) -> None:
    reader, first, second = await open_reader(2)
    for script in (first, second):
        script.answers |= {"eth_getLogs": [], "eth_blockNumber": "0xa"}
    assert await find_use(reader) is None
    assert (len(first.batches), len(second.batches)) == (1, 1)
    second.answers["eth_getLogs"] = [use_log()]
    assert await find_use(reader) == TX
    second.answers["eth_getLogs"] = [use_log(removed=True)]
    assert await find_use(reader) is None


async def test_no_use_needs_enough_nodes(make_node, make_reader) -> None:
    first, first_url = await make_node()
    second, second_url = await make_node()
    first.answers |= {"eth_getLogs": [], "eth_blockNumber": "0xa"}
    second.http = fail
    reader = await make_reader(first_url, second_url)
    assert [await find_use(reader) for _ in range(3)] == [None] * 3
    assert len(second.batches) == 1  # known to be down, it is not waited for
    with pytest.raises(ChainUnavailable):
        await find_use(await make_reader(first_url, second_url, agreement_min=2))


async def test_a_node_that_refuses_a_long_range_is_read_in_windows(reader, script) -> None:
    seen: list[tuple[str, str]] = []

    def logs(params: list[Any]) -> Any:
        first, last = params[0]["fromBlock"], params[0]["toBlock"]
        if last == "latest":
            return refuse(-32005, "block range too large")
        seen.append((int(first, 16), int(last, 16)))  # type: ignore[arg-type]
        return [use_log()] if len(seen) == 2 else []

    script.answers |= {"eth_getLogs": logs, "eth_blockNumber": hex(1_300)}
    assert await find_use(reader, from_block=100) == TX
    assert seen == [(100, 599), (600, 1_099), (1_100, 1_300)]
    with pytest.raises(ChainUnavailable):
        await find_use(
            reader, from_block=1_000
        )  # it refuses a single window, or a million blocks: not for the range
    script.answers["eth_blockNumber"] = hex(10**6)
    with pytest.raises(ChainUnavailable):
        await find_use(reader, from_block=1)


async def test_fees_are_those_of_the_latest_block_and_the_nodes_tip(reader, script) -> None:
    script.blocks["latest"]["baseFeePerGas"] = "0x64"
    script.answers |= {"eth_maxPriorityFeePerGas": "0x7", "eth_gasPrice": "0x96"}
    assert await reader.fetch_fees(CHAIN) == Fees(chain_id=CHAIN, base_fee_wei=100, tip_wei=7)
    script.answers["eth_maxPriorityFeePerGas"] = refuse(-32601, "no such method")
    assert await reader.fetch_fees(CHAIN) == Fees(chain_id=CHAIN, base_fee_wei=100, tip_wei=50)


async def test_an_account_has_the_lowest_values_of_the_nodes(make_node, make_reader) -> None:
    first, first_url = await make_node()
    second, second_url = await make_node()
    first.answers |= {"eth_getBalance": "0x64", "eth_getTransactionCount": "0x7"}
    second.answers |= {"eth_getBalance": "0x63", "eth_getTransactionCount": "0x8"}
    one = await make_reader(first_url, second_url)
    assert await one.fetch_account(CHAIN, SENDER) == AccountFacts(balance_wei=100, mined_nonce=7)
    both = await make_reader(first_url, second_url, agreement_min=2)
    assert await both.fetch_account(CHAIN, SENDER) == AccountFacts(balance_wei=99, mined_nonce=7)


async def test_only_mined_transactions_count_for_an_account(reader, script) -> None:
    script.answers |= {"eth_getBalance": "0x1", "eth_getTransactionCount": "0x1"}
    await reader.fetch_account(CHAIN, SENDER)
    for method in ("eth_getBalance", "eth_getTransactionCount"):
        assert script.params(method) == [[str(SENDER), "latest"]]


# ---- Sending.

RAW = b"\x02\xf8\x01"
RAW_HASH = "0x" + keccak256(RAW).hex()
TOO_LOW = refuse(-32000, "nonce too low: next nonce 5, tx nonce 3")
OUT_OF_ORDER = refuse(-32603, "Internal error")


async def test_a_transaction_goes_to_each_node_until_one_accepts_it(open_reader) -> None:
    reader, *scripts = await open_reader(3)
    scripts[0].http = fail
    scripts[1].answers["eth_sendRawTransaction"] = RAW_HASH
    assert await reader.send_transaction(CHAIN, RAW) is None
    assert scripts[1].params("eth_sendRawTransaction") == [["0x" + RAW.hex()]]
    assert [len(script.batches) for script in scripts] == [1, 1, 0]


async def test_a_transaction_that_is_sent_again_goes_to_every_node(open_reader) -> None:
    """The first node has it in its pool, and passes it to no other node."""
    reader, *scripts = await open_reader(4)
    seen: list[Any] = []
    for script in scripts:
        script.answers["eth_sendRawTransaction"] = lambda params: seen.append(params) or RAW_HASH
    scripts[1].http = fail
    scripts[2].answers |= {"eth_sendRawTransaction": TOO_LOW, "eth_getTransactionByHash": None}
    assert await reader.resend_transaction(CHAIN, RAW) is None
    assert seen == [["0x" + RAW.hex()]] * 2
    for script in (scripts[0], scripts[3]):
        script.answers |= {"eth_sendRawTransaction": TOO_LOW, "eth_getTransactionByHash": None}
    assert of_type(SendRefused, await reader.resend_transaction(CHAIN, RAW)).fault is SendFault.NONCE_TOO_LOW
    for script in scripts:
        script.http = fail
    with pytest.raises(ChainUnavailable):
        await reader.resend_transaction(CHAIN, RAW)


async def test_no_node_is_sent_a_transaction_twice(open_reader) -> None:
    reader, *scripts = await open_reader(2)

    async def hang_up(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    for script in scripts:
        script.http = hang_up
    with pytest.raises(ChainUnavailable):
        await reader.send_transaction(CHAIN, RAW)
    assert [len(script.batches) for script in scripts] == [1, 1]


async def test_a_node_that_already_has_the_transaction_accepted_it(reader, script) -> None:
    script.answers["eth_sendRawTransaction"] = refuse(-32000, "already known")
    assert await reader.send_transaction(CHAIN, RAW) is None


@pytest.mark.parametrize("known", [None, {"hash": RAW_HASH}], ids=["unknown", "known"])
async def test_a_refusal_counts_only_when_the_node_lacks_the_transaction(
    reader, script, known: object
) -> None:
    script.answers |= {"eth_sendRawTransaction": TOO_LOW, "eth_getTransactionByHash": known}
    refused = await reader.send_transaction(CHAIN, RAW)
    assert (refused is None) is (known is not None)
    if refused is not None:
        assert refused.fault is SendFault.NONCE_TOO_LOW
        assert "next nonce" not in refused.reason  # a node's own text may hold its key


async def test_one_clear_refusal_counts_when_other_nodes_fail(open_reader) -> None:
    reader, first, second = await open_reader(2)
    first.http = fail
    second.answers |= {"eth_sendRawTransaction": TOO_LOW, "eth_getTransactionByHash": None}
    of_type(SendRefused, await reader.send_transaction(CHAIN, RAW))


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param({"eth_sendRawTransaction": OUT_OF_ORDER}, id="a node in trouble"),
        pytest.param({"eth_sendRawTransaction": "0x" + "ee" * 32}, id="another hash than ours"),
        pytest.param({"eth_sendRawTransaction": None}, id="no hash"),
        pytest.param(
            {"eth_sendRawTransaction": TOO_LOW, "eth_getTransactionByHash": OUT_OF_ORDER},
            id="a refusal that cannot be looked up",
        ),
        pytest.param({"eth_sendRawTransaction": RAW_HASH, "eth_chainId": "0x1"}, id="another chain"),
    ],
)
async def test_without_a_clear_response_the_send_is_unclear(reader, script, answers: dict[str, Any]) -> None:
    script.answers |= answers
    with pytest.raises(ChainUnavailable):
        await reader.send_transaction(CHAIN, RAW)
    assert [batch[0] for batch in script.batches].count("eth_sendRawTransaction") == 1


async def call(reader: RpcReader, *, bytes_max: int = 64) -> ContractResult:
    return await reader.call_contract(
        CHAIN, to=ALICE, calldata=b"\x01\x02", gas=200_000, bytes_max=bytes_max, deadline_s=60.0
    )


async def test_a_contract_is_called_at_the_latest_block_with_the_given_gas(reader, script) -> None:
    script.answers["eth_call"] = "0xabcdef"
    assert await call(reader, bytes_max=2) == ContractResult(reverted=False, payload=b"\xab\xcd")
    wanted = {"to": str(ALICE), "data": "0x0102", "gas": "0x30d40"}
    assert script.params("eth_call") == [[wanted, "latest"]]


async def test_deployment_code_is_called_without_a_recipient(reader, script) -> None:
    script.answers["eth_call"] = "0x01"
    await reader.call_contract(CHAIN, to=None, calldata=b"\x60", gas=1, bytes_max=1, deadline_s=60.0)
    assert script.params("eth_call") == [[{"data": "0x60", "gas": "0x1"}, "latest"]]


async def test_a_revert_is_a_result_and_a_failing_node_is_not(script, url, make_node, make_reader) -> None:
    good, good_url = await make_node()
    good.answers["eth_call"] = refuse(3, "execution reverted", data="0xdead")
    script.answers["eth_call"] = refuse(-32000, "header not found")
    reader = await make_reader(url, good_url)
    assert await call(reader) == ContractResult(reverted=True, payload=b"\xde\xad")
    with pytest.raises(ChainUnavailable):
        await call(await make_reader(url))


@pytest.mark.parametrize("is_by_value", [False, True])
async def test_one_node_alone_decides_no_contract_result(open_reader, is_by_value: bool) -> None:
    reader, liar, honest = await open_reader(2, agreement_min=2, is_by_value=is_by_value)
    honest.answers["eth_call"] = "0x" + "00" * 32
    liar.answers["eth_call"] = "0x1626ba7e" + "00" * 28  # "that wallet has signed"
    with pytest.raises(ChainUnavailable):
        await call(reader)


async def test_a_contract_on_another_chain_gives_no_result(reader, script) -> None:
    script.answers |= {"eth_call": "0x01", "eth_getCode": "0x01", "eth_chainId": "0x1"}
    with pytest.raises(ChainUnavailable):
        await call(reader)
    with pytest.raises(ChainUnavailable):
        await reader.fetch_code_size(CHAIN, ALICE)


@pytest.mark.parametrize(("code", "size"), [("0x", 0), ("0x" + "ef0100" + "aa" * 20, 23)])
async def test_code_size_is_in_bytes_and_may_be_zero(reader, script, code: str, size: int) -> None:
    script.answers["eth_getCode"] = code
    assert await reader.fetch_code_size(CHAIN, ALICE) == size


async def test_a_chain_is_available_while_one_of_its_nodes_serves_it(make_node, make_reader) -> None:
    down, down_url = await make_node()
    _, good_url = await make_node()
    down.http = fail
    await (await make_reader(down_url, good_url)).check_chain(CHAIN)
    with pytest.raises(ChainUnavailable):
        await (await make_reader(down_url)).check_chain(CHAIN)
    with pytest.raises(ChainUnavailable):
        await (await make_reader(down_url, good_url, agreement_min=2)).check_chain(CHAIN)


async def test_one_node_of_another_chain_is_a_mismatch(open_reader) -> None:
    reader, _, stray = await open_reader(2)
    stray.answers["eth_chainId"] = "0x1"
    with pytest.raises(ChainMismatch) as caught:
        await reader.check_chain(CHAIN)
    (note,) = caught.value.__notes__
    assert note.startswith("node 2 of eip155:84532")
    assert "it serves eip155:1 (ethereum). Correct its URL in rpc_urls" in note


async def test_a_chain_that_is_not_configured_is_unavailable(open_reader) -> None:
    reader, _ = await open_reader()
    assert reader.chain_ids == (CHAIN,)
    for ask in (reader.fetch_facts(ChainId(1), TX), reader.check_chain(ChainId(1))):
        with pytest.raises(ChainUnavailable):
            await ask


async def test_the_public_detail_names_no_node(script, url, make_reader) -> None:
    script.http = fail
    with pytest.raises(ChainUnavailable) as caught:
        await (await make_reader(url + "SECRET")).fetch_facts(CHAIN, TX)
    assert (
        caught.value.problem.detail
        == "No node of eip155:84532 gave a usable response. Send the same request again after Retry-After."
    )
    assert "SECRET" not in "".join(caught.value.__notes__)


@pytest.mark.parametrize(
    ("urls", "agreement_min"),
    [
        ((), 1),
        (("ws://SECRET/",), 1),
        (("SECRET",), 1),
        (("http://:80/SECRET",), 1),
        (("http://a:port/SECRET",), 1),
        (("http://SECRET/", "http://SECRET/"), 1),
        (("http://a/",), 0),
        (("http://a/",), 2),
    ],
)
def test_refuses_endpoints_that_cannot_work_without_repeating_them(
    urls: tuple[str, ...], agreement_min: int
) -> None:
    with pytest.raises(ValueError) as caught:
        ChainEndpoints(urls=urls, agreement_min=agreement_min)
    assert "SECRET" not in str(caught.value)


def test_endpoints_do_not_print_their_urls() -> None:
    assert "SECRET" not in repr(ChainEndpoints(urls=("http://a/SECRET",)))


# ---- Agreement by value: one node for what is small.


async def test_one_node_is_enough_for_quorum_one(open_reader) -> None:
    reader, _, second = await open_reader(2, agreement_min=2)
    second.http = fail
    facts = await reader.fetch_facts(CHAIN, TX, quorum=Quorum.ONE)
    assert facts.value == 5
    assert await reader.fetch_receipts(CHAIN, [TX], quorum=Quorum.ONE) == {TX: facts}
    assert second.batches == []
    for ask in (reader.fetch_facts(CHAIN, TX), reader.fetch_receipts(CHAIN, [TX])):
        with pytest.raises(ChainUnavailable):
            await ask


@pytest.mark.parametrize("is_by_value", [False, True])
async def test_a_network_whose_small_payments_need_one_node_is_served_by_one(
    open_reader, is_by_value: bool
) -> None:
    reader, _, down = await open_reader(2, agreement_min=2, is_by_value=is_by_value)
    down.http = fail
    if is_by_value:
        await reader.check_chain(CHAIN)
    else:
        with pytest.raises(ChainUnavailable):
            await reader.check_chain(CHAIN)


# ---- Payment channels.

CHANNEL = ChannelId(b"\x70" * 32)
ERROR = refuse(-32000, "header not found")


def state_of(balance: int, claimed: int = 0, *, withdrawal: int = 0, begun: int = 0, nonce: int = 0) -> str:
    views = [
        encode(["uint128", "uint128"], [balance, claimed]),
        encode(["uint128", "uint40"], [withdrawal, begun]),
        encode(["uint256"], [nonce]),
    ]
    return "0x" + encode(["bytes[]"], [views]).hex()


def know_channel(script: Any, *, head: object, deep: object = None) -> None:
    """What the node returns at its head, block 10, and at each block below."""
    script.answers["eth_call"] = lambda params: head if params[1] == "0xa" else deep


async def test_a_channel_is_read_at_the_number_of_the_head(reader, script) -> None:
    """Two round trips: a node behind the same URL that lacks the head fails; at `latest` it would return an older state."""
    seen: list[Any] = []
    state = state_of(300_000, 8_223, withdrawal=5, begun=1_700_000_000, nonce=2)
    script.answers["eth_call"] = lambda params: seen.append(params) or state
    assert await reader.fetch_channel(CHAIN, CHANNEL) == EscrowFacts(
        chain_id=CHAIN,
        head_number=10,
        head_time=1_700_000_010,
        state=EscrowState(
            balance=300_000,
            total_claimed=8_223,
            withdrawal=5,
            withdrawal_initiated_at=1_700_000_000,
            refund_nonce=2,
        ),
        confirmed_balance=300_000,
    )
    call = {"to": str(SETTLEMENT_CONTRACT), "data": "0x" + encode_channel_state(CHANNEL).hex()}
    assert seen == [[call, "0xa"], [call, "0xa"]]
    assert len(script.batches) == 2


@pytest.mark.parametrize(
    ("confirmations", "block"), [(1, "0xa"), (2, "0x9"), (10, "0x1"), (11, "0x0"), (99, "0x0")]
)
async def test_the_confirmed_balance_is_that_of_the_deeper_block(
    reader, script, confirmations: int, block: str
) -> None:
    seen: list[str] = []
    script.answers["eth_call"] = lambda params: (
        seen.append(params[1]) or state_of(500 if params[1] == "0xa" else 200)
    )
    facts = await reader.fetch_channel(CHAIN, CHANNEL, confirmations=confirmations)
    assert seen == ["0xa", block]
    assert (facts.state.balance, facts.confirmed_balance) == (500, 500 if block == "0xa" else 200)


async def test_a_balance_that_fell_is_confirmed_at_once(reader, script) -> None:
    know_channel(script, head=state_of(100), deep=state_of(500))
    assert (await reader.fetch_channel(CHAIN, CHANNEL, confirmations=2)).confirmed_balance == 100


@pytest.mark.parametrize(
    ("head", "deep"),
    [
        pytest.param("0x", state_of(1), id="no contract"),
        pytest.param(state_of(1), "0x", id="no contract yet"),
        pytest.param(REVERT, state_of(1), id="a revert"),
        pytest.param(ERROR, state_of(1), id="a node that lacks the head"),
        pytest.param(state_of(1), ERROR, id="a node that lacks old states"),
        pytest.param(state_of(1)[:-2], state_of(1), id="cut"),
        pytest.param(None, state_of(1), id="nothing"),
    ],
)
async def test_an_unclear_response_about_a_channel_is_read_from_the_next_node(
    make_node, make_reader, head: object, deep: object
) -> None:
    script, url = await make_node()
    good, good_url = await make_node()
    know_channel(script, head=head, deep=deep)
    know_channel(good, head=state_of(7), deep=state_of(7))
    facts = await (await make_reader(url, good_url)).fetch_channel(CHAIN, CHANNEL, confirmations=3)
    assert facts.confirmed_balance == 7
    with pytest.raises(ChainUnavailable):
        await (await make_reader(url)).fetch_channel(CHAIN, CHANNEL, confirmations=3)


@pytest.mark.parametrize(
    ("head", "deep"),
    [
        (state_of(501), state_of(500)),
        (state_of(500), state_of(499)),
        (state_of(500, 1), state_of(500)),
        (state_of(500, withdrawal=1, begun=1), state_of(500)),
        (state_of(500, nonce=1), state_of(500)),
    ],
    ids=["balance", "confirmed balance", "claims", "withdrawal", "refund nonce"],
)
async def test_nodes_that_disagree_about_a_channel_say_nothing(open_reader, head: str, deep: str) -> None:
    reader, first, second = await open_reader(2, agreement_min=2)
    know_channel(first, head=state_of(500), deep=state_of(500))
    know_channel(second, head=head, deep=deep)
    with pytest.raises(ChainUnavailable):
        await reader.fetch_channel(CHAIN, CHANNEL, confirmations=2)


async def test_agreeing_nodes_give_the_lowest_head_of_a_channel(open_reader) -> None:
    reader, first, second = await open_reader(2, agreement_min=2)
    for script in (first, second):
        script.answers["eth_call"] = state_of(500)
    first.blocks["latest"] = first.block(12)
    assert (await reader.fetch_channel(CHAIN, CHANNEL)).head_number == 10


def escrow_log(channel: bytes, topic: bytes = contract.WITHDRAW_INITIATED_TOPIC) -> dict[str, Any]:
    topics = ["0x" + topic.hex(), "0x" + channel.hex()]
    return {"address": str(SETTLEMENT_CONTRACT), "topics": topics, "transactionHash": str(TX)}


async def test_the_changed_channels_of_blocks_are_read_by_their_events(reader, script) -> None:
    seen: list[Any] = []
    logs = [escrow_log(CHANNEL), escrow_log(b"\x71" * 32, contract.DEPOSITED_TOPIC), escrow_log(CHANNEL)]
    script.answers |= {
        "eth_getLogs": lambda params: seen.append(params[0]) or logs,
        "eth_blockNumber": "0xa",
    }
    found = await reader.fetch_changed_channels(CHAIN, from_block=5, to_block=10)
    assert found == {CHANNEL, ChannelId(b"\x71" * 32)}
    topics = [["0x" + topic.hex() for topic in contract.CHANNEL_TOPICS]]
    wanted = {"address": str(SETTLEMENT_CONTRACT), "topics": topics, "fromBlock": "0x5", "toBlock": "0xa"}
    assert seen == [wanted]


async def test_one_of_the_required_nodes_is_enough_to_name_a_channel(open_reader) -> None:
    reader, first, second = await open_reader(2, agreement_min=2)
    for script in (first, second):
        script.answers |= {"eth_getLogs": [], "eth_blockNumber": "0xa"}
    assert await reader.fetch_changed_channels(CHAIN, from_block=5, to_block=10) == frozenset()
    second.answers["eth_getLogs"] = [escrow_log(CHANNEL)]
    assert await reader.fetch_changed_channels(CHAIN, from_block=5, to_block=10) == {CHANNEL}
    second.http = fail
    with pytest.raises(ChainUnavailable):
        await reader.fetch_changed_channels(CHAIN, from_block=5, to_block=10)


@pytest.mark.parametrize(
    "bent",
    [
        pytest.param({"eth_blockNumber": "0x9"}, id="a node that lacks the last block"),
        pytest.param({"eth_getLogs": [escrow_log(CHANNEL, bytes(32))]}, id="another event"),
        pytest.param({"eth_getLogs": ERROR}, id="an error"),
    ],
)
async def test_a_node_without_the_logs_of_these_blocks_is_skipped(
    make_node, make_reader, bent: dict[str, Any]
) -> None:
    script, url = await make_node()
    good, good_url = await make_node()
    for one in (script, good):
        one.answers |= {"eth_getLogs": [escrow_log(CHANNEL)], "eth_blockNumber": "0xa"}
    script.answers |= bent
    reader = await make_reader(url, good_url)
    assert await reader.fetch_changed_channels(CHAIN, from_block=5, to_block=10) == {CHANNEL}
    with pytest.raises(ChainUnavailable):
        await (await make_reader(url)).fetch_changed_channels(CHAIN, from_block=5, to_block=10)


async def test_logs_up_to_a_block_are_read_in_windows_that_end_there(reader, script) -> None:
    seen: list[tuple[int, int]] = []

    def logs(params: list[Any]) -> Any:
        first, last = (int(params[0][name], 16) for name in ("fromBlock", "toBlock"))
        if last - first >= 500:
            return refuse(-32005, "block range too large")
        seen.append((first, last))
        return [escrow_log(first.to_bytes(32, "big"))]

    script.answers |= {"eth_getLogs": logs, "eth_blockNumber": hex(2_000)}
    found = await reader.fetch_changed_channels(CHAIN, from_block=100, to_block=1_300)
    assert seen == [(100, 599), (600, 1_099), (1_100, 1_300)]
    assert found == {ChannelId(first.to_bytes(32, "big")) for first, _ in seen}


# ---- Blocks of payments that are not final.


def know_blocks(script: Any, *numbers: int, fork: int = 0) -> None:
    for number in numbers:
        script.blocks[hex(number)] = {**script.block(number), "hash": f"0x{0xB000 + number + fork:064x}"}


def hash_of(number: int, fork: int = 0) -> bytes:
    return (0xB000 + number + fork).to_bytes(32, "big")


async def test_a_tip_has_the_lowest_blocks_and_the_latest_time_of_the_agreeing_nodes(open_reader) -> None:
    reader, first, second = await open_reader(2, agreement_min=2)
    first.blocks.update(latest=first.block(12), finalized=first.block(2))
    head_time = int(first.block(12)["timestamp"], 16)
    assert await reader.fetch_tip(CHAIN) == ChainTip(head_number=10, head_time=head_time, finalized_number=2)
    second.http = fail
    with pytest.raises(ChainUnavailable):
        await reader.fetch_tip(CHAIN)


@pytest.mark.parametrize("answer", [None, refuse(-32601, "unknown tag")])
@pytest.mark.parametrize("agreement_min", [1, 2])
async def test_without_the_finalized_tag_the_final_block_is_unknown(
    open_reader, answer: object, agreement_min: int
) -> None:
    reader, script, _ = await open_reader(2, agreement_min=agreement_min)
    script.blocks["finalized"] = answer
    tip = await reader.fetch_tip(CHAIN)
    assert (tip.head_number, tip.finalized_number) == (10, None)


async def test_block_hashes_are_read_in_batches(script, url, make_reader) -> None:
    know_blocks(script, *range(1, 46))
    told = await (await make_reader(url)).fetch_block_hashes(CHAIN, [*range(1, 47), 3, 3])
    assert told.known == {**{number: hash_of(number) for number in range(1, 46)}, 46: None}
    assert told.disputed == frozenset()
    assert [len(batch) for batch in script.batches] == [21, 21, 7]
    assert (await (await make_reader(url)).fetch_block_hashes(CHAIN, [])).known == {}


async def test_a_block_is_missing_only_where_no_node_has_it(open_reader) -> None:
    reader, lagging, good = await open_reader(2)
    know_blocks(lagging, 5)
    know_blocks(good, 5, 6)
    told = await reader.fetch_block_hashes(CHAIN, [5, 6, 7])
    assert told.known == {5: hash_of(5), 6: hash_of(6), 7: None}
    assert len(good.batches[0]) == 3  # not the transactions that the first node has reported


async def test_hashes_need_the_agreement_of_the_network(open_reader) -> None:
    """Two of three: one node on a fork is outvoted, and with two different reports the result is unknown."""
    reader, *scripts = await open_reader(3, agreement_min=2)
    know_blocks(scripts[0], 5, 6, fork=0x100)
    know_blocks(scripts[1], 5, 6)
    know_blocks(scripts[2], 5)
    told = await reader.fetch_block_hashes(CHAIN, [5, 6])
    assert (told.known, told.disputed) == ({5: hash_of(5)}, {6})
    scripts[1].http = scripts[2].http = fail
    with pytest.raises(ChainUnavailable):
        await reader.fetch_block_hashes(CHAIN, [5, 6])


@pytest.mark.parametrize(
    "lie",
    [
        refuse(-32000, "busy"),
        {"number": "0x6", "hash": f"0x{5:064x}", "timestamp": "0x1"},
        {"number": "0x5", "hash": "0x05", "timestamp": "0x1"},
        [],
    ],
    ids=["an error", "another height", "half a hash", "no block"],
)
async def test_a_node_with_an_unclear_block_is_skipped(
    script, url, make_node, make_reader, lie: object
) -> None:
    good, good_url = await make_node()
    script.blocks["0x5"] = lie
    know_blocks(good, 5)
    assert (await (await make_reader(url, good_url)).fetch_block_hashes(CHAIN, [5])).known == {5: hash_of(5)}
    with pytest.raises(ChainUnavailable):
        await (await make_reader(url)).fetch_block_hashes(CHAIN, [5])


async def test_a_review_returns_the_disputed_transactions(open_reader) -> None:
    reader, first, second = await open_reader(2, agreement_min=2)
    know_only(first, TX, OTHER_TX)
    know_only(second, TX)
    third = TxHash(b"\x77" * 32)
    told = await reader.review_receipts(CHAIN, [TX, OTHER_TX, third])
    assert isinstance(told[TX], ChainFacts)
    assert told[OTHER_TX] == Disputed()
    assert told[third] == NotMined(chain_id=CHAIN, is_pending=False)
    assert await reader.review_receipts(CHAIN, []) == {}
    second.http = fail
    with pytest.raises(ChainUnavailable):
        await reader.review_receipts(CHAIN, [TX])


async def test_the_node_that_differs_from_those_that_agree_is_counted(open_reader, seen) -> None:
    reader, *scripts = await open_reader(3, agreement_min=2, observer=seen)
    scripts[0].transaction.update(value="0x6")
    await reader.fetch_facts(CHAIN, TX)
    assert seen.disagreements == [1]
    await reader.check_chain(CHAIN)
    assert len(seen.head_times) >= 3
