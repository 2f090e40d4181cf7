import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from tollway.chain.reader import ChainFacts, ContractAnswer, NotMined
from tollway.chain.rpc import ChainEndpoints, RpcReader
from tollway.errors import ChainMismatch, ChainUnavailable
from tollway.identifiers import Address, ChainId, TxHash
from tollway.limits import Limits

CHAIN = ChainId(84532)
TX = TxHash.parse(f"0x{0xABC:064x}")
ALICE = Address(b"\xa1" * 20)
LIMITS = Limits(rpc_deadline_s=5.0)

MakeReader = Callable[..., Awaitable[RpcReader]]


@pytest.fixture
async def make_reader() -> AsyncIterator[MakeReader]:
    readers: list[RpcReader] = []

    async def make(*urls: str, **options: Any) -> RpcReader:
        endpoints = ChainEndpoints(urls=urls, agreement_min=options.pop("agreement_min", 1))
        reader = RpcReader({CHAIN: endpoints}, limits=options.pop("limits", LIMITS), **options)
        await reader.open()
        readers.append(reader)
        return reader

    yield make
    for reader in readers:
        await reader.close()


async def fail(_: web.Request) -> web.Response:
    return web.Response(status=503)


def remine(script, *, block_hash: int) -> None:
    """The same transaction in another block of the same height."""
    text = f"0x{block_hash:064x}"
    script.receipt["blockHash"] = script.transaction["blockHash"] = script.log["blockHash"] = text
    script.blocks["0x8"]["hash"] = text


async def test_facts_come_whole_in_two_round_trips(make_node, make_reader) -> None:
    script, url = await make_node()
    round_trips: list[int] = []
    reader = await make_reader(url, on_request=round_trips.append)
    facts = await reader.fetch_facts(CHAIN, TX)
    assert isinstance(facts, ChainFacts)
    assert (facts.chain_id, facts.tx_hash, facts.succeeded, facts.value) == (CHAIN, TX, True, 5)
    assert (facts.sender, facts.recipient) == (ALICE, Address(b"\xb2" * 20))
    assert (facts.block_number, facts.block_time, facts.confirmations) == (8, 1_700_000_008, 3)
    assert (facts.head_number, facts.head_time, facts.finalized_number) == (10, 1_700_000_010, 3)
    assert facts.block_hash == facts.canonical_hash == (0xB008).to_bytes(32, "big")
    assert [log.payload for log in facts.logs] == [(10_000).to_bytes(32, "big")]
    assert len(round_trips) == len(script.batches) == 2


async def test_a_transaction_in_the_head_block_needs_one_round_trip(make_node, make_reader) -> None:
    script, url = await make_node()
    script.blocks["latest"] = script.blocks["0x8"]
    facts = await (await make_reader(url)).fetch_facts(CHAIN, TX)
    assert (facts.confirmations, facts.canonical_hash) == (1, facts.block_hash)
    assert len(script.batches) == 1


async def test_a_block_that_left_the_chain_shows_in_the_canonical_hash(make_node, make_reader) -> None:
    script, url = await make_node()
    script.blocks["0x8"]["hash"] = f"0x{0xDEAD:064x}"
    facts = await (await make_reader(url)).fetch_facts(CHAIN, TX)
    assert facts.block_hash == (0xB008).to_bytes(32, "big")
    assert facts.canonical_hash == (0xDEAD).to_bytes(32, "big")


async def test_a_head_read_before_the_block_arrived_does_not_make_it_shallower_than_one(
    make_node, make_reader
) -> None:
    script, url = await make_node()
    script.blocks["latest"] = script.block(7)
    facts = await (await make_reader(url)).fetch_facts(CHAIN, TX)
    assert (facts.head_number, facts.head_time, facts.confirmations) == (8, facts.block_time, 1)


async def test_a_failed_transaction_is_a_fact(make_node, make_reader) -> None:
    script, url = await make_node()
    script.receipt["status"] = "0x0"
    facts = await (await make_reader(url)).fetch_facts(CHAIN, TX)
    assert not facts.succeeded


@pytest.mark.parametrize("answer", [None, {"!error": {"code": -32601, "message": "unknown tag"}}])
async def test_a_node_without_the_finalized_tag_serves_with_nothing_final(
    make_node, make_reader, answer: object
) -> None:
    script, url = await make_node()
    script.blocks["finalized"] = answer
    facts = await (await make_reader(url)).fetch_facts(CHAIN, TX)
    assert facts.finalized_number == 0


@pytest.mark.parametrize("is_pending", [True, False])
async def test_an_unmined_transaction_costs_one_round_trip(make_node, make_reader, is_pending: bool) -> None:
    script, url = await make_node()
    script.receipt = None
    script.transaction = {**script.transaction, "blockHash": None} if is_pending else None
    reader = await make_reader(url)
    assert await reader.fetch_facts(CHAIN, TX) == NotMined(chain_id=CHAIN, is_pending=is_pending)
    assert len(script.batches) == 1


