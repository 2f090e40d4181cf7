"""Plain claims and ends: one statement grants what `decide_claims` would grant, and nothing else.

A case for each guard; random batches decided in both ways; and concurrent transactions that change the same rows over two real
connections."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.util import await_only

from tests.kit.budgets import OWNER, bind, policy_of
from tests.kit.databases import open_database
from tests.kit.ledger_records import (
    NOW_MS,
    PAYEE,
    PAYER,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    finish_of,
    new_payment,
    operator_origin,
    transfer_in,
    tx_hash,
)
from tests.kit.ledger_steps import conclude, learn_terms, open_authorized, pay, read_rest, settle
from tests.kit.sql_ledger import write_terms_of
from tests.kit.storage_faults import FaultyLedger, start
from tests.kit.waits import bounded, until, wait_blocked
from tollway.errors import StorageUnavailable
from tollway.ids import Address, keccak256
from tollway.ledger.claims import (
    PAYMENT_GUARDS,
    PlainCase,
    credit_account_of,
    is_claim_alone_plain,
    is_plain_claim,
    nonce_key,
)
from tollway.ledger.ledger import (
    AuthorizationTaken,
    BudgetExceeded,
    Claim,
    Claimed,
    Close,
    Closed,
    Exhausted,
    Fenced,
    InDebt,
    NonceUsed,
    NotFirst,
    PlainEnded,
    UnfinalLimit,
    Unspendable,
)
from tollway.ledger.records import CallState, Delivery, KeyTaken, PaymentState, RepeatsOpenCall
from tollway.spending_policy import write_policy
from tollway.storage.engine.database import Database
from tollway.storage.ledger.budget_rows import budget_table
from tollway.storage.ledger.call_terms import KnownTerms
from tollway.storage.ledger.debts import BEFORE_ALL_CALLS, find_debts
from tollway.storage.ledger.gone_payments import end_spending, move_chunk
from tollway.storage.ledger.ledger_batch import AccountsShort, BatchRules, LedgerBatch, Reopen
from tollway.storage.ledger.ledger_tables import parse_payment, payment_table
from tollway.storage.ledger.payments import insert_payment, read_payments
from tollway.storage.ledger.plain_writes import grant_plain_claims, write_plain_closes

pytestmark = pytest.mark.dialects

OTHER = Address(b"\x77" * 20)
NONCE = b"\x09" * 32
UNFINAL = {"is_final": False}
RULES = BatchRules(owner_id="one", attempts_max=3, unfinal_max_nano={}, response_ttl_ms=86_400_000)


# ---- A claim that is not plain is decided. Each case breaks one guard.


async def of_another_payer(ledger: Any) -> list[Claim]:
    return [claim_on(await pay(ledger, 10), payer=OTHER)]


async def on_what_is_gone(ledger: Any) -> list[Claim]:
    payment = await pay(ledger, 10, **UNFINAL)
    await ledger.mark_gone(payment.id, now_ms=NOW_MS)
    return [claim_on(payment)]


async def on_what_is_held(ledger: Any) -> list[Claim]:
    payment = await pay(ledger, 10, **UNFINAL)
    await ledger.hold_disputed([payment.id])
    return [claim_on(payment)]


async def plain_after_bound(ledger: Any) -> list[Claim]:
    payment = await pay(ledger, 10)
    await ledger.claim(claim_on(payment, ends_plain=True))
    return [claim_on(payment, is_plain=True)]


async def plain_behind_bound(ledger: Any) -> list[Claim]:
    payment = await pay(ledger, 10)
    return [claim_on(payment, ends_plain=True), claim_on(payment, is_plain=True)]


async def more_than_there_is(ledger: Any) -> list[Claim]:
    payment = await pay(ledger, 3)
    return [claim_on(payment, 2), claim_on(payment, 2)]


async def in_debt(ledger: Any) -> list[Claim]:
    gone = await pay(ledger, 5, "gone", **UNFINAL)
    await ledger.claim(bought := claim_on(gone, 5))
    await ledger.close(close_of(bought))
    left = await pay(ledger, 3, "left")
    await ledger.mark_gone(gone.id, now_ms=NOW_MS)
    return [claim_on(left)]


async def of_an_unknown_call(ledger: Any) -> list[Claim]:
    payment = await pay(ledger, 10)
    await ledger.claim(first := claim_on(payment))
    await ledger.close(close_of(first, CallState.UNKNOWN, http_status=None, upstream_status=None))
    return [claim_on(payment, digest=first.digest)]


async def of_a_cut_call(ledger: Any) -> list[Claim]:
    payment = await pay(ledger, 10)
    await ledger.claim(first := claim_on(payment))
    await ledger.close(close_of(first))
    ledger.finish(replace(finish_of(first), is_cut=True))
    await ledger.close(close_of(first))  # behind it
    return [claim_on(payment, digest=first.digest)]


async def with_a_used_nonce(ledger: Any) -> list[Claim]:
    payment = await pay(ledger, 10)
    await ledger.claim(claim_on(payment, nonce=NONCE))
    return [claim_on(payment, nonce=NONCE)]


async def with_one_nonce_twice(ledger: Any) -> list[Claim]:
    payment = await pay(ledger, 10)
    return [claim_on(payment, nonce=NONCE), claim_on(payment, nonce=NONCE)]


async def of_a_bound_wallet(ledger: Any) -> list[Claim]:
    payment = await pay(ledger, 10)
    await bind(ledger, policy_of(currency="EURC", maxTotal="0"))
    return [claim_on(payment)]


async def by_a_held_authorization(ledger: Any) -> list[Claim]:
    authorization = authorization_of(2)
    await ledger.claim(authorized_claim(authorization))
    return [authorized_claim(authorization)]


async def under_a_used_key(ledger: Any) -> list[Claim]:
    payment = await pay(ledger, 10)
    await ledger.claim(claim_on(payment, idempotency_key="key"))
    return [claim_on(payment, idempotency_key="key")]


async def at_a_first_price_too_late(ledger: Any) -> list[Claim]:
    payment = await pay(ledger, 10)
    await ledger.claim(claim_on(payment))
    return [claim_on(payment, is_first_price=True)]


async def beyond_a_maximum(ledger: Any) -> list[Claim]:
    return [claim_on(await pay(ledger, 10, **UNFINAL), 6)]


CASES = {
    "payer matches": (of_another_payer, [Unspendable]),
    "not gone": (on_what_is_gone, [Unspendable]),
    "not held": (on_what_is_held, [Unspendable]),
    "plain form counts": (plain_after_bound, [PlainEnded]),
    "one form of proof": (plain_behind_bound, [Claimed, PlainEnded]),
    "whole sum covered": (more_than_there_is, [Claimed, Exhausted]),
    "no debt": (in_debt, [InDebt]),
    "no open repeat": (of_an_unknown_call, [RepeatsOpenCall]),
    "no open repeat, cut": (of_a_cut_call, [RepeatsOpenCall]),
    "nonce not used": (with_a_used_nonce, [NonceUsed]),
    "nonce not used, in one batch": (with_one_nonce_twice, [Claimed, NonceUsed]),
    "no owner": (of_a_bound_wallet, [BudgetExceeded]),
    "no authorisation": (by_a_held_authorization, [AuthorizationTaken]),
    "no idempotency key": (under_a_used_key, [KeyTaken]),
    "no first price": (at_a_first_price_too_late, [NotFirst]),
    "no maximum of unfinal value": (beyond_a_maximum, [UnfinalLimit]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("ledgers", "is_alone"),
    [
        pytest.param("memory", False, id="memory"),  # it has no statement for one claim alone
        pytest.param("sqlite", True, id="sqlite-alone"),
        pytest.param("sqlite", False, id="sqlite-in a batch"),
        pytest.param("postgresql", True, id="postgresql-alone", marks=pytest.mark.postgres),
        pytest.param("postgresql", False, id="postgresql-in a batch", marks=pytest.mark.postgres),
    ],
    indirect=["ledgers"],
)
async def test_what_is_not_plain_is_decided(ledgers: Any, case: str, is_alone: bool) -> None:
    """The same outcome on every kind of ledger, also in a batch with granted claims."""
    ledger = await ledgers.gateway("one", unfinal_max_nano={"USDC": 5_000})
    make, kinds = CASES[case]
    unlimited = {"currency": "EURC"} if "maximum" not in case else {}  # of USDC there is one
    claims = [replace(claim, **unlimited) for claim in await make(ledger)]
    await learn_terms(ledger, "EURC", "USDC")
    others = []
    if not is_alone:
        payment = await pay(ledger, 5, "other", payer=OTHER)
        others = [claim_on(payment, currency="EURC"), claim_on(None, currency="EURC")]
    outcomes = await asyncio.gather(*(ledger.claim(one) for one in [*claims, *others]))
    assert [type(one) for one in outcomes] == [*kinds, *[Claimed] * len(others)]
    assert (await ledger.audit()).wrong == ()


def test_every_guard_has_a_case() -> None:
    of_a_claim = {"no authorisation", "no idempotency key", "no first price", "no maximum of unfinal value"}
    assert {case.partition(",")[0] for case in CASES} >= {*of_a_claim, *PAYMENT_GUARDS}


async def test_a_used_nonce_fails_no_other_claim_of_its_batch(url: str) -> None:
    async with open_ledger(url) as (ledger, database):
        payment, other = await pay(ledger, 10), await pay(ledger, 10, "other")
        await ledger.claim(claim_on(payment, nonce=NONCE))
        claims = [claim_on(payment, nonce=NONCE), claim_on(other)]
        granted = await database.write_statement(
            lambda c: grant_plain_claims(
                c, claims, write_terms_of(c, claims), owner_id="one", now_ms=NOW_MS, ahead_ms=0
            )
        )
        assert [type(one) for one in granted] == [type(None), Claimed]


@pytest.mark.parametrize("left", ["its nonce is used by the one before", "it is not covered"])
async def test_on_sqlite_claims_are_granted_in_order(sqlite_url: str, left: str) -> None:
    """Up to the first claim of a payment that is not granted: a smaller claim behind it does not overtake it."""
    async with open_ledger(sqlite_url) as (ledger, database):
        payment, other = await pay(ledger, 5), await pay(ledger, 10, "other")
        nonces = [NONCE, NONCE] if "nonce" in left else [None, None]
        units = [2, 2] if "nonce" in left else [2, 4]
        claims = [claim_on(payment, one, nonce=nonce) for one, nonce in zip(units, nonces, strict=True)] + [
            claim_on(payment, 1),
            claim_on(other),
        ]
        granted = await database.write(
            lambda c: grant_plain_claims(
                c, claims, write_terms_of(c, claims), owner_id="one", now_ms=NOW_MS, ahead_ms=0
            )
        )
        assert [type(one) for one in granted] == [Claimed, type(None), type(None), Claimed]


# ---- Random batches, both ways, in one transaction that is never committed.


@dataclass
class _Undo(Exception):
    result: Any


def undone(connection: Connection, work: Callable[[], Any]) -> Any:
    """The result of `work`, whose writes are rolled back."""
    try:
        with connection.begin_nested():
            raise _Undo(work())
    except _Undo as done:
        return done.result


def decide(connection: Connection, entries: Sequence[Any], *, is_retry: bool = False) -> list[Any]:
    """Decides the batch with locked rows, by `decide_claims`."""
    accounts: Any = frozenset()
    while True:
        try:
            with connection.begin_nested():
                return LedgerBatch(
                    connection,
                    RULES,
                    now_ms=NOW_MS,
                    ahead_ms=0,
                    is_retry=is_retry,
                    others=frozenset(),
                    retried=frozenset(),
                    accounts=accounts,
                    known_terms=KnownTerms(),
                ).run(entries)
        except AccountsShort as short:
            accounts = short.accounts


def read_rows(connection: Connection) -> dict[str, list[Any]]:
    tables = ("payment", "call", "call_topup", "call_total", "repeat_nonce")
    return {
        name: sorted(map(tuple, connection.execute(text(f"SELECT * FROM {name}"))), key=repr)
        for name in tables
    }


class RandomBooks:
    """Payments and calls in every state, made by the real code."""

    def __init__(self, connection: Connection, seed: int) -> None:
        self._connection = connection
        self._random = random.Random(seed)
        self.payments: list[Any] = []
        self._digests = [keccak256(bytes([number])) for number in range(3)]
        self._nonces = [bytes([number]) * 32 for number in range(4)]
        self._granted: list[Claim] = []

    def make(self) -> None:
        rolls, connection = self._random, self._connection
        for number in range(rolls.randint(1, 5)):
            new = new_payment(
                rolls.randint(0, 12),
                f"tx {number}",
                is_final=rolls.random() < 0.5,
                payer=rolls.choice((PAYER, PAYER, OTHER)),
                payee=rolls.choice((PAYEE, PAYEE, OTHER)),
            )
            insert_payment(connection, new, NOW_MS)
            self.payments += read_payments(connection, new.tx_hash)
        if rolls.random() < 0.2:
            policy = write_policy(policy_of(maxTotal="0.00001", agent=OTHER))
            row = {
                "owner": OWNER,
                "agent": OTHER,
                "network": "",
                "nonce": 1,
                "policy": policy,
                "currency": "USDC",
                "stored_ms": NOW_MS,
            }
            connection.execute(budget_table.insert().values(bound_ms=NOW_MS, **row))
        for _ in range(rolls.randint(0, 6)):
            claims = [self.claim(is_plain_only=False) for _ in range(rolls.randint(1, 3))]
            granted = [
                claim
                for claim, one in zip(claims, decide(connection, claims), strict=True)
                if isinstance(one, Claimed)
            ]
            self._granted += granted
            self._end(granted)
        for payment in self.payments:
            roll = rolls.random()
            if roll < 0.15 and payment.state is PaymentState.UNFINAL:
                end_spending(connection, payment.id, now_ms=NOW_MS)
                if rolls.random() < 0.7:
                    move_chunk(connection, payment.id, after=BEFORE_ALL_CALLS, calls_max=99, now_ms=NOW_MS)
            elif roll < 0.25:
                held = payment_table.update().where(payment_table.c.id == payment.id).values(is_held=True)
                connection.execute(held)

    def _end(self, claims: Sequence[Claim]) -> None:
        rolls, connection = self._random, self._connection
        for claim in claims:
            after = rolls.choice(
                (CallState.CONSUMED, CallState.CONSUMED, CallState.RELEASED, CallState.UNKNOWN, None)
            )
            if after is None:
                continue
            decide(connection, [close_of(claim, after)])
            if after is CallState.CONSUMED and rolls.random() < 0.2:
                decide(connection, [replace(finish_of(claim), is_cut=True)])
            if after is CallState.UNKNOWN and rolls.random() < 0.3:
                nonce = rolls.choice((None, None, *self._nonces)) if claim.payment_id else None
                decide(connection, [Reopen(call_id=claim.call_id, epoch=1, nonce=nonce)])

    def running(self) -> list[Claim]:
        """Some granted calls, in any state and any run."""
        return self._random.sample(self._granted, min(len(self._granted), 6))

    def claim(self, *, is_plain_only: bool) -> Claim:
        rolls = self._random
        if rolls.random() < 0.1:
            return claim_on(None)
        payment = rolls.choice(self.payments)
        fields: dict[str, Any] = {"payer": OTHER} if rolls.random() < 0.05 else {}
        if rolls.random() < 0.3:
            fields |= {"nonce": rolls.choice(self._nonces), "ends_plain": True}
        elif rolls.random() < 0.5:
            fields["is_plain"] = True
        if rolls.random() < 0.3:
            fields["digest"] = rolls.choice(self._digests)
        if not is_plain_only and rolls.random() < 0.1:
            fields["idempotency_key"] = rolls.choice("abc")
        if not is_plain_only and rolls.random() < 0.1:
            fields["is_first_price"] = True
        return claim_on(payment, rolls.randint(0, 4), **fields)

    def batch(self) -> list[Claim]:
        return [
            self.claim(is_plain_only=self._random.random() < 0.8) for _ in range(self._random.randint(1, 6))
        ]


def find_plain(connection: Connection, claims: Sequence[Claim]) -> set[str]:
    """The claims of one statement that `is_plain_claim` accepts."""
    rows = connection.execute(payment_table.select())
    payments = {payment.id: payment for payment in map(parse_payment, rows)}
    debts = find_debts(connection, {payment.payer for payment in payments.values()})
    calls = connection.execute(text("SELECT payment_id, digest, nonce, state, cut FROM call")).all()
    open_requests = {
        (row.payment_id, bytes(row.digest)) for row in calls if row.state == "unknown" or row.cut == "cut"
    }
    repeated = "SELECT c.payment_id, r.nonce FROM repeat_nonce r JOIN call c ON c.id = r.call_id"
    used = {
        *((row.payment_id, bytes(row.nonce)) for row in calls if row.nonce and row.state != "released"),
        *(
            (row.payment_id, bytes(row.nonce))
            for row in connection.execute(text(f"{repeated} WHERE c.state <> 'released'"))
        ),
    }
    bound = {bytes(row.agent) for row in connection.execute(text("SELECT agent FROM budget"))}
    plain = set()
    one_by_one = connection.dialect.name == "sqlite"
    if not one_by_one:
        claims = without_second_nonces(claims)
    left: set[int | None] = set()
    for claim in claims:
        same = [claim] if one_by_one else [one for one in claims if one.payment_id == claim.payment_id]
        payment = payments.get(claim.payment_id or 0)
        case = None
        if payment is not None:
            is_one_payer = len({one.payer for one in same}) == 1
            assert claim.payer is not None
            case = PlainCase(
                payment=payment if is_one_payer else None,
                payer=claim.payer,
                is_bound=claim.payer in bound,
                units=sum(one.price_units for one in same),
                has_plain_proof=any(one.is_plain for one in same),
                has_bound_proof=any(one.ends_plain for one in same),
                debt_units=debts.get(credit_account_of(payment), 0),
                has_open_repeat=any((one.payment_id, one.digest) in open_requests for one in same),
                is_nonce_used=any((one.payment_id, one.nonce) in used for one in same),
            )
        if claim.payment_id in left or not is_plain_claim(claim, case, limited=()):
            left.add(claim.payment_id)
            continue
        plain.add(str(claim.call_id))
        if one_by_one and payment is not None:  # for later claims it counts as written
            payments[payment.id] = replace(
                payment,
                taken_units=payment.taken_units + claim.price_units,
                is_plain_ended=payment.is_plain_ended or claim.ends_plain,
            )
            if claim.nonce is not None:
                used |= {
                    (other.id, claim.nonce) for other in payments.values() if is_of_transaction(other, claim)
                }
    return plain


def without_second_nonces(claims: Sequence[Claim]) -> list[Claim]:
    """The statement leaves out the second claim of a nonce."""
    first: dict[Any, Claim] = {}
    for claim in claims:
        first.setdefault(nonce_key(claim) or claim.call_id, claim)
    return list(first.values())


def is_of_transaction(payment: Any, claim: Claim) -> bool:
    return (payment.chain_id, payment.tx_hash) == (claim.chain_id, claim.tx_hash)


def compare(connection: Connection, claims: Sequence[Claim]) -> int:
    """Returns how many claims the statement granted; asserts that the ledger equals one where `decide_claims` decided all of them."""
    alone = [claim for claim in claims if is_claim_alone_plain(claim, ())]
    expected = find_plain(connection, alone)

    def both_steps() -> tuple[list[Claim], dict[Any, Any], Any]:
        terms = write_terms_of(connection, alone)
        found = grant_plain_claims(connection, alone, terms, owner_id="one", now_ms=NOW_MS, ahead_ms=0)
        granted_ids = {str(one.call_id) for one, got in zip(alone, found, strict=True) if got is not None}
        assert granted_ids == expected
        granted = {one.call_id: got for one, got in zip(alone, found, strict=True) if got is not None}
        first = [claim for claim in claims if claim.call_id in granted]
        rest = [claim for claim in claims if claim.call_id not in granted]
        outcomes = dict(zip([one.call_id for one in rest], decide(connection, rest), strict=True))
        return [*first, *rest], {**granted, **outcomes}, read_rows(connection)

    in_order, outcomes, rows = undone(connection, both_steps)

    def decided() -> Any:
        found = decide(connection, in_order)
        return dict(zip([one.call_id for one in in_order], found, strict=True)), read_rows(connection)

    other_outcomes, other_rows = undone(connection, decided)
    assert outcomes == other_outcomes
    assert rows == other_rows
    return len(expected)


def compare_ends(connection: Connection, claims: Sequence[Claim]) -> None:
    """A statement writes an end completely or not at all; the ledger equals one with locked rows."""
    for claim in claims:
        end = replace(close_of(claim), finish=finish_of(claim) if len(claims) % 2 else None)

        def plain(end: Close = end) -> Any:
            (written,) = write_plain_closes(connection, [end], owner_id="one", now_ms=NOW_MS, ahead_ms=0)
            return written, read_rows(connection)

        def locked(end: Close = end) -> Any:
            (written,) = decide(connection, [end], is_retry=True)
            return written, read_rows(connection)

        (written, rows), before = undone(connection, plain), read_rows(connection)
        if written is None:
            assert rows == before
        else:
            assert (written, rows) == undone(connection, locked)


@pytest.mark.parametrize("seed", range(4))
async def test_random_batches_are_granted_as_they_would_be_decided(url: str, seed: int) -> None:
    examples, granted = 40, 0

    def work(connection: Connection) -> None:
        nonlocal granted
        for example in range(examples):

            def one(example: int = example) -> int:
                books = RandomBooks(connection, seed * examples + example)
                books.make()
                compare_ends(connection, books.running())
                return sum(compare(connection, books.batch()) for _ in range(3))

            granted += undone(connection, one)

    async with open_database(url) as database:
        await database.write(work, is_long=True)
    assert granted > examples  # the filter must grant claims, or the test proves nothing


# ---- Concurrent transactions.


@contextlib.asynccontextmanager
async def open_ledger(url: str, owner_id: str = "one") -> AsyncIterator[tuple[Any, Database]]:
    async with open_database(url) as database:
        ledger = FaultyLedger(database, owner_id)
        await ledger.ledger.open()
        await learn_terms(ledger.ledger)
        yield ledger.ledger, database
        await ledger.close()
        assert (await ledger.ledger.audit()).wrong == ()


class HeldCommit:
    """Holds the next commit of that database with all its locks until `go_on`; the statement queues are not affected."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    def _wait(self, _connection: Any) -> None:
        if not self.reached.is_set():
            self.reached.set()
            await_only(self.go_on.wait())

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        engines = [self._database._engine.sync_engine, self._database._long_engine.sync_engine]
        for engine in engines:
            event.listen(engine, "commit", self._wait)
        try:
            yield
        finally:
            self.go_on.set()
            for engine in engines:
                event.remove(engine, "commit", self._wait)


