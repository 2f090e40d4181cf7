"""The transaction of an authorisation: its fields and its fees."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.kit.chain_blocks import parse_authorized_transfer, parse_sent
from tests.kit.payer import CHAIN, AuthorizationSigner
from tests.kit.settlement import LISTING, TOKEN, SettlementHarness, make_gas_key
from tollway.chain.port import Fees
from tollway.ids import CallId, ListingId
from tollway.ledger.ledger import Fenced, NonceUnavailable
from tollway.ledger.records import Authorization, SettlementAttempt
from tollway.payments.nonces import NonceSequence
from tollway.payments.transactions import (
    NONCE_TRIES_MAX,
    SentCall,
    TransactionFees,
    bump_fees,
    choose_fees,
    encode_settlement,
    encode_transfer_call,
    limit_gas,
    read_fees,
    read_valid_before,
    sign_attempt,
    sign_filler,
    sign_next,
    sign_replacement,
)

GWEI = 10**9


def fees(base_gwei: float, tip_gwei: float) -> Fees:
    return Fees(chain_id=CHAIN, base_fee_wei=round(base_gwei * GWEI), tip_wei=round(tip_gwei * GWEI))


def call_of(authorization: Authorization, listing_id: ListingId = LISTING) -> SentCall:
    to, calldata = encode_settlement(authorization, None)
    return SentCall(
        chain_id=authorization.chain_id,
        call_id=CallId("c"),
        listing_id=listing_id,
        gas=90_000,
        to=to,
        calldata=calldata,
    )


def test_an_attempt_contains_only_the_signed_fields() -> None:
    authorization = AuthorizationSigner().authorize()
    transfer_call = call_of(authorization)
    tx_fees = TransactionFees(max_fee_wei=3 * GWEI, tip_wei=GWEI)
    attempt = sign_attempt(transfer_call, make_gas_key(), nonce=4, tx_fees=tx_fees, now_ms=5)
    sent = parse_sent(attempt.raw)
    assert (sent.sender, sent.nonce, sent.recipient) == (make_gas_key().address, 4, TOKEN)
    assert (sent.gas, sent.max_fee_wei, sent.tip_wei) == (90_000, 3 * GWEI, GWEI)
    assert sent.calldata == encode_transfer_call(authorization)
    assert sent.tx_hash == attempt.tx_hash
    assert attempt.fee_max_wei == 90_000 * 3 * GWEI
    transfer = parse_authorized_transfer(sent.calldata)
    assert transfer is not None
    assert (transfer.payer, transfer.payee, transfer.base_units) == (
        authorization.payer,
        authorization.payee,
        authorization.base_units,
    )
    assert read_fees(attempt) == tx_fees
    assert read_valid_before(attempt) == authorization.valid_before


@pytest.mark.parametrize("signature", [b"\1" * 65, b"\2" * 300], ids=["of a key", "of a contract"])
def test_a_replacement_differs_only_in_its_price(signature: bytes) -> None:
    key, tx_fees = make_gas_key(), TransactionFees(max_fee_wei=3 * GWEI, tip_wei=GWEI)
    authorization = AuthorizationSigner().authorize(signature=signature)
    transfer_call = call_of(authorization)
    first = sign_attempt(transfer_call, key, nonce=4, tx_fees=tx_fees, now_ms=5)
    more = TransactionFees(max_fee_wei=4 * GWEI, tip_wei=2 * GWEI)
    replacement = sign_replacement(first, key, tx_fees=more, now_ms=6)
    assert replacement == sign_attempt(transfer_call, key, nonce=4, tx_fees=more, now_ms=6)
    assert read_valid_before(replacement) == authorization.valid_before


def test_a_filler_moves_nothing_and_has_the_same_nonce() -> None:
    key, tx_fees = make_gas_key(), TransactionFees(max_fee_wei=3 * GWEI, tip_wei=GWEI)
    transfer_call = call_of(AuthorizationSigner().authorize())
    first = sign_attempt(transfer_call, key, nonce=4, tx_fees=tx_fees, now_ms=5)
    filler = sign_filler(first, key, tx_fees=tx_fees, now_ms=6)
    sent = parse_sent(filler.raw)
    assert (sent.sender, sent.recipient, sent.nonce) == (key.address, key.address, 4)
    assert (sent.calldata, sent.gas, sent.tx_hash) == (b"", 90_000, filler.tx_hash)
    assert (filler.call_id, filler.fee_max_wei, filler.created_ms) == ("c", 90_000 * 3 * GWEI, 6)
    assert read_valid_before(filler) == 0


@pytest.mark.parametrize(("estimate", "limit"), [(60_000, 90_000), (400_000, 300_000)])
def test_gas_is_the_estimate_and_a_margin_within_the_maximum(estimate: int, limit: int) -> None:
    assert limit_gas(estimate, gas_max=300_000) == limit


@pytest.mark.parametrize(
    ("base", "tip", "max_fee", "offered_tip"), [(1, 0.5, 2.5, 0.5), (4, 1, 5, 1), (0.1, 9, 5, 5)]
)
def test_fees_never_exceed_the_maximum(base: float, tip: float, max_fee: float, offered_tip: float) -> None:
    tx_fees = choose_fees(fees(base, tip), price_max_wei=5 * GWEI)
    assert tx_fees == TransactionFees(max_fee_wei=round(max_fee * GWEI), tip_wei=round(offered_tip * GWEI))


def test_a_replacement_raises_both_fees_by_at_least_an_eighth() -> None:
    earlier = TransactionFees(max_fee_wei=8 * GWEI, tip_wei=GWEI)
    bumped = bump_fees(earlier, fees(1, 0.1), price_max_wei=20 * GWEI)
    assert bumped == TransactionFees(max_fee_wei=9 * GWEI + 1, tip_wei=GWEI * 9 // 8 + 1)
    assert bump_fees(earlier, fees(1, 0.1), price_max_wei=9 * GWEI) is None
    risen = bump_fees(earlier, fees(9, 2), price_max_wei=50 * GWEI)
    assert risen == TransactionFees(max_fee_wei=20 * GWEI, tip_wei=2 * GWEI)


# ---- The next transaction of a gas key: the ledger decides its nonce, and a refused nonce leaves no gap.


Store = Callable[[SettlementAttempt], Awaitable[bool | NonceUnavailable]]


@pytest.fixture
async def harness() -> AsyncIterator[SettlementHarness]:
    async with SettlementHarness() as harness:
        yield harness


class FakeNonceLedger:
    """Returns the given results in turn, and True afterwards."""

    def __init__(self, *answers: bool | NonceUnavailable | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[int] = []

    async def __call__(self, attempt: SettlementAttempt) -> bool | NonceUnavailable:
        self.asked.append(attempt.nonce)
        answer = self._answers.pop(0) if self._answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer


def sequence_of(harness: SettlementHarness) -> NonceSequence:
    return harness.gas_budget.sequences(CHAIN)[0]


async def sign(harness: SettlementHarness, store: Store) -> Any:
    transfer_call = call_of(harness.payer().authorize(), ListingId("l"))
    sequence = sequence_of(harness)
    return await sign_next(
        transfer_call,
        sequence,
        store=store,
        gas_ledger=harness.gas,
        gas_budget=harness.gas_budget,
        now_ms=harness.read_clock,
    )


async def test_concurrent_calls_get_nonces_in_order(harness: SettlementHarness) -> None:
    ledger = FakeNonceLedger()
    signed = await asyncio.gather(*(sign(harness, ledger) for _ in range(5)))
    assert [attempt.nonce for attempt in signed] == ledger.asked == [0, 1, 2, 3, 4]


async def test_a_taken_nonce_is_followed_by_the_ledgers_next(harness: SettlementHarness) -> None:
    ledger = FakeNonceLedger(NonceUnavailable(next_nonce=7), NonceUnavailable(next_nonce=9))
    assert (await sign(harness, ledger)).nonce == 9
    assert ledger.asked == [0, 7, 9]


async def test_a_fenced_call_leaves_its_nonce(harness: SettlementHarness) -> None:
    ledger = FakeNonceLedger(False)
    assert await sign(harness, ledger) == Fenced()
    assert (await sign(harness, ledger)).nonce == 0
    assert ledger.asked == [0, 0]


async def test_tries_for_a_nonce_are_limited(harness: SettlementHarness) -> None:
    ledger = FakeNonceLedger(
        *(NonceUnavailable(next_nonce=number + 1) for number in range(2 * NONCE_TRIES_MAX))
    )
    assert await sign(harness, ledger) is None
    assert ledger.asked == list(range(NONCE_TRIES_MAX))


async def test_an_unknown_store_reads_the_nonce_again(
    harness: SettlementHarness,
) -> None:
    with pytest.raises(ZeroDivisionError):
        await sign(harness, FakeNonceLedger(ZeroDivisionError()))
    assert not sequence_of(harness).is_known


async def test_without_a_gas_price_nothing_is_signed(harness: SettlementHarness) -> None:
    harness.now_ms += 86_400_000  # what was known is too old
    ledger = FakeNonceLedger()
    assert await sign(harness, ledger) is None
    assert ledger.asked == []
