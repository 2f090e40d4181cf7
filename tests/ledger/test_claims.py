"""The decision of a batch of claims, `decide_claims`, which every implementation of the ledger uses."""

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.ledger_records import (
    CHAIN,
    NOW_MS,
    PAYEE,
    PAYER,
    USDC,
    authorization_of,
    authorized_claim,
    claim_on,
)
from tests.model.rows import sum_unfinal
from tollway.ids import Address, CallId, TxHash
from tollway.ledger.claims import (
    EXPIRY_SLACK_S,
    CreditAccount,
    KnownAuthorization,
    check_units,
    credit_account_of,
    decide_claims,
    find_short_accounts,
    nonce_key,
)
from tollway.ledger.ledger import (
    AuthorizationTaken,
    Claim,
    Claimed,
    Exhausted,
    InDebt,
    NonceUsed,
    NotCovered,
    NotFirst,
    PlainEnded,
    UnfinalLimit,
    Unspendable,
)
from tollway.ledger.records import (
    CallState,
    KeyedCall,
    KeyName,
    KeyTaken,
    OpenCall,
    Payment,
    PaymentState,
    RepeatsOpenCall,
    RequestName,
)

NONCE = b"\x07" * 32


def payment(payment_id: int, value_units: int, **fields: Any) -> Payment:
    defaults: dict[str, Any] = {
        "id": payment_id,
        "chain_id": CHAIN,
        "tx_hash": TxHash(bytes([payment_id]) * 32),
        "asset": USDC,
        "payer": PAYER,
        "payee": PAYEE,
        "value_units": value_units,
        "taken_units": 0,
        "state": PaymentState.FINAL,
        "block_number": 100,
        "block_hash": b"",
        "block_time": 1,
    }
    return Payment(**{**defaults, **fields})


def decide(
    claims: list[Claim],
    *payments: Payment,
    nonces: Any = None,
    keys: Any = None,
    repeats: Any = None,
    debts: Any = None,
    unfinal_max_nano: Any = None,
    now_ms: int = NOW_MS,
    authorizations: Any = (),
) -> Any:
    return decide_claims(
        claims,
        payments=payments,
        nonces=nonces or {},
        keys=keys or {},
        repeats=repeats or {},
        debts=debts or {},
        unfinal_max_nano=unfinal_max_nano or {},
        unfinal_units=sum_unfinal(payments),
        now_ms=now_ms,
        authorizations=authorizations,
    )


@pytest.mark.parametrize(
    ("value", "prices", "granted"),
    [
        (10, [8, 5, 2], [8, 2]),
        (10, [5, 5, 1], [5, 5]),
        (10, [11, 10], [10]),
        (0, [1], []),
        (3, [1] * 5, [1] * 3),
    ],
)
def test_decides_greedily_in_order_and_folds_the_debits(
    value: int, prices: list[int], granted: list[int]
) -> None:
    decisions, debits = decide([claim_on(payment(1, value), price) for price in prices], payment(1, value))
    assert [one.claim.price_units for one in decisions if isinstance(one.outcome, Claimed)] == granted
    assert [(one.taken_before_units, one.taken_units, one.calls) for one in debits] == (
        [(0, sum(granted), len(granted))] if granted else []
    )


@pytest.mark.parametrize(
    ("shown", "claimed", "outcome"),
    [
        ({"is_held": True}, {}, Unspendable(is_held=True)),
        ({"state": PaymentState.GONE}, {}, Unspendable(is_held=False)),
        ({"state": PaymentState.GONE, "is_held": True}, {}, Unspendable(is_held=False)),
        ({"id": 2}, {}, Unspendable(is_held=False)),
        ({}, {"payer": Address(b"\x01" * 20)}, Unspendable(is_held=False)),
        ({}, {"payer": None}, Unspendable(is_held=False)),
        ({"is_plain_ended": True}, {"is_plain": True}, PlainEnded()),
        ({"taken_units": 1}, {"is_first_price": True}, NotFirst()),
        ({"taken_units": 10}, {}, Exhausted(remaining_units=0)),
        ({"taken_units": 8}, {}, Exhausted(remaining_units=2)),
    ],
)
def test_a_refusal_touches_nothing(shown: dict[str, Any], claimed: dict[str, Any], outcome: object) -> None:
    plain = payment(1, 10)
    (decision,), debits = decide([claim_on(plain, 5, **claimed)], replace(plain, **shown))
    assert (decision.outcome, dict(decision.parts), debits) == (outcome, {}, ())