@contextlib.asynccontextmanager
async def two_gateways(url: str) -> AsyncIterator[tuple[Any, Any, Database, HeldCommit]]:
    async with open_ledger(url) as (one, database), open_ledger(url, "two") as (two, other):
        yield one, two, database, HeldCommit(other)


async def awaited(job: Awaitable[Any]) -> Any:
    return await job


async def run_meanwhile(
    held: HeldCommit, database: Database, change: Awaitable[Any], asked: Callable[[], Any], *, waits: bool
) -> Any:
    """The result of `asked`, which begins after `change` has written and before it commits, and ends after that
    commit when it `waits`."""
    with held.holding():
        changing = start(awaited(change))
        await bounded(held.reached.wait())
        asking = start(awaited(asked()))
        if waits:
            await wait_blocked(database)
        else:
            await asking
        held.go_on.set()
        await changing
    return await asking


CHANGES: dict[str, tuple[Callable[[Any, Any], Any], type]] = {
    "gone": (lambda two, payment: two.mark_gone(payment.id, now_ms=NOW_MS), Unspendable),
    "held": (lambda two, payment: two.hold_disputed([payment.id]), Unspendable),
    "restored": (lambda two, payment: two.mark_restored(origin=operator_origin()), Unspendable),
    "taken": (lambda two, payment: two.claim(claim_on(payment, 10, idempotency_key="k")), Exhausted),
    "plain ended": (
        lambda two, payment: two.claim(claim_on(payment, ends_plain=True, idempotency_key="k")),
        PlainEnded,
    ),
    "another claim": (lambda two, payment: two.claim(claim_on(payment, 9, idempotency_key="k")), Claimed),
}
"""What another gateway does to the payment, and what a claim gets that waited for it."""


