"""The rules as tables: a row for each acceptance, a row for each refusal, and stolen transactions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.chain import authorization_log, transfer_log
from tests.kit.narrowing import of_type
from tollway.chain.networks import ChainRules
from tollway.chain.port import ChainFacts, Log
from tollway.chain.tokens import TRANSFER_TOPIC
from tollway.errors import Code
from tollway.ids import ZERO_ADDRESS, Address, ChainId, TxHash
from tollway.ledger.records import Payment, PaymentState
from tollway.limits import DEFAULT_LIMITS
from tollway.money import UNITS_MAX, Asset
from tollway.payments.pricing import Payee
from tollway.payments.transaction_rules import (
    Accepted,
    BeforeListing,
    BlockInFuture,
    HeldByRestore,
    NoLongerPays,
    NotCanonical,
    NotThePayer,
    Pending,
    Refused,
    StillPays,
    TooOld,
    TransactionReason,
    VerificationInput,
    VerificationResult,
    explain_result,
    find_movements,
    not_mined,
    recheck_payment,
    refuse_transaction,
    verify_transaction,
)

CHAIN = ChainId(84532)
NOW_S = 1_800_000_000
A, B, P, Q, X = (Address(bytes([n]) * 20) for n in range(1, 6))
TOKEN, OTHER_TOKEN = Address(b"\xcc" * 20), Address(b"\xdd" * 20)
USDC = Asset(chain_id=CHAIN, token=TOKEN, symbol="USDC", decimals=6)
FINE = Asset(chain_id=CHAIN, token=OTHER_TOKEN, symbol="USDC", decimals=18)
ETH = Asset(chain_id=CHAIN, token=None, symbol="ETH", decimals=18)
RULES = ChainRules(
    chain_id=CHAIN,
    kind="test",
    confirmations=((0, 2), (100 * 10**9, 12)),
    native_confirmations=((0, 2), (10**9, 20)),
    assets=(USDC, FINE, ETH),
)
BLOCK_HASH = b"\xb0" * 32
DAY = 86_400


def facts(*logs: Log, **fields: Any) -> ChainFacts:
    """Mined an hour ago, twelve blocks deep."""
    defaults: dict[str, Any] = {
        "chain_id": CHAIN,
        "tx_hash": TxHash(b"\x77" * 32),
        "succeeded": True,
        "sender": A,
        "recipient": TOKEN,
        "value": 0,
        "logs": logs,
        "block_number": 100,
        "block_hash": BLOCK_HASH,
        "block_time": NOW_S - 3_600,
        "canonical_hash": BLOCK_HASH,
        "head_number": 111,
        "head_time": NOW_S,
        "finalized_number": 50,
    }
    return ChainFacts(**{**defaults, **fields})


def question(**fields: Any) -> VerificationInput:
    defaults: dict[str, Any] = {
        "rules": RULES,
        "assets": (USDC,),
        "payees": (Payee(address=P, since_s=NOW_S - 9 * DAY),),
        "now_s": NOW_S,
    }
    return VerificationInput(**{**defaults, **fields})


def pay(payer: Address, payee: Address, units: int, token: Address = TOKEN) -> Log:
    return transfer_log(token, payer, payee, units)


def ask(given: ChainFacts, signers: Sequence[Address] = (A,), **fields: Any) -> VerificationResult:
    return verify_transaction(given, question(**fields), signers, limits=DEFAULT_LIMITS)


def worth(result: VerificationResult) -> dict[tuple[str, Address, Address], int]:
    assert isinstance(result, Accepted)
    return {(p.asset, p.payer, p.payee): p.value_units for p in result.payments}


def test_accepts_a_plain_transfer_with_its_payment() -> None:
    result = of_type(Accepted, ask(facts(pay(A, P, 10_000))))
    (payment,) = result.payments
    assert (payment.chain_id, payment.tx_hash, payment.asset) == (CHAIN, b"\x77" * 32, USDC.key)
    assert (payment.payer, payment.payee, payment.value_units) == (A, P, 10_000)
    assert (payment.block_number, payment.block_hash, payment.block_time) == (100, BLOCK_HASH, NOW_S - 3_600)
    assert not payment.is_final


@pytest.mark.parametrize(("finalized", "is_final"), [(99, False), (100, True), (0, False)])
def test_a_payment_is_final_when_its_block_is(finalized: int, is_final: bool) -> None:
    result = of_type(Accepted, ask(facts(pay(A, P, 1), finalized_number=finalized)))
    assert result.payments[0].is_final is is_final


TOKEN_SUMS = {
    "four transfers are worth four": ([pay(A, P, 10)] * 4, 40),
    "other logs beside": ([pay(X, B, 9), pay(A, P, 10), pay(A, B, 7)], 10),
    "another payer's transfer is not mine": ([pay(A, P, 10), pay(B, P, 500)], 10),
    "another token's transfer is worth nothing": ([pay(A, P, 10), pay(A, P, 500, OTHER_TOKEN)], 10),
    "what comes back is subtracted": ([pay(A, P, 10), pay(P, A, 3)], 7),
    "also when it came first": ([pay(P, A, 3), pay(A, P, 10)], 7),
    "what the payee gives to another is not": ([pay(A, P, 10), pay(P, B, 10)], 10),
    "what another gets back is not mine": ([pay(A, P, 10), pay(B, P, 9), pay(P, B, 9)], 10),
    "another's authorisation is not mine": ([pay(A, P, 10), authorization_log(TOKEN, B)], 10),
    "another token's authorisation is not of this": ([pay(A, P, 10), authorization_log(OTHER_TOKEN, A)], 10),
    "the greatest balance": ([pay(A, P, UNITS_MAX)], UNITS_MAX),
}


@pytest.mark.parametrize("case", TOKEN_SUMS)
def test_a_payment_is_the_net_sum_of_matching_logs(case: str) -> None:
    logs, units = TOKEN_SUMS[case]
    assert worth(ask(facts(*logs))) == {(USDC.key, A, P): units}


def test_two_payers_of_one_transaction_have_separate_payments() -> None:
    given = facts(pay(A, P, 10), pay(B, P, 500), sender=X)
    assert worth(ask(given, [A])) == {(USDC.key, A, P): 10}
    assert worth(ask(given, [B])) == {(USDC.key, B, P): 500}
    assert ask(given, [X]) == NotThePayer()  # X only sent the transaction


def test_each_asset_and_payee_is_a_separate_payment() -> None:
    given = facts(pay(A, P, 10), pay(A, Q, 20), pay(A, P, 10**9 * 5, OTHER_TOKEN))
    payees = tuple(Payee(address=address, since_s=0) for address in (P, Q))
    assert worth(ask(given, assets=(USDC, FINE), payees=payees)) == {
        (USDC.key, A, P): 10,
        (USDC.key, A, Q): 20,
        (FINE.key, A, P): 5,
    }


@pytest.mark.parametrize(
    ("base_units", "expected"),
    [
        ([10**9], 1),
        ([10**9 - 1, 1], 1),  # floored once, over the sum
        ([2 * 10**9 - 1], 1),
        ([10**9 - 1], Refused(reason=TransactionReason.BELOW_LEDGER_UNIT)),
        ([1], Refused(reason=TransactionReason.BELOW_LEDGER_UNIT)),
    ],
)
def test_sums_are_floored_to_the_ledger_unit_once(base_units: list[int], expected: Any) -> None:
    result = ask(facts(*(pay(A, P, units, OTHER_TOKEN) for units in base_units)), assets=(FINE,))
    assert (worth(result) if isinstance(result, Accepted) else result) == (
        {(FINE.key, A, P): expected} if isinstance(expected, int) else expected
    )


@pytest.mark.parametrize(
    "logs",
    [[pay(A, P, UNITS_MAX + 1)], [pay(A, P, UNITS_MAX), pay(A, P, 1)], [pay(A, P, 2**256 - 1)]],
    ids=["one", "in two parts", "all there is"],
)
def test_refuses_an_amount_beyond_the_largest_balance(logs: list[Log]) -> None:
    given = facts(*logs, head_number=10_000)
    assert ask(given) == Refused(reason=TransactionReason.AMOUNT_TOO_LARGE)


def indexed(log: Log) -> Log:
    """The log of an ERC-721 token: the number is a topic."""
    return replace(log, topics=(*log.topics, log.payload), payload=b"")


def swapped(log: Log, **fields: Any) -> Log:
    return replace(log, **fields)


NO_PAYMENT: dict[str, tuple[Sequence[Log], TransactionReason]] = {
    "nothing": ([], TransactionReason.NO_TRANSFER),
    "another recipient": ([pay(A, Q, 10)], TransactionReason.WRONG_RECIPIENT),
    "another token": ([pay(A, P, 10, OTHER_TOKEN)], TransactionReason.WRONG_TOKEN),
    "another token to another": ([pay(A, Q, 10, OTHER_TOKEN)], TransactionReason.WRONG_TOKEN),
    "spoofed by a contract of the thief": ([pay(A, P, 10, X)], TransactionReason.WRONG_TOKEN),
    "spoofed beside a transfer to himself": (
        [pay(A, P, 10, X), pay(A, A, 10)],
        TransactionReason.WRONG_RECIPIENT,
    ),
    "removed": ([swapped(pay(A, P, 10), removed=True)], TransactionReason.NO_TRANSFER),
    "nothing moved": ([pay(A, P, 0)], TransactionReason.NO_TRANSFER),
    "four topics": ([indexed(pay(A, P, 10))], TransactionReason.NO_TRANSFER),
    "two topics": ([swapped(pay(A, P, 10), topics=pay(A, P, 10).topics[:2])], TransactionReason.NO_TRANSFER),
    "33 bytes": ([swapped(pay(A, P, 10), payload=bytes(32) + b"\x0a")], TransactionReason.NO_TRANSFER),
    "31 bytes": ([swapped(pay(A, P, 10), payload=b"\x0a" * 31)], TransactionReason.NO_TRANSFER),
    "dirty payer": (
        [swapped(pay(A, P, 10), topics=(TRANSFER_TOPIC, b"\x01" * 12 + A, bytes(12) + P))],
        TransactionReason.NO_TRANSFER,
    ),
    "another event": (
        [swapped(pay(A, P, 10), topics=(bytes(32), *pay(A, P, 10).topics[1:]))],
        TransactionReason.NO_TRANSFER,
    ),
    "all of it back": ([pay(A, P, 10), pay(P, A, 10)], TransactionReason.RETURNED),
    "more than all back": ([pay(A, P, 10), pay(P, A, 11)], TransactionReason.RETURNED),
    "by authorisation": (
        [pay(A, P, 10), authorization_log(TOKEN, A)],
        TransactionReason.AUTHORIZATION_TRANSFER,
    ),
    "by authorisation and otherwise": (
        [pay(A, P, 10), authorization_log(TOKEN, A), pay(A, P, 99)],
        TransactionReason.AUTHORIZATION_TRANSFER,
    ),
    "by authorisation, its event first": (
        [authorization_log(TOKEN, A), pay(A, P, 10)],
        TransactionReason.AUTHORIZATION_TRANSFER,
    ),
}


@pytest.mark.parametrize("case", NO_PAYMENT)
def test_refuses_with_a_reason(case: str) -> None:
    logs, reason = NO_PAYMENT[case]
    assert ask(facts(*logs)) == Refused(reason=reason)


def test_a_transfer_to_the_own_wallet_pays_nothing() -> None:
    assert ask(facts(pay(P, P, 10)), [P]) == Refused(reason=TransactionReason.RETURNED)
    native = facts(sender=P, recipient=P, value=10**18)
    assert ask(native, [P], assets=(ETH,)) == Refused(reason=TransactionReason.RETURNED)


def test_refuses_a_failed_transaction_and_another_chain() -> None:
    assert ask(facts(pay(A, P, 10), succeeded=False)) == Refused(reason=TransactionReason.TRANSACTION_FAILED)
    assert ask(facts(pay(A, P, 10), chain_id=ChainId(1))) == Refused(reason=TransactionReason.WRONG_CHAIN)


@pytest.mark.parametrize(
    "signers", [(), (B,), (X, B), (P,)], ids=["nobody", "another", "others", "the payee"]
)
def test_only_the_payer_may_use_a_payment(signers: tuple[Address, ...]) -> None:
    assert ask(facts(pay(A, P, 10)), signers) == NotThePayer()


def test_the_sender_of_a_token_transfer_is_not_its_payer() -> None:
    given = facts(pay(A, P, 10), sender=B)
    assert ask(given, [B]) == NotThePayer()
    assert worth(ask(given, [A])) == {(USDC.key, A, P): 10}


def test_a_mint_has_no_payer() -> None:
    assert ask(facts(pay(ZERO_ADDRESS, P, 10)), [ZERO_ADDRESS]) == NotThePayer()


NATIVE = {
    "exact": ({}, (A,), 5),
    "another recipient": ({"recipient": Q}, (A,), TransactionReason.WRONG_RECIPIENT),
    "a contract": ({"recipient": X}, (A,), TransactionReason.WRONG_RECIPIENT),
    "a creation": ({"recipient": None}, (A,), TransactionReason.WRONG_RECIPIENT),
    "no value": ({"value": 0}, (A,), TransactionReason.NO_TRANSFER),
    "dust": ({"value": 10**9 - 1}, (A,), TransactionReason.BELOW_LEDGER_UNIT),
    "failed": ({"succeeded": False}, (A,), TransactionReason.TRANSACTION_FAILED),
}


@pytest.mark.parametrize("case", NATIVE)
def test_native_currency_counts_by_the_transaction_itself(case: str) -> None:
    fields, signers, expected = NATIVE[case]
    result = ask(facts(**{"recipient": P, "value": 5 * 10**9 + 1, **fields}), signers, assets=(ETH,))
    if isinstance(expected, TransactionReason):
        assert result == Refused(reason=expected)
    else:
        assert worth(result) == {("native", A, P): expected}


def test_native_value_does_not_pay_a_listing_sold_in_a_token() -> None:
    assert ask(facts(recipient=P, value=10**18)) == Refused(reason=TransactionReason.WRONG_TOKEN)


def test_a_token_transfer_does_not_pay_a_listing_sold_in_native_currency() -> None:
    assert ask(facts(pay(A, P, 10)), assets=(ETH,)) == Refused(reason=TransactionReason.WRONG_TOKEN)


def test_a_native_payer_is_the_sender_only() -> None:
    assert ask(facts(recipient=P, value=10**18), [B], assets=(ETH,)) == NotThePayer()


DEPTH = [
    (10, 100, 1, Pending(confirmations=1, needed=2)),
    (10, 101, 2, None),
    (100 * 10**6, 110, 11, Pending(confirmations=11, needed=12)),
    (100 * 10**6 - 1, 101, 2, None),
    (100 * 10**6, 111, 12, None),
    (10, 99, 0, Pending(confirmations=0, needed=2)),
    (10, 42, 0, Pending(confirmations=0, needed=2)),
]


@pytest.mark.parametrize(("units", "head", "depth", "expected"), DEPTH)
def test_the_required_depth_follows_the_value(
    units: int, head: int, depth: int, expected: Pending | None
) -> None:
    result = ask(facts(pay(A, P, units), head_number=head))
    assert result == expected if expected else isinstance(result, Accepted)
    if expected:
        assert expected.confirmations == depth


def test_native_currency_has_steps_of_its_own() -> None:
    given = facts(recipient=P, value=10**18, head_number=111)
    assert ask(given, assets=(ETH,)) == Pending(confirmations=12, needed=20)


@pytest.mark.parametrize(
    "given",
    [
        facts(pay(A, P, 10)),
        facts(pay(A, P, 10), succeeded=False),
        facts(pay(A, Q, 10)),
        facts(pay(B, P, 10)),
        facts(pay(A, P, 10), block_time=NOW_S - 9 * DAY),
    ],
    ids=["a payment", "a failure", "another recipient", "another payer", "an old one"],
)
def test_a_shallow_or_displaced_block_is_pending(given: ChainFacts) -> None:
    """A transaction may be mined again with another effect; no caller must pay again until it is deep enough."""
    shallow = replace(given, head_number=100)
    assert ask(shallow) == Pending(confirmations=1, needed=2)
    displaced = replace(given, canonical_hash=bytes(32))
    assert ask(displaced) == Pending(confirmations=0, needed=2)


@pytest.mark.parametrize(
    ("age_s", "credit_s", "expected"),
    [
        (DAY, 0, None),
        (DAY + 1, 0, TooOld(age_s=DAY + 1)),
        (DAY + 1, 1, None),
        (3 * DAY, 2 * DAY, None),
        (3 * DAY, 2 * DAY - 1, TooOld(age_s=DAY + 1)),
        (-60, 0, None),
        (-61, 0, BlockInFuture(seconds=61)),
    ],
)
def test_a_payment_counts_for_a_day_of_readiness(age_s: int, credit_s: int, expected: Any) -> None:
    result = ask(facts(pay(A, P, 10), block_time=NOW_S - age_s), age_credit_s=credit_s)
    assert result == expected if expected else isinstance(result, Accepted)


def test_an_admitted_payment_may_be_old_or_from_before_a_restore() -> None:
    old = facts(pay(A, P, 10), block_time=NOW_S - 8 * DAY)
    assert isinstance(ask(old, is_admitted=True), Accepted)
    assert isinstance(ask(old, is_admitted=True, held_before_s=NOW_S), Accepted)
    assert ask(old, [B], is_admitted=True) == NotThePayer()
    assert isinstance(ask(facts(pay(A, P, 10), head_number=100), is_admitted=True), Pending)


@pytest.mark.parametrize(
    ("held_before_s", "is_held"),
    [(NOW_S - 3_600, True), (NOW_S, True), (NOW_S - 3_601, False), (None, False)],
)
def test_a_payment_mined_before_a_restore_is_held(held_before_s: int | None, is_held: bool) -> None:
    result = ask(facts(pay(A, P, 10)), held_before_s=held_before_s)
    assert result == HeldByRestore() if is_held else isinstance(result, Accepted)


@pytest.mark.parametrize(("since_s", "counts"), [(3_600, True), (3_540, True), (3_539, False), (0, False)])
def test_a_payment_is_at_most_a_minute_older_than_its_payee(since_s: int, counts: bool) -> None:
    payees = (Payee(address=P, since_s=NOW_S - since_s),)
    result = ask(facts(pay(A, P, 10)), payees=payees)
    assert isinstance(result, Accepted) if counts else result == BeforeListing()


@pytest.mark.parametrize("since_s", [3_539, 0, -1_000_000])
def test_an_admitted_payment_counts_however_new_its_payee_is(since_s: int) -> None:
    payees = (Payee(address=P, since_s=NOW_S - since_s),)
    assert isinstance(ask(facts(pay(A, P, 10)), payees=payees, is_admitted=True), Accepted)


@pytest.mark.parametrize(
    ("logs", "result"),
    [
        ((pay(A, P, 10), pay(P, A, 10)), Refused(reason=TransactionReason.RETURNED)),
        ((pay(A, Q, 10),), Refused(reason=TransactionReason.WRONG_RECIPIENT)),
        ((pay(A, P, 10),), BeforeListing()),
        ((pay(A, P, 2**70),), BeforeListing()),
    ],
)
def test_a_payment_before_its_payee_is_refused_only_where_no_value_reached_the_payee(
    logs: Any, result: Any
) -> None:
    assert ask(facts(*logs), payees=(Payee(address=P, since_s=NOW_S),)) == result


def test_a_payee_that_is_too_new_does_not_affect_another() -> None:
    payees = (Payee(address=P, since_s=NOW_S), Payee(address=Q, since_s=0))
    assert worth(ask(facts(pay(A, P, 10), pay(A, Q, 20)), payees=payees)) == {(USDC.key, A, Q): 20}


def test_no_payee_and_no_asset_means_no_payment() -> None:
    assert isinstance(ask(facts(pay(A, P, 10)), payees=()), Refused)
    assert isinstance(ask(facts(pay(A, P, 10)), assets=()), Refused)


def test_reads_a_receipt_of_thousands_of_logs() -> None:
    many = [
        pay(Address(n.to_bytes(20, "big")), P, 1, Address(n.to_bytes(20, "big"))) for n in range(1, 3_001)
    ]
    assert ask(facts(*many)) == Refused(reason=TransactionReason.WRONG_TOKEN)
    payers = [pay(Address(n.to_bytes(20, "big")), P, 1) for n in range(1, 3_001)]
    assert len(find_movements(facts(*payers), question())) == 3_000


# ---- What is in the ledger already.


def recorded(units: int = 10, **fields: Any) -> Payment:
    defaults: dict[str, Any] = {
        "id": 1,
        "chain_id": CHAIN,
        "tx_hash": TxHash(b"\x77" * 32),
        "asset": USDC.key,
        "payer": A,
        "payee": P,
        "value_units": units,
        "taken_units": 0,
        "state": PaymentState.UNFINAL,
        "block_number": 90,
        "block_hash": b"\x90" * 32,
        "block_time": NOW_S - 9 * DAY,
    }
    return Payment(**{**defaults, **fields})


@pytest.mark.parametrize(
    ("given", "units", "is_deep"),
    [
        (facts(pay(A, P, 10)), 10, True),
        (facts(pay(A, P, 10), pay(B, P, 99)), 10, True),
        (facts(pay(A, P, 7)), 7, True),
        (facts(pay(A, P, 10), head_number=100), 10, False),
        (facts(pay(A, P, 10), block_time=NOW_S - 90 * DAY), 10, True),
    ],
    ids=["the same", "another beside", "worth less", "shallow", "old"],
)
def test_a_recorded_payment_still_pays(given: ChainFacts, units: int, is_deep: bool) -> None:
    outcome = of_type(StillPays, recheck_payment(given, recorded(), RULES))
    assert (outcome.payment.value_units, outcome.is_deep) == (units, is_deep)
    assert outcome.payment.block_number == 100


@pytest.mark.parametrize(
    "given",
    [
        facts(pay(A, P, 10), succeeded=False),
        facts(),
        facts(pay(B, P, 10)),
        facts(pay(A, Q, 10)),
        facts(pay(A, P, 10), pay(P, A, 10)),
        facts(pay(A, P, 10), authorization_log(TOKEN, A)),
        facts(pay(A, P, 10, OTHER_TOKEN)),
        facts(pay(A, P, UNITS_MAX + 1)),
    ],
    ids=[
        "failed",
        "empty",
        "another payer",
        "another payee",
        "returned",
        "authorised",
        "another token",
        "too large",
    ],
)
def test_a_recorded_payment_no_longer_pays(given: ChainFacts) -> None:
    assert isinstance(recheck_payment(given, recorded(), RULES), NoLongerPays)


@pytest.mark.parametrize(
    ("given", "units"),
    [
        (facts(authorization_log(TOKEN, A), pay(A, P, 10)), 10),
        (facts(pay(A, P, 10), authorization_log(TOKEN, A)), 10),
        (facts(authorization_log(TOKEN, A), pay(A, P, 10), pay(P, A, 10)), 10),
        (facts(authorization_log(TOKEN, A), pay(A, P, 10), authorization_log(TOKEN, B), pay(B, P, 99)), 10),
        (facts(authorization_log(TOKEN, A), pay(A, P, 7)), 7),
    ],
    ids=["the same", "the other order", "given back beside it", "another payer beside", "worth less"],
)
def test_an_authorised_transfer_confirms_a_payment_by_authorisation(given: ChainFacts, units: int) -> None:
    outcome = of_type(StillPays, recheck_payment(given, recorded(is_authorized=True), RULES))
    assert outcome.payment.value_units == units


@pytest.mark.parametrize(
    "given",
    [
        facts(pay(A, P, 10)),
        facts(pay(A, P, 10), authorization_log(TOKEN, B)),
        facts(pay(A, P, 10), authorization_log(OTHER_TOKEN, A)),
        facts(authorization_log(TOKEN, A), pay(A, Q, 10)),
        facts(authorization_log(TOKEN, A)),
        facts(authorization_log(TOKEN, A), pay(A, P, 10), succeeded=False),
    ],
    ids=[
        "a plain transfer",
        "of another payer",
        "of another token",
        "another payee",
        "nothing moved",
        "failed",
    ],
)
def test_nothing_else_confirms_a_payment_by_authorisation(given: ChainFacts) -> None:
    assert isinstance(recheck_payment(given, recorded(is_authorized=True), RULES), NoLongerPays)


def test_a_displaced_block_or_an_unknown_asset_is_not_canonical() -> None:
    given = facts(pay(A, P, 10), canonical_hash=bytes(32))
    assert recheck_payment(given, recorded(), RULES) == NotCanonical()
    assert recheck_payment(facts(pay(A, P, 10)), recorded(asset="0x" + "11" * 20), RULES) == NotCanonical()


# ---- The problem of each result; a transaction that may still pay, or has paid, never gets `payment_verification_failed`.


@pytest.mark.parametrize(
    ("result", "code", "reason", "retry_after_s"),
    [
        (Pending(confirmations=1, needed=12), Code.PAYMENT_PENDING, "confirmations", 2),
        (BlockInFuture(seconds=61), Code.PAYMENT_PENDING, "block_in_future", 60),
        (BlockInFuture(seconds=7_200), Code.PAYMENT_PENDING, "block_in_future", 60),
        (NotThePayer(), Code.PAYER_MISMATCH, None, None),
        (TooOld(age_s=90_000), Code.PAYMENT_TOO_OLD, None, None),
        (BeforeListing(), Code.PAYMENT_TOO_OLD, "before_listing", None),
        (HeldByRestore(), Code.PAYMENT_HELD, None, None),
    ],
)
def test_each_result_has_its_code(result, code, reason, retry_after_s) -> None:
    problem = explain_result(result)
    assert (problem.code, problem.reason, problem.retry_after_s) == (code, reason, retry_after_s)
    assert problem.payment_state in ("none", "held")
    assert problem.detail


def test_every_reason_has_a_detail() -> None:
    problems = [explain_result(Refused(reason=reason)) for reason in TransactionReason]
    assert problems == [refuse_transaction(reason) for reason in TransactionReason]
    assert [(problem.code, problem.reason) for problem in problems] == [
        (Code.PAYMENT_VERIFICATION_FAILED, reason.value) for reason in TransactionReason
    ]
    assert [problem.reason for problem in problems if not problem.detail.endswith(".")] == []


def test_a_missing_transaction_is_pending() -> None:
    problem = not_mined(TxHash(b"\x07" * 32))
    assert (problem.code, problem.reason) == (Code.PAYMENT_PENDING, "not_mined")
    assert "0x0707" in problem.detail