@pytest.mark.parametrize(
    ("owing", "outcome"),
    [
        ({}, InDebt(units=3)),
        ({"chain_id": 1}, None),
        ({"asset": "native"}, None),
        ({"payer": Address(b"\x01" * 20)}, None),
        ({"payee": Address(b"\x01" * 20)}, None),
    ],
)
def test_a_debt_stops_claims_on_its_own_purse_only(owing: dict[str, Any], outcome: object) -> None:
    plain = payment(1, 10)
    debts = {credit_account_of(replace(plain, **owing)): 3}
    (decision,), _ = decide([claim_on(plain, 5)], plain, debts=debts)
    assert decision.outcome == outcome or (outcome is None and isinstance(decision.outcome, Claimed))


def test_the_price_of_a_first_call_is_granted_to_one_of_many_requests() -> None:
    shown = payment(1, 100)
    decisions, _ = decide([claim_on(shown, 5, is_first_price=True) for _ in range(3)], shown)
    assert [type(one.outcome) for one in decisions] == [Claimed, NotFirst, NotFirst]


def test_a_nonce_in_the_ledger_refuses_even_when_the_payment_is_spent() -> None:
    shown = payment(1, 10, taken_units=10)
    claim = claim_on(shown, nonce=NONCE)
    used = NonceUsed(call_id=claim.call_id, state=CallState.CONSUMED)
    key = nonce_key(claim)
    (decision,), _ = decide([claim], shown, nonces={key: used})
    assert decision.outcome == used


@pytest.mark.parametrize(
    ("helper", "outcome"),
    [
        ({}, Claimed),
        ({"is_held": True}, Exhausted),
        ({"state": PaymentState.GONE}, Exhausted),
        ({"taken_units": 3}, Exhausted),
        ({"value_units": 10}, Exhausted),
        ({"payee": Address(b"\x02" * 20)}, Exhausted),
    ],
)
def test_which_siblings_supplement_a_short_payment(helper: dict[str, Any], outcome: type) -> None:
    short = payment(1, 7)
    (decision,), _ = decide([claim_on(short, 10)], short, replace(payment(2, 3), **helper))
    assert type(decision.outcome) is outcome


def test_siblings_add_units_oldest_block_first_for_any_number() -> None:
    short, young, old = payment(1, 5), payment(2, 4, block_number=9), payment(3, 4, block_number=8)
    (decision,), _ = decide([claim_on(short, 10)], short, young, old)
    assert dict(decision.parts) == {1: 5, 3: 4, 2: 1}


@pytest.mark.parametrize(("limit", "granted"), [(None, 3), (6, 3), (5, 2), (4, 2), (1, 0), (0, 0)])
def test_unfinal_value_counts_over_all_payments_of_the_payer(limit: int | None, granted: int) -> None:
    first = payment(1, 10, state=PaymentState.UNFINAL)
    second = payment(2, 10, state=PaymentState.UNFINAL, payee=Address(b"\x02" * 20))
    final = payment(3, 10, taken_units=10)
    claims = [claim_on(first, 2), claim_on(second, 2), claim_on(first, 2)]
    limits = {"ETH": 0} | (
        {} if limit is None else {"USDC": limit * 1_000}
    )  # of 6 decimals: a unit is 1,000 nano
    decisions, _ = decide(claims, first, second, final, unfinal_max_nano=limits)
    assert sum(isinstance(one.outcome, Claimed) for one in decisions) == granted
    assert {type(one.outcome) for one in decisions} <= {Claimed, UnfinalLimit}


@pytest.mark.parametrize(
    ("decimals", "max_nano", "is_granted"),
    [
        (6, 4_999, False),
        (6, 5_000, True),
        (9, 4, False),
        (9, 5, True),
        (18, 4, False),
        (18, 5, True),
        (0, 4_999_999_999, False),
        (0, 5 * 10**9, True),
    ],
)
def test_the_unfinal_maximum_is_read_in_the_ledger_units_of_the_asset(
    decimals: int, max_nano: int, is_granted: bool
) -> None:
    shown = payment(1, 10, state=PaymentState.UNFINAL)
    claim = replace(claim_on(shown, 5), decimals=decimals)
    (decision,), _ = decide([claim], shown, unfinal_max_nano={claim.currency: max_nano})
    assert isinstance(decision.outcome, Claimed) is is_granted


@pytest.mark.parametrize(
    ("taken", "prices", "is_short"), [(0, [10], False), (0, [10, 1], True), (10, [1], False), (9, [2], True)]
)
def test_finds_the_accounts_whose_siblings_the_decision_needs(
    taken: int, prices: list[int], is_short: bool
) -> None:
    shown = payment(1, 10, taken_units=taken)
    found = find_short_accounts([claim_on(shown, price) for price in prices], {1: shown})
    assert found == ({credit_account_of(shown)} if is_short else frozenset())


@pytest.mark.parametrize("units", [-1, 2**63])
def test_refuses_amounts_beyond_a_64_bit_column(units: int) -> None:
    with pytest.raises(ValueError, match="2\\^63"):
        check_units(units)
    check_units(2**63 - 1)