@pytest.mark.postgres
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_alone", [True, False], ids=("alone", "in a batch"))
async def test_a_claim_that_waited_sees_what_became_of_its_payment(
    postgres_url: str, change: str, is_alone: bool
) -> None:
    do, kind = CHANGES[change]
    async with two_gateways(postgres_url) as (one, two, database, held):
        payment = await pay(one, 10, **UNFINAL)
        claims = [claim_on(payment, is_plain=True)] + ([] if is_alone else [claim_on(None)])
        outcomes = await run_meanwhile(
            held,
            database,
            do(two, payment),
            lambda: asyncio.gather(*(one.claim(claim) for claim in claims)),
            waits=True,
        )
        assert isinstance(outcomes[0], kind), outcomes
        if isinstance(outcomes[0], Claimed):
            assert outcomes[0].remaining_units == 0


@pytest.mark.postgres
@pytest.mark.parametrize("is_alone", [True, False], ids=("alone", "in a batch"))
async def test_an_end_that_meets_the_loss_of_its_payment_leaves_a_debt(
    postgres_url: str, is_alone: bool
) -> None:
    """The end locks the call alone, and `mark_gone` found it running."""
    async with two_gateways(postgres_url) as (one, two, database, held):
        payment = await pay(one, 10, **UNFINAL)
        claims = [claim_on(payment, 3)] + ([] if is_alone else [claim_on(None)])
        for claim in claims:
            await one.claim(claim)
        outcomes = await run_meanwhile(
            held,
            database,
            two.mark_gone(payment.id, now_ms=NOW_MS),
            lambda: asyncio.gather(*(one.close(close_of(claim)) for claim in claims)),
            waits=True,
        )
        assert outcomes[0] == Closed(remaining_units=0, is_reorged=True)
        record = await one.find_call(claims[0].call_id)
        assert record.state is CallState.REORGED
        assert [debt.units for debt in await one.debts(PAYER)] == [3]