def set_answer(method: str, answer: object) -> Callable[[Any], None]:
    return lambda script: script.answers.update({method: answer})


def set_field(part: str, name: str, value: object) -> Callable[[Any], None]:
    return lambda script: getattr(script, part).update({name: value})


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
        set_answer("eth_getTransactionReceipt", {"!error": {"code": -32005, "message": "limit exceeded"}}),
        id="receipt refused",
    ),
    pytest.param(set_answer("eth_getTransactionReceipt", lambda params: "0x"), id="receipt of a wrong shape"),
    pytest.param(lambda script: setattr(script, "http", fail), id="HTTP 503"),
    pytest.param(lambda script: setattr(script, "bend", lambda answers: answers[:-1]), id="short batch"),
    pytest.param(lambda script: setattr(script, "bend", lambda answers: answers[0]), id="no batch"),
]


@pytest.mark.parametrize("lie", LIES)
async def test_a_lone_node_that_lies_means_unavailable_and_never_not_mined(
    make_node, make_reader, lie: Callable[[Any], None]
) -> None:
    script, url = await make_node()
    lie(script)
    with pytest.raises(ChainUnavailable):
        await (await make_reader(url)).fetch_facts(CHAIN, TX)


@pytest.mark.parametrize("lie", LIES)
async def test_a_node_that_lies_is_passed_over_for_the_next(
    make_node, make_reader, lie: Callable[[Any], None]
) -> None:
    script, url = await make_node()
    _, good_url = await make_node()
    lie(script)
    assert isinstance(await (await make_reader(url, good_url)).fetch_facts(CHAIN, TX), ChainFacts)


async def test_a_dead_and_a_hanging_node_are_passed_over(make_node, make_reader) -> None:
    hanging, hanging_url = await make_node()
    _, good_url = await make_node()
    release = asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        await release.wait()
        return web.Response()

    hanging.http = hang
    reader = await make_reader(
        "http://127.0.0.1:1/", hanging_url, good_url, limits=Limits(rpc_deadline_s=0.3)
    )
    assert isinstance(await reader.fetch_facts(CHAIN, TX), ChainFacts)
    release.set()


async def test_nodes_are_asked_in_the_configured_order_and_failed_ones_last(make_node, make_reader) -> None:
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


async def test_a_node_that_lags_is_outvoted_by_one_that_knows_the_receipt(make_node, make_reader) -> None:
    lagging, lagging_url = await make_node()
    _, good_url = await make_node()
    lagging.forget()
    reader = await make_reader(lagging_url, good_url)
    assert isinstance(await reader.fetch_facts(CHAIN, TX), ChainFacts)


async def test_not_mined_is_said_only_after_every_reachable_node_said_so(make_node, make_reader) -> None:
    scripts, urls = zip(*[await make_node() for _ in range(3)], strict=True)
    for script in scripts:
        script.forget()
    scripts[2].transaction = {**scripts[2].__class__().transaction, "blockHash": None}
    reader = await make_reader(*urls)
    assert await reader.fetch_facts(CHAIN, TX) == NotMined(chain_id=CHAIN, is_pending=True)
    assert [len(script.batches) for script in scripts] == [1, 1, 1]


async def test_a_node_known_to_be_down_is_not_waited_for_to_say_not_mined(make_node, make_reader) -> None:
    good, good_url = await make_node()
    dead, dead_url = await make_node()
    good.forget()
    dead.http = fail
    reader = await make_reader(good_url, dead_url)
    for _ in range(3):
        assert isinstance(await reader.fetch_facts(CHAIN, TX), NotMined)
    assert len(dead.batches) == 1


async def test_agreement_takes_facts_that_enough_nodes_tell_from_the_most_cautious(
    make_node, make_reader
) -> None:
    liar, liar_url = await make_node()
    ahead, ahead_url = await make_node()
    behind, behind_url = await make_node()
    liar.transaction["value"] = "0xffff"
    ahead.blocks["latest"] = ahead.block(12)
    behind.blocks["finalized"] = behind.block(2)
    reader = await make_reader(liar_url, ahead_url, behind_url, agreement_min=2)
    facts = await reader.fetch_facts(CHAIN, TX)
    assert (facts.value, facts.head_number, facts.finalized_number) == (5, 10, 2)


async def test_agreement_stops_asking_once_it_is_reached(make_node, make_reader) -> None:
    scripts, urls = zip(*[await make_node() for _ in range(3)], strict=True)
    reader = await make_reader(*urls, agreement_min=2)
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
async def test_without_agreement_the_chain_is_unavailable(make_node, make_reader, bend_second) -> None:
    _, first_url = await make_node()
    second, second_url = await make_node()
    bend_second(second)
    reader = await make_reader(first_url, second_url, agreement_min=2)
    with pytest.raises(ChainUnavailable):
        await reader.fetch_facts(CHAIN, TX)


