"""Request bodies: read whole, streamed, and streamed with a declared digest."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable
from dataclasses import replace

import pytest

from tests.kit.gateway import open_gateway
from tests.kit.payer import Payer, has_terms
from tests.kit.proxy_requests import GivenBody, sample_request
from tests.kit.waits import until
from tollway.errors import Code, Problem, Refusal
from tollway.gateway.body import (
    EMPTY_BODY,
    EMPTY_BODY_HASH,
    ForwardBody,
    check_size,
    hold_body,
    load_compared,
    load_declared,
    load_hashed,
    load_plain,
)
from tollway.gateway.messages import ClientGone
from tollway.ids import keccak256
from tollway.ledger.records import CallState
from tollway.limits import DEFAULT_LIMITS

PRICE = 10_000
LIMITS = replace(DEFAULT_LIMITS, buffer_bytes=4, bound_body_bytes_max=8, upload_bytes_max=12)


async def drain(body: ForwardBody) -> list[bytes]:
    assert isinstance(body.content, AsyncIterator)
    return [chunk async for chunk in body.content]


async def break_off(body: ForwardBody) -> tuple[list[bytes], Problem]:
    """What came through until the body was refused, and why it was."""
    assert isinstance(body.content, AsyncIterator)
    seen: list[bytes] = []
    try:
        async for chunk in body.content:
            seen.append(chunk)
    except Refusal as refused:
        return seen, refused.problem
    raise AssertionError("the body was not refused")


async def refuse(loading: Awaitable[ForwardBody]) -> Problem:
    """Why the body was refused before any of it could be sent."""
    with pytest.raises(Refusal) as refused:
        await loading
    return refused.value.problem


@pytest.mark.parametrize(("length", "is_refused"), [(0, False), (12, False), (13, True), (None, False)])
def test_a_declared_length_over_the_limit_is_refused_unread(length: int | None, is_refused: bool) -> None:
    body = GivenBody(length=length)
    problem = check_size(body, LIMITS)
    assert (problem is not None and problem.code is Code.PAYLOAD_TOO_LARGE) == is_refused
    assert body.bytes_read == 0


async def test_a_body_in_hand_is_loaded_again_without_a_read_of_the_request() -> None:
    request = sample_request(body=GivenBody(b"abc", b"def"))
    whole = await load_hashed(request.body, is_whole=True, limits=LIMITS)
    again = hold_body(request, whole)
    assert (again.body.length, again.body.bytes_read, again.body.is_present) == (6, 6, True)
    assert await load_hashed(again.body, is_whole=True, limits=LIMITS) == whole
    assert not await again.body.read_chunk()


async def test_a_body_that_streams_stays_in_its_request() -> None:
    request = sample_request(body=GivenBody(b"abc", b"def"))
    assert hold_body(request, await load_plain(request.body, limits=LIMITS)) is request
    assert hold_body(request, EMPTY_BODY) is request


async def test_no_body_is_no_cargo_in_every_form() -> None:
    assert await load_plain(GivenBody(), limits=LIMITS) is EMPTY_BODY
    assert await load_declared(GivenBody(), None, limits=LIMITS) is EMPTY_BODY
    assert await load_declared(GivenBody(), EMPTY_BODY_HASH, limits=LIMITS) is EMPTY_BODY


@pytest.mark.parametrize("chunks", [[b"abcd"], [b"ab", b"cd"]])
async def test_a_small_body_is_read_ahead_and_known(chunks: Iterable[bytes]) -> None:
    body = await load_plain(GivenBody(*chunks), limits=LIMITS)
    assert (body.content, body.length, body.body_hash) == (b"abcd", 4, keccak256(b"abcd"))


@pytest.mark.parametrize("length", [-1, None])
async def test_a_large_or_endless_body_is_streamed_chunk_by_chunk(length: int | None) -> None:
    body = await load_plain(GivenBody(b"abc", b"def", length=length), limits=LIMITS)
    assert body.body_hash is None
    assert body.length == (None if length is None else 6)
    assert await drain(body) == [b"abc", b"def"]


async def test_a_stream_over_the_limit_is_refused_before_the_byte_that_is_too_much() -> None:
    body = await load_plain(GivenBody(b"x" * 6, b"x" * 6, b"y", length=None), limits=LIMITS)
    seen, problem = await break_off(body)
    assert problem.code is Code.PAYLOAD_TOO_LARGE
    assert b"".join(seen) == b"x" * 12


async def test_a_caller_gone_in_the_middle_raises() -> None:
    with pytest.raises(ClientGone):
        await load_plain(GivenBody(b"ab", length=4, is_gone=True), limits=LIMITS)
    with pytest.raises(ClientGone):
        await drain(await load_plain(GivenBody(b"ab", length=None, is_gone=True), limits=LIMITS))


async def test_a_bound_body_without_a_promise_is_read_to_its_hash() -> None:
    body = await load_declared(GivenBody(b"abcd", b"efgh"), None, limits=LIMITS)
    assert (body.content, body.body_hash) == (b"abcdefgh", keccak256(b"abcdefgh"))


async def test_a_bound_body_without_a_promise_has_a_limit_that_names_the_parameter() -> None:
    problem = await refuse(load_declared(GivenBody(b"abcd", b"efgh", b"i", length=None), None, limits=LIMITS))
    assert problem.code is Code.PAYLOAD_TOO_LARGE
    assert [error.parameter for error in problem.errors] == ["X-Signature-Params"]


@pytest.mark.parametrize("chunks", [(b"ab",), (b"abc", b"def"), (b"a", b"b", b"c", b"d", b"e", b"f")])
async def test_a_body_with_the_declared_hash_is_forwarded_whole(chunks: tuple[bytes, ...]) -> None:
    whole = b"".join(chunks)
    body = await load_declared(GivenBody(*chunks), keccak256(whole), limits=LIMITS)
    assert body.body_hash == keccak256(whole)
    assert (body.content if isinstance(body.content, bytes) else b"".join(await drain(body))) == whole


async def test_a_small_body_that_breaks_its_promise_is_refused_at_once() -> None:
    problem = await refuse(load_declared(GivenBody(b"ab"), keccak256(b"cd"), limits=LIMITS))
    assert (problem.code, problem.reason) == (Code.INVALID_REQUEST, "body_hash_mismatch")
    missing = await refuse(load_declared(GivenBody(), keccak256(b"cd"), limits=LIMITS))
    assert missing.reason == "body_hash_mismatch"


@pytest.mark.parametrize("chunks", [(b"abcdef",), (b"abc", b"def"), ()])
async def test_the_last_chunk_of_a_broken_promise_is_withheld(chunks: tuple[bytes, ...]) -> None:
    body = await load_declared(GivenBody(*chunks, length=None), keccak256(b"other"), limits=LIMITS)
    seen, problem = await break_off(body)
    assert problem.reason == "body_hash_mismatch"
    assert seen == list(chunks[:-1])


@pytest.mark.parametrize(
    ("chunks", "content"),
    [
        ([], None),
        ([b"12345678"], b"12345678"),
        ([b"1234", b"5678"], b"12345678"),
        ([b"1234", b"56789"], None),
    ],
)
async def test_a_body_to_compare_is_hashed_to_its_end_and_kept_while_it_is_small(
    chunks: list[bytes], content: bytes | None
) -> None:
    body = await load_compared(GivenBody(*chunks), limits=LIMITS)
    assert body.content == content
    assert body.body_hash == body.final_hash == keccak256(b"".join(chunks))
    assert body.is_discarded == (content is None and bool(chunks))


async def test_a_body_to_compare_has_the_limit_of_every_body() -> None:
    with pytest.raises(Refusal):
        await load_compared(GivenBody(b"1234", b"56789", b"0123", length=None), limits=LIMITS)


@pytest.mark.parametrize("is_whole", [False, True])
async def test_a_small_body_of_an_authorised_call_is_read_ahead(is_whole: bool) -> None:
    body = await load_hashed(GivenBody(b"1234"), is_whole=is_whole, limits=LIMITS)
    assert (body.content, body.body_hash) == (b"1234", keccak256(b"1234"))
    assert await load_hashed(GivenBody(), is_whole=is_whole, limits=LIMITS) == EMPTY_BODY


async def test_a_large_body_of_an_authorised_call_is_hashed_on_its_way() -> None:
    body = await load_hashed(GivenBody(b"1234", b"56789"), is_whole=False, limits=LIMITS)
    assert (body.body_hash, body.final_hash) == (None, None)
    assert b"".join(await drain(body)) == b"123456789"
    assert (body.body_hash, body.final_hash) == (None, keccak256(b"123456789"))


@pytest.mark.parametrize(("in_time", "seen"), [(0, b""), (1, b"1"), (2, b"1234"), (3, b"123456")])
async def test_a_body_that_outlives_its_authorisation_is_never_forwarded_whole(
    in_time: int, seen: bytes
) -> None:
    looks = iter([False] * in_time + [True])
    body = GivenBody(b"12", b"345", b"67", length=None)
    body = await load_hashed(body, is_whole=False, limits=LIMITS, is_late=lambda: next(looks))
    told, problem = await break_off(body)
    assert (b"".join(told), problem.code, problem.reason) == (
        seen,
        Code.INVALID_REQUEST,
        "authorization_outlived",
    )
    assert body.final_hash is None


async def test_a_whole_body_reserves_memory_and_a_streamed_one_does_not() -> None:
    kept, promised, compared, streamed = (GivenBody(b"abcd", b"efgh", length=None) for _ in range(4))
    await load_declared(kept, None, limits=LIMITS)
    await load_declared(promised, keccak256(b"abcdefgh"), limits=LIMITS)
    await load_compared(compared, limits=LIMITS)
    await load_plain(streamed, limits=LIMITS)
    assert [body.reserved for body in (kept, promised, compared, streamed)] == [8, 0, 8, 0]


async def test_a_body_that_must_be_whole_has_a_limit() -> None:
    problem = await refuse(load_hashed(GivenBody(b"1234", b"56789"), is_whole=True, limits=LIMITS))
    assert problem.code is Code.PAYLOAD_TOO_LARGE


# ---------------------------------------------------------------------- at a whole gateway


@pytest.mark.parametrize("is_chunked", [True, False])
@pytest.mark.parametrize("takes_s", [29, 31, 120])
async def test_an_upload_ends_in_time_for_the_settlement_or_is_never_forwarded_whole(
    is_chunked: bool, takes_s: int
) -> None:
    async with open_gateway(buffer_bytes=100) as gateway:
        await gateway.publish(timeout_s=5)
        payer = Payer.funded(gateway, PRICE)
        shown = payer.show(
            await payer.quote("POST")
        )  # valid for timeout_s and 60 seconds, as every 402 requires
        chunks = [b"x" * 200, b"y" * 200, b"z"]
        upload = gateway.open(
            "POST", "/quote?x=1", shown, chunks[:2], is_chunked=is_chunked, length=401, is_open=True
        )
        async with asyncio.TaskGroup() as group:
            running = group.create_task(gateway.run(upload))
            await until(lambda: [len(one.body) for one in gateway.upstream.arrived] == [399])
            gateway.now_ms += takes_s * 1000
            upload.give(chunks[2])
            upload.finish()
        answer, (arrived,) = running.result(), gateway.upstream.arrived
        (call,) = await payer.history()
        if takes_s < 30:
            assert (answer.status, arrived.is_whole, gateway.earned) == (200, True, PRICE)
            assert call.state is CallState.CONSUMED
            return
        assert (answer.status, answer.problem["reason"]) == (400, "authorization_outlived")
        assert (answer.problem["paymentState"], has_terms(answer)) == ("released", False)
        assert (bytes(arrived.body), arrived.is_whole) == ((chunks[0] + chunks[1])[:-1], False)
        assert (call.state, gateway.transfers, gateway.earned) == (CallState.RELEASED, 0, 0)