async def test_an_end_after_the_loss_of_its_payment_leaves_a_debt_too(url: str) -> None:
    async with two_gateways(url) as (one, two, *_):
        payment = await pay(one, 10, **UNFINAL)
        await one.claim(claim := claim_on(payment, 3))
        await two.mark_gone(payment.id, now_ms=NOW_MS)
        assert await one.close(close_of(claim)) == Closed(remaining_units=0, is_reorged=True)
        assert (await one.find_call(claim.call_id)).state is CallState.REORGED


@pytest.mark.postgres
@pytest.mark.parametrize("is_alone", [True, False], ids=("alone", "in a batch"))
async def test_an_end_that_meets_recovery_is_fenced(postgres_url: str, is_alone: bool) -> None:
    """Other gateways recover the call before the end is written."""
    async with two_gateways(postgres_url) as (one, two, database, held):
        payment = await pay(one, 10)
        claims = [claim_on(payment, 3)] + ([] if is_alone else [claim_on(payment)])
        for claim in claims:
            await one.claim(claim)
        lost = text(f"UPDATE call SET state = 'unknown' WHERE id = '{claims[0].call_id}'")
        outcomes = await run_meanwhile(
            held,
            database,
            two._database.write(lambda c: c.execute(lost)),
            lambda: asyncio.gather(*(one.close(close_of(claim)) for claim in claims)),
            waits=True,
        )
        assert [type(outcome) for outcome in outcomes] == [Fenced, *[Closed] * (len(claims) - 1)]
        assert (await one.find_call(claims[0].call_id)).state is CallState.UNKNOWN