def test_never_grants_more_than_there_is() -> None:
    for seed in range(30):
        draw = random.Random(seed)
        payments = [payment(n, draw.randint(0, 20), block_number=draw.randint(1, 3)) for n in range(1, 6)]
        claims = [claim_on(draw.choice(payments), draw.randint(1, 12)) for _ in range(40)]
        decisions, debits = decide(claims, *payments)
        taken: dict[int, int] = {}
        for one in decisions:
            if isinstance(one.outcome, Claimed):
                assert sum(one.parts.values()) == one.claim.price_units, seed
                for key, units in one.parts.items():
                    assert units > 0, seed
                    taken[key] = taken.get(key, 0) + units
        assert {one.payment_id: one.taken_units for one in debits} == taken, seed
        assert all(taken.get(one.id, 0) <= one.value_units for one in payments), seed


def test_a_nonce_counts_once_within_a_batch() -> None:
    shown = payment(1, 10)
    first, second = claim_on(shown, nonce=NONCE), claim_on(shown, nonce=NONCE)
    decisions, debits = decide([first, second], shown)
    assert decisions[1].outcome == NonceUsed(call_id=first.call_id, state=CallState.FORWARDING)
    assert [one.taken_units for one in debits] == [1]


# Authorisations


def test_debt_and_a_taken_authorisation_are_refused_before_the_cover() -> None:
    claim = authorized_claim(authorization_of(4), balance_units=0)
    key = claim.authorization.key if claim.authorization else None
    assert key is not None
    used = KnownAuthorization(
        key=key,
        call_id=claim.call_id,
        state=CallState.UNKNOWN,
        price_units=4,
        settled_block=None,
        valid_before=2**256 - 1,
    )
    debts = {CreditAccount(CHAIN, USDC, PAYER, PAYEE): 3}

    def outcome(**options: Any) -> Any:
        (decision,), debits = decide([claim], **options)
        assert (dict(decision.parts), debits) == ({}, ())
        return decision.outcome

    taken = AuthorizationTaken(call_id=claim.call_id, state=CallState.UNKNOWN)
    assert outcome(authorizations=[used], debts=debts) == taken
    assert outcome(debts=debts) == InDebt(units=3)
    assert outcome() == NotCovered(held_units=0)


@pytest.mark.parametrize(("price", "is_granted"), [(3, True), (4, False)])
def test_what_is_about_to_move_counts_as_not_final(price: int, is_granted: bool) -> None:
    running = KnownAuthorization(
        key=authorization_of().key,
        call_id=claim_on(None).call_id,
        state=CallState.SETTLING,
        price_units=4,
        settled_block=None,
        valid_before=0,
    )
    unfinal = payment(1, 9, taken_units=3, state=PaymentState.UNFINAL)
    stranger = payment(2, 9, taken_units=9, state=PaymentState.UNFINAL, payer=Address(b"\x01" * 20))
    (decision,), _ = decide(
        [authorized_claim(authorization_of(price))],
        unfinal,
        stranger,
        authorizations=[running],
        unfinal_max_nano={"USDC": 10_000},
    )
    assert isinstance(decision.outcome, Claimed) is is_granted


@pytest.mark.parametrize("received_ms", [0, NOW_MS, 2 * NOW_MS])
@pytest.mark.parametrize(("now_s", "is_granted"), [(-1, False), (0, True)])
def test_the_clock_of_the_batch_decides_and_not_that_of_the_gateway_that_received_the_call(
    received_ms: int, now_s: int, is_granted: bool
) -> None:
    """An unknown call holds its balance until its authorisation has expired; a gateway whose clock is ahead, or a body
    that took long, changes nothing about that."""
    valid_before = NOW_MS // 1000
    unknown = KnownAuthorization(
        key=authorization_of().key,
        call_id=claim_on(None).call_id,
        state=CallState.UNKNOWN,
        price_units=4,
        settled_block=None,
        valid_before=valid_before,
    )
    claim = authorized_claim(authorization_of(4), balance_units=7, created_ms=received_ms)
    now_ms = (valid_before + EXPIRY_SLACK_S + now_s) * 1000
    (decision,), _ = decide([claim], authorizations=[unknown], now_ms=now_ms)
    assert isinstance(decision.outcome, Claimed) is is_granted


def test_claims_by_payment_and_by_authorisation_in_one_batch_do_not_touch_each_other() -> None:
    shown = payment(1, 10)
    claims = [claim_on(shown, 10), authorized_claim(authorization_of(10), balance_units=10)]
    decisions, debits = decide(claims, shown)
    assert [type(one.outcome) for one in decisions] == [Claimed, Claimed]
    assert [one.taken_units for one in debits] == [10]


KEY = KeyName(PAYER, "one")