async def test_not_mined_needs_the_same_agreement(make_node, make_reader) -> None:
    first, first_url = await make_node()
    second, second_url = await make_node()
    first.forget()
    second.http = fail
    reader = await make_reader(first_url, second_url, agreement_min=2)
    with pytest.raises(ChainUnavailable):
        await reader.fetch_facts(CHAIN, TX)


async def call(reader: RpcReader, *, bytes_max: int = 64) -> ContractAnswer:
    return await reader.call_contract(
        CHAIN, to=ALICE, calldata=b"\x01\x02", gas=200_000, bytes_max=bytes_max, deadline_s=5.0
    )


async def test_a_contract_is_called_at_the_latest_block_with_the_gas_given(make_node, make_reader) -> None:
    script, url = await make_node()
    seen: list[Any] = []
    script.answers["eth_call"] = lambda params: seen.append(params) or "0xabcdef"
    answer = await call(await make_reader(url), bytes_max=2)
    assert answer == ContractAnswer(reverted=False, payload=b"\xab\xcd")
    assert seen == [[{"to": str(ALICE), "data": "0x0102", "gas": "0x30d40"}, "latest"]]


async def test_deployment_code_is_called_without_a_recipient(make_node, make_reader) -> None:
    script, url = await make_node()
    seen: list[Any] = []
    script.answers["eth_call"] = lambda params: seen.append(params[0]) or "0x01"
    reader = await make_reader(url)
    await reader.call_contract(CHAIN, to=None, calldata=b"\x60", gas=1, bytes_max=1, deadline_s=5.0)
    assert seen == [{"data": "0x60", "gas": "0x1"}]


async def test_a_revert_is_an_answer_and_a_failing_node_is_not(make_node, make_reader) -> None:
    script, url = await make_node()
    good, good_url = await make_node()
    good.answers["eth_call"] = {"!error": {"code": 3, "message": "execution reverted", "data": "0xdead"}}
    script.answers["eth_call"] = {"!error": {"code": -32000, "message": "header not found"}}
    reader = await make_reader(url, good_url)
    assert await call(reader) == ContractAnswer(reverted=True, payload=b"\xde\xad")
    with pytest.raises(ChainUnavailable):
        await call(await make_reader(url))


async def test_a_contract_on_another_chain_never_answers(make_node, make_reader) -> None:
    script, url = await make_node()
    script.answers |= {"eth_call": "0x01", "eth_getCode": "0x01", "eth_chainId": "0x1"}
    reader = await make_reader(url)
    with pytest.raises(ChainUnavailable):
        await call(reader)
    with pytest.raises(ChainUnavailable):
        await reader.fetch_code_size(CHAIN, ALICE)


@pytest.mark.parametrize(("code", "size"), [("0x", 0), ("0x" + "ef0100" + "aa" * 20, 23)])
async def test_code_size_is_in_bytes_and_zero_is_an_answer(
    make_node, make_reader, code: str, size: int
) -> None:
    script, url = await make_node()
    script.answers["eth_getCode"] = code
    assert await (await make_reader(url)).fetch_code_size(CHAIN, ALICE) == size


async def test_a_chain_is_in_order_while_one_of_its_nodes_serves_it(make_node, make_reader) -> None:
    down, down_url = await make_node()
    _, good_url = await make_node()
    down.http = fail
    await (await make_reader(down_url, good_url)).check_chain(CHAIN)
    with pytest.raises(ChainUnavailable):
        await (await make_reader(down_url)).check_chain(CHAIN)
    with pytest.raises(ChainUnavailable):
        await (await make_reader(down_url, good_url, agreement_min=2)).check_chain(CHAIN)


async def test_one_node_of_another_chain_is_a_mistake_that_is_told(make_node, make_reader) -> None:
    stray, stray_url = await make_node()
    _, good_url = await make_node()
    stray.answers["eth_chainId"] = "0x1"
    with pytest.raises(ChainMismatch) as caught:
        await (await make_reader(good_url, stray_url)).check_chain(CHAIN)
    assert "node 2 of eip155:84532" in caught.value.__notes__[0]


async def test_a_chain_that_is_not_configured_is_unavailable(make_node, make_reader) -> None:
    _, url = await make_node()
    reader = await make_reader(url)
    assert reader.chain_ids == (CHAIN,)
    for ask in (reader.fetch_facts(ChainId(1), TX), reader.check_chain(ChainId(1))):
        with pytest.raises(ChainUnavailable):
            await ask


async def test_the_public_detail_names_no_node(make_node, make_reader) -> None:
    script, url = await make_node()
    script.http = fail
    with pytest.raises(ChainUnavailable) as caught:
        await (await make_reader(url + "SECRET")).fetch_facts(CHAIN, TX)
    assert caught.value.problem.detail == "no node of eip155:84532 gave a usable answer"
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