async def test_an_end_is_written_by_the_gateway_and_in_the_run_that_it_is_of(url: str) -> None:
    async with two_gateways(url) as (one, two, *_):
        payment = await pay(one, 10)
        await one.claim(claim := claim_on(payment, 3))
        assert await two.close(close_of(claim)) == Fenced()
        await one.close(close_of(claim, CallState.UNKNOWN, http_status=None, upstream_status=None))
        assert await one.close(close_of(claim)) == Fenced()
        assert isinstance(await one.reopen(claim.call_id, epoch=1, now_ms=NOW_MS), Claimed)
        assert await one.close(close_of(claim)) == Fenced()
        assert await one.close(replace(close_of(claim), epoch=2)) == Closed(remaining_units=7)
        await one.claim(authorized := authorized_claim(authorization_of(2)))
        assert await one.close(close_of(authorized)) == Fenced()


async def test_an_end_carries_the_end_of_its_body_or_leaves_what_is_there(url: str) -> None:
    async with open_ledger(url) as (ledger, _):
        for others in ([], [claim_on(None)]):
            claims = [claim_on(None), claim_on(None), *others]
            for claim in claims:
                await ledger.claim(claim)
            ledger.finish(finish_of(claims[0]))
            whole = replace(close_of(claims[1]), finish=finish_of(claims[1], response_bytes=7))
            await asyncio.gather(ledger.close(close_of(claims[0])), ledger.close(whole))
            first, second = [await ledger.find_call(claim.call_id) for claim in claims[:2]]
            assert (first.response_bytes, second.response_bytes) == (1000, 7)
            assert second.delivery is Delivery.COMPLETE