def named(claim: Claim, state: CallState = CallState.FORWARDING) -> KeyedCall:
    return KeyedCall(
        call_id=claim.call_id,
        listing_id=claim.listing_id,
        digest=claim.digest,
        state=state,
        epoch=1,
        price=claim.price,
        price_units=claim.price_units,
        payment_id=claim.payment_id,
        moved_ms=claim.created_ms,
        authorization=None if claim.authorization is None else claim.authorization.key,
    )


def test_a_key_that_has_named_a_call_is_refused_before_all_else_and_touches_nothing() -> None:
    earlier = named(claim_on(payment(1, 10), 4), CallState.CONSUMED)
    for value in (10, 0):
        claims = [claim_on(payment(1, value), 4, idempotency_key="one")]
        (decision,), debits = decide(claims, payment(1, value), keys={KEY: earlier})
        assert (decision.outcome, decision.parts, debits) == (KeyTaken(call=earlier), {}, ())


def test_of_two_claims_under_one_key_in_a_batch_the_first_that_is_granted_takes_it() -> None:
    poor, rich = payment(1, 1), payment(2, 10)
    short = claim_on(poor, 4, idempotency_key="one")
    first = claim_on(rich, 4, idempotency_key="one")
    second = authorized_claim(authorization_of(4), idempotency_key="one")
    free = [claim_on(None, idempotency_key="one") for _ in range(2)]
    decisions, debits = decide([short, first, second, *free], poor, rich)
    outcomes = [one.outcome for one in decisions]
    assert isinstance(outcomes[0], Exhausted)
    assert isinstance(outcomes[1], Claimed)
    assert outcomes[2] == KeyTaken(call=replace(named(first), moved_ms=NOW_MS))
    assert all(isinstance(outcome, Claimed) for outcome in outcomes[3:])
    assert [debit.taken_units for debit in debits] == [4]


DIGEST = b"\x09" * 32


def waiting(state: CallState = CallState.UNKNOWN, payment_id: int = 1) -> dict[RequestName, OpenCall]:
    """An earlier call of the request with that digest."""
    call = OpenCall(
        call_id=CallId("call_earlier"), state=state, epoch=2, attempts=2, price="0.04", price_units=4
    )
    return {RequestName(payment_id, DIGEST): call}


@pytest.mark.parametrize("state", [CallState.UNKNOWN, CallState.CONSUMED])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_safe_request_with_an_open_call_gets_that_call_first_and_changes_nothing(
    method: str, state: CallState
) -> None:
    shown = payment(1, 10, taken_units=10, is_plain_ended=True)
    claim = claim_on(shown, 4, digest=DIGEST, method=method, is_plain=True, nonce=NONCE)
    used = NonceUsed(call_id=CallId("call_earlier"), state=state)
    (decision,), debits = decide(
        [claim],
        shown,
        repeats=waiting(state),
        nonces={nonce_key(claim): used},
        debts={credit_account_of(shown): 1},
    )
    (open_call,) = waiting(state).values()
    assert (decision.outcome, decision.parts, debits) == (RepeatsOpenCall(call=open_call), {}, ())


ANOTHER_CALL: dict[str, dict[str, Any]] = {
    "unsafe": {"method": "POST"},
    "keyed": {"idempotency_key": "one"},
    "it would not run again": {"is_separate_call": True},
    "another request": {"digest": b"\x0a" * 32},
}


@pytest.mark.parametrize("fields", ANOTHER_CALL.values(), ids=ANOTHER_CALL)
def test_any_other_claim_is_for_a_call_of_its_own(fields: dict[str, Any]) -> None:
    claim = claim_on(payment(1, 10), 4, **{"digest": DIGEST, **fields})
    (decision,), _ = decide([claim], payment(1, 10), repeats=waiting())
    assert isinstance(decision.outcome, Claimed)


@pytest.mark.parametrize("repeats", [waiting(CallState.FORWARDING), waiting(payment_id=2)])
def test_what_runs_or_was_paid_by_another_payment_is_not_run_again(repeats: Any) -> None:
    (decision,), _ = decide([claim_on(payment(1, 10), 4, digest=DIGEST)], payment(1, 10), repeats=repeats)
    assert isinstance(decision.outcome, Claimed)


def test_behind_a_claim_that_was_granted_anew_the_same_request_is_another_call_as_well() -> None:
    shown = payment(1, 10)
    anew = claim_on(shown, 4, digest=DIGEST, is_separate_call=True)
    claims = [claim_on(shown, 4, digest=DIGEST), anew, claim_on(shown, 4, digest=DIGEST)]
    decisions, _ = decide(claims, shown, repeats=waiting())
    assert [type(one.outcome) for one in decisions] == [RepeatsOpenCall, Claimed, Claimed]
