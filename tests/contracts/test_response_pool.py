"""The contract of `StoredResponses` at its maxima: callers that pay themselves delete their own responses, not those of others."""

from typing import Any

import pytest

from tests.kit.ledger_records import NOW_MS
from tollway.ids import Address, CallId
from tollway.ledger.ledger import StoredResponse
from tollway.storage.ledger.idempotency import encode_stored_response

KIB = 1024
HOUR_MS = 3_600_000
SMALL = {  # one part in 1024 of the defaults
    "response_bytes_max": 4 * KIB,
    "responses_per_payer_bytes_max": 64 * KIB,
    "answers_per_provider_bytes_max": 256 * KIB,
    "responses_bytes_max": 1024 * KIB,
}
FRAME = len(encode_stored_response(StoredResponse(status=200, headers=(), body=b"")))
HONEST, API = Address(b"\xa1" * 20), Address(b"\xa2" * 20)


def wallet(number: int) -> Address:
    return Address(number.to_bytes(20, "big"))


class Pool:
    """A store, and the responses that the test has stored in it."""

    def __init__(self, answers: Any) -> None:
        self._answers = answers
        self._now_ms = NOW_MS
        self._stored: dict[CallId, tuple[Address, Address, int]] = {}

    async def keep(self, size: int, payer: Address, provider: Address, *, after_ms: int = 1) -> CallId | None:
        self._now_ms += after_ms
        call_id = CallId(f"call_{len(self._stored):05}")
        answer = StoredResponse(status=200, headers=(), body=bytes(size - FRAME))
        is_stored = await self._answers.keep(
            call_id, answer, payer=payer, provider=provider, now_ms=self._now_ms
        )
        self._stored[call_id] = (payer, provider, size)
        return call_id if is_stored else None

    async def has(self, call_id: CallId | None) -> bool:
        assert call_id is not None
        return await self._answers.find(call_id, now_ms=self._now_ms) is not None

    async def held(self, which: Address | None = None) -> int:
        """The bytes that are stored, of all or of one wallet."""
        return sum(
            [
                size
                for call_id, (payer, provider, size) in self._stored.items()
                if which in (None, payer, provider) and await self.has(call_id)
            ]
        )


@pytest.fixture
def pool(ledgers: Any) -> Pool:
    return Pool(ledgers.answers(**SMALL))


@pytest.mark.parametrize("wallets", [20, 30])
async def test_wallets_that_pay_themselves_delete_no_response_of_another(pool: Pool, wallets: int) -> None:
    honest = await pool.keep(1 * KIB, HONEST, API)
    for number in range(330):
        payer = wallet(number % wallets)
        await pool.keep(4 * KIB, payer, payer)
    assert await pool.has(honest)
    assert await pool.held() <= SMALL["responses_bytes_max"]
    assert await pool.held() > SMALL["responses_bytes_max"] * 3 // 4
    assert max([await pool.held(wallet(number)) for number in range(wallets)]) <= 64 * KIB


async def test_a_response_older_than_an_hour_stays_while_others_hold_more(pool: Pool) -> None:
    honest = await pool.keep(1 * KIB, HONEST, API)
    for number in range(300):
        payer = wallet(number % 24)
        await pool.keep(4 * KIB, payer, payer, after_ms=100_000)
    assert await pool.has(honest)


@pytest.mark.parametrize("own", [1, 3])
async def test_many_payers_of_a_few_apis_delete_the_responses_of_these_apis(pool: Pool, own: int) -> None:
    """90 keyed calls with the largest responses, by 18 wallets, of APIs of their own."""
    honest = [await pool.keep(4 * KIB, HONEST, API) for _ in range(4)]
    for number in range(300):
        await pool.keep(4 * KIB, wallet(number % 90), wallet(1_000 + number % own))
    assert [await pool.has(call_id) for call_id in honest] == [True] * 4
    assert await pool.held(wallet(1_000)) <= SMALL["answers_per_provider_bytes_max"]


@pytest.mark.parametrize("wallets", [8, 90])
async def test_callers_of_one_api_delete_no_recent_response_of_its_small_payers(
    pool: Pool, wallets: int
) -> None:
    honest = await pool.keep(1 * KIB, HONEST, API)
    for number in range(300):
        await pool.keep(4 * KIB, wallet(number % wallets), API)
    assert await pool.has(honest)
    assert await pool.held(API) <= SMALL["answers_per_provider_bytes_max"]


async def test_the_large_responses_of_an_honest_payer_go_only_down_to_an_equal_share(pool: Pool) -> None:
    honest = [await pool.keep(4 * KIB, HONEST, API) for _ in range(16)]
    for number in range(330):
        payer = wallet(number % 30)
        await pool.keep(4 * KIB, payer, payer)
    left = [call_id for call_id in honest if await pool.has(call_id)]
    assert len(left) * 4 * KIB >= SMALL["responses_bytes_max"] // 31 - 8 * KIB
    assert left == honest[-len(left) :]


async def test_a_response_is_not_stored_where_no_other_may_be_deleted(ledgers: Any) -> None:
    """The new payer would be the largest, and the others hold less than an equal share."""
    pool = Pool(ledgers.answers(answers_per_provider_bytes_max=100))
    first = [await pool.keep(50, wallet(number), API) for number in range(2)]
    assert await pool.keep(60, HONEST, API) is None
    assert [await pool.has(call_id) for call_id in first] == [True, True]
    late = await pool.keep(60, HONEST, API, after_ms=HOUR_MS)
    assert await pool.has(late)
    assert await pool.held() <= 100


async def test_the_sums_are_read_again_before_a_deletion(ledgers: Any) -> None:
    """Another gateway has deleted what had expired."""
    pool, other = Pool(ledgers.answers(**SMALL)), ledgers.answers(**SMALL)
    for _ in range(16):
        assert await pool.keep(4 * KIB, HONEST, API)
    assert await other.prune(now_ms=NOW_MS + 25 * HOUR_MS) == 16
    assert await pool.has(await pool.keep(4 * KIB, HONEST, API, after_ms=25 * HOUR_MS))