async def test_what_is_not_covered_fails_no_other_claim_of_its_batch(url: str) -> None:
    """Without the guard, the CHECK of the balance would fail the batch."""
    async with open_ledger(url) as (ledger, database):
        payment, other = await pay(ledger, 3), await pay(ledger, 10, "other")
        claims = [claim_on(payment, 2), claim_on(payment, 2), claim_on(other)]
        granted = await database.write_statement(
            lambda c: grant_plain_claims(
                c, claims, write_terms_of(c, claims), owner_id="one", now_ms=NOW_MS, ahead_ms=0
            )
        )
        one_by_one = database.dialect == "sqlite"
        assert [type(one) for one in granted] == [Claimed if one_by_one else type(None), type(None), Claimed]


# ---- What a statement may see late, and why that is harmless.


@pytest.mark.postgres
async def test_a_debt_that_is_not_committed_yet_stops_no_claim(postgres_url: str) -> None:
    """The result is that of a claim before the debt: the payment of the claim is not the one that left, and keeps its
    value."""
    async with two_gateways(postgres_url) as (one, two, database, held):
        gone, left = await pay(one, 20, "gone", **UNFINAL), await pay(one, 10, "left")
        await one.claim(bought := claim_on(gone, 20))
        await one.close(close_of(bought))
        claims = [claim_on(left), claim_on(left, idempotency_key="decided with the rows locked")]
        outcomes = await run_meanwhile(
            held,
            database,
            two.mark_gone(gone.id, now_ms=NOW_MS),
            lambda: asyncio.gather(*(one.claim(claim) for claim in claims)),
            waits=False,
        )
        assert [type(outcome) for outcome in outcomes] == [Claimed, Claimed]
        assert await one.claim(claim_on(left)) == InDebt(units=20 - 8)


