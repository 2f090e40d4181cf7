"""The contract of `StoredResponses`: the same response for a day, within limits."""

import asyncio
from typing import Any

from sqlalchemy import text

from tests.kit.ledger_records import NOW_MS, PAYER, PROVIDER
from tollway.ids import Address, CallId
from tollway.ledger.ledger import StoredResponse
from tollway.storage.engine.database import Database
from tollway.storage.engine.encryption import Sealer
from tollway.storage.ledger.idempotency import ResponseStore, encode_stored_response

OTHER = Address(b"\x01" * 20)
DAY_MS = 86_400_000
FRAME = len(encode_stored_response(StoredResponse(status=200, headers=(), body=b"")))


def answer(size: int = 5, **fields: Any) -> StoredResponse:
    """A response of exactly so many bytes."""
    return StoredResponse(**{"status": 200, "headers": (), "body": b"x" * (size - FRAME), **fields})


def name(number: int) -> CallId:
    return CallId(f"call_{number}")


async def kept(answers: Any, numbers: range, now_ms: int = NOW_MS) -> list[int]:
    return [n for n in numbers if await answers.find(name(n), now_ms=now_ms) is not None]


STORED = (
    StoredResponse(status=200, headers=((b"content-type", b"text/plain"), (b"x", b"\xff\x00")), body=b"hi"),
    StoredResponse(status=404, headers=(), body=b""),
    StoredResponse(status=201, headers=((b"a", b""), (b"a", b"2")), body=bytes(range(256)) * 1000),
)


async def test_an_answer_comes_back_as_it_was(ledgers: Any) -> None:
    answers = ledgers.answers()
    for number, stored in enumerate(STORED):
        assert await answers.find(name(number), now_ms=NOW_MS) is None
        assert await answers.keep(name(number), stored, payer=PAYER, provider=PROVIDER, now_ms=NOW_MS) is True
        assert await answers.find(name(number), now_ms=NOW_MS) == stored
        assert await answers.find(name(number + 1), now_ms=NOW_MS) is None
        assert await ledgers.answers().find(name(number), now_ms=NOW_MS) == stored


async def test_a_later_answer_of_a_call_takes_the_place_of_the_first(ledgers: Any) -> None:
    answers = ledgers.answers()
    await answers.keep(name(1), answer(100), payer=PAYER, provider=PROVIDER, now_ms=NOW_MS)
    await answers.keep(name(1), answer(200), payer=PAYER, provider=PROVIDER, now_ms=NOW_MS + 1)
    assert await answers.find(name(1), now_ms=NOW_MS) == answer(200)


async def test_an_answer_that_is_too_large_alone_is_not_kept(ledgers: Any) -> None:
    answers = ledgers.answers()
    at_most = answer(256 * 1024)
    assert await answers.keep(name(1), at_most, payer=PAYER, provider=PROVIDER, now_ms=NOW_MS) is True
    too_large = answer(256 * 1024 + 1)
    assert await answers.keep(name(2), too_large, payer=PAYER, provider=PROVIDER, now_ms=NOW_MS) is False
    assert await kept(answers, range(3)) == [1]
    tight = ledgers.answers(responses_bytes_max=50)
    assert await tight.keep(name(3), answer(51), payer=PAYER, provider=PROVIDER, now_ms=NOW_MS) is False
    tight = ledgers.answers(responses_per_payer_bytes_max=50)
    assert await tight.keep(name(3), answer(51), payer=PAYER, provider=PROVIDER, now_ms=NOW_MS) is False


async def test_the_oldest_response_of_a_payer_is_deleted_first(ledgers: Any) -> None:
    answers = ledgers.answers(responses_per_payer_bytes_max=100)
    await answers.keep(name(9), answer(100), payer=OTHER, provider=PROVIDER, now_ms=NOW_MS)
    for n, size in enumerate((40, 30, 30)):
        await answers.keep(name(n), answer(size), payer=PAYER, provider=PROVIDER, now_ms=NOW_MS + n)
    assert await kept(answers, range(10)) == [0, 1, 2, 9]
    await answers.keep(name(3), answer(41), payer=PAYER, provider=PROVIDER, now_ms=NOW_MS + 3)
    assert await kept(answers, range(10)) == [2, 3, 9]
    await answers.keep(name(4), answer(100), payer=PAYER, provider=PROVIDER, now_ms=NOW_MS + 4)
    assert await kept(answers, range(10)) == [4, 9]


async def test_the_oldest_response_of_all_is_deleted_at_the_total_maximum(ledgers: Any) -> None:
    answers = ledgers.answers(responses_bytes_max=100)
    for n in range(4):
        payer = Address(bytes([n]) * 20)
        assert await answers.keep(name(n), answer(40), payer=payer, provider=PROVIDER, now_ms=NOW_MS + n)
    assert await kept(answers, range(4)) == [2, 3]


async def test_many_small_responses_never_exceed_the_total_maximum(ledgers: Any) -> None:
    answers = ledgers.answers(responses_bytes_max=3200)
    for n in range(120):
        await answers.keep(
            name(n), answer(50), payer=Address(bytes([n]) * 20), provider=PROVIDER, now_ms=NOW_MS + n
        )
        assert len(await kept(answers, range(120))) <= 64 if n > 60 else True
    assert (await kept(answers, range(120)))[-55:] == list(range(65, 120))


async def test_an_answer_is_kept_for_a_day(ledgers: Any) -> None:
    answers = ledgers.answers()
    await answers.keep(name(1), answer(), payer=PAYER, provider=PROVIDER, now_ms=NOW_MS)
    await answers.keep(name(2), answer(), payer=PAYER, provider=PROVIDER, now_ms=NOW_MS + 1)
    assert await kept(answers, range(3), NOW_MS + DAY_MS - 1) == [1, 2]
    assert await kept(answers, range(3), NOW_MS + DAY_MS) == [2]
    assert await answers.prune(now_ms=NOW_MS + DAY_MS) == 1
    assert await answers.prune(now_ms=NOW_MS + DAY_MS) == 0
    assert await kept(answers, range(3), NOW_MS) == [2]


async def test_one_answer_kept_by_many_at_once_is_kept_once(ledgers: Any) -> None:
    stores = [ledgers.answers() for _ in range(4)]
    done = await asyncio.gather(
        *(
            store.keep(name(1), answer(100), payer=PAYER, provider=PROVIDER, now_ms=NOW_MS)
            for store in stores * 3
        )
    )
    assert done == [True] * 12
    assert await stores[0].find(name(1), now_ms=NOW_MS) == answer(100)


async def test_an_answer_is_sealed_and_opens_for_its_own_call_only(database: Database) -> None:
    """SQL only: the ledger in memory encrypts nothing."""
    answers = ResponseStore(database, sealer=Sealer(b"\x01" * 32, entropy=lambda size: b"\x02" * size))
    secret = StoredResponse(status=200, headers=((b"x-secret", b"hush"),), body=b"paid for")
    await answers.keep(name(1), secret, payer=PAYER, provider=PROVIDER, now_ms=NOW_MS)
    sealed = await database.read(
        lambda c: bytes(c.execute(text("SELECT sealed FROM stored_response")).scalar_one())
    )
    assert b"paid for" not in sealed
    assert b"hush" not in sealed
    await database.write(lambda c: c.execute(text("UPDATE stored_response SET call_id = 'call_2'")))
    assert await answers.find(name(2), now_ms=NOW_MS) is None
    other = ResponseStore(database, sealer=Sealer(b"\x03" * 32, entropy=lambda size: b"\x02" * size))
    assert await other.find(name(2), now_ms=NOW_MS) is None