@pytest.mark.postgres
async def test_a_claim_that_waited_while_the_same_request_became_unknown_is_another_call(
    postgres_url: str,
) -> None:
    """The result is that of a claim during the first call. A later claim sees the unknown call, and no unit is taken
    twice."""
    async with two_gateways(postgres_url) as (one, two, database, held):
        payment = await pay(one, 10)
        await one.claim(first := claim_on(payment, 3))

        def lose(connection: Connection) -> None:
            connection.execute(text(f"SELECT id FROM payment WHERE id = {payment.id} FOR NO KEY UPDATE"))
            connection.execute(text(f"UPDATE call SET state = 'unknown' WHERE id = '{first.call_id}'"))

        again = claim_on(payment, 3, digest=first.digest)
        outcome = await run_meanwhile(
            held, database, two._database.write(lose), lambda: one.claim(again), waits=True
        )
        assert outcome == replace(outcome, remaining_units=4)
        await one.close(close_of(again))
        third = await one.claim(claim_on(payment, 3, digest=first.digest))
        assert isinstance(third, RepeatsOpenCall)
        assert third.call.call_id == first.call_id


# ---- The statement queues.


@pytest.mark.postgres
async def test_an_end_waits_for_no_claim(postgres_url: str) -> None:
    async with two_gateways(postgres_url) as (one, two, database, held):
        locked, free = await pay(one, 10), await pay(one, 10, "free")
        await one.claim(running := claim_on(free))
        with held.holding():
            changing = start(two.claim(claim_on(locked, idempotency_key="slow")))
            await bounded(held.reached.wait())
            waiting = start(one.claim(claim_on(locked)))
            await wait_blocked(database)
            assert await one.close(close_of(running)) == Closed(remaining_units=9)
            assert not waiting.done()
            held.go_on.set()
            await changing
        assert isinstance(await waiting, Claimed)


@pytest.mark.postgres
@pytest.mark.parametrize("second", [CallState.CONSUMED, CallState.RELEASED])
async def test_of_two_ends_of_one_call_the_first_counts(postgres_url: str, second: CallState) -> None:
    """The second waits behind the statement queue that has the first, and goes to the writer."""
    async with two_gateways(postgres_url) as (one, two, database, held):
        payment = await pay(one, 10)
        await one.claim(claim := claim_on(payment))
        lock = text(f"SELECT id FROM call WHERE id = '{claim.call_id}' FOR NO KEY UPDATE")
        outcomes = await run_meanwhile(
            held,
            database,
            two._database.write(lambda c: c.execute(lock)),
            lambda: asyncio.gather(one.close(close_of(claim)), one.close(close_of(claim, second))),
            waits=True,
        )
        assert [type(outcome) for outcome in outcomes] == [Closed, Fenced]
        assert (await one.find_call(claim.call_id)).state is CallState.CONSUMED


@pytest.mark.postgres
async def test_what_is_in_a_statement_queue_when_the_writer_ends_fails(postgres_url: str) -> None:
    async with open_database(postgres_url) as database:
        ledger = FaultyLedger(database)
        await ledger.ledger.open()
        await learn_terms(ledger.ledger)
        payment = await ledger.pay(10)
        ledger.database.before.clear()
        begun = ledger.database.begun
        waiting = [start(ledger.ledger.claim(claim_on(payment))) for _ in range(3)]
        await until(lambda: ledger.database.begun > begun)
        ledger._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ledger._task
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(one) for one in outcomes] == [StorageUnavailable] * 3


@pytest.mark.postgres
async def test_a_claim_after_a_cut_that_waits_for_its_close_finds_it(postgres_url: str) -> None:
    """The close of the call is written, and the finishes of its batch are not; then the response is cut, and the same
    request arrives."""
    async with open_database(postgres_url) as database:
        ledger = FaultyLedger(database, finish_delay_s=3600.0)
        await ledger.ledger.open()
        await learn_terms(ledger.ledger)
        payment = await ledger.pay(10)
        ended, cut = claim_on(payment), claim_on(payment)
        for claim in (ended, cut):
            await ledger.ledger.claim(claim)
        await ledger.ledger.close(close_of(ended))
        asked: list[asyncio.Task[object]] = []
        writes = iter([False, True])  # the closes of the batch, its finishes

        def cut_at_finishes() -> bool:
            if next(writes, False):
                ledger.ledger.finish(finish_of(cut, is_cut=True))
                asked.append(start(ledger.ledger.claim(claim_on(payment, digest=cut.digest))))
            return False

        ledger.ledger.finish(finish_of(ended))
        ledger.database.fail_before = cut_at_finishes
        await ledger.ledger.close(close_of(cut))
        await until(lambda: bool(asked))
        told = await asked[0]
        await ledger.close()
        assert isinstance(told, RepeatsOpenCall)
        assert told.call.call_id == cut.call_id


# ---- Units that move to another payment while a transaction waits for their locks.


@pytest.mark.postgres
@pytest.mark.parametrize("outcome", [CallState.CONSUMED, CallState.RELEASED])
async def test_an_end_follows_units_that_move_to_another_payment_meanwhile(
    postgres_url: str, outcome: CallState
) -> None:
    """The transaction has looked up the payments of the call before it waits, so it does not have the lock of the other payment."""
    async with two_gateways(postgres_url) as (one, two, database, held):
        settled = await open_authorized(one, 4, method="POST")
        await settle(one, settled, None)
        await one.mark_orphaned(settled.call_id, epoch=1)
        assert await conclude(one, settled, is_orphaned=True) is CallState.RELEASED  # credit
        (credit,) = await one.find_payments(tx_hash("settled"))
        await one.claim(spent := claim_on(credit, 3))
        await one.close(close_of(spent, CallState.UNKNOWN))
        change = two.move_transfer(
            settled.call_id, before=tx_hash("settled"), transfer=transfer_in("elsewhere"), now_ms=NOW_MS
        )
        ended = await run_meanwhile(
            held,
            database,
            change,
            lambda: one.resolve(spent.call_id, outcome, now_ms=NOW_MS),
            waits=True,
        )
        assert ended is outcome
        assert await read_rest(one, "settled") == 0
        assert await read_rest(one, "elsewhere") == (1 if outcome is CallState.CONSUMED else 4)
