"""A history of several payers over a ledger in one database and over one that is split by payer: what the histories of budgets have, and transactions of two payers, keys, nonces and
authorisations shown again, transfers that leave their chain, and transfers of the provider that are shown as a refund and as a payment. Each answer must be equal."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Table, select

from tests.kit.budget_history import CURRENCIES, KINDS, BudgetHistory
from tests.kit.ledger_history import equal
from tests.kit.ledger_records import (
    NOW_MS,
    PAYEE,
    PROVIDER,
    authorization_of,
    authorized_claim,
    claim_on,
    new_payment,
)
from tests.kit.sharded_ledger import add_sales
from tollway.ids import Address, keccak256
from tollway.ledger.history import HistoryQuery
from tollway.ledger.ledger import Claim
from tollway.ledger.records import (
    Authorization,
    CallState,
    KeyTaken,
    NewPayment,
    Payment,
    RecordedTransaction,
)
from tollway.ledger.sales import DAY_MS, HOUR_MS, PeriodBooks, SalesQuery
from tollway.storage.engine.database import Database
from tollway.storage.ledger.ledger_tables import authorization_table, call_table, payment_table

AGENTS = 5
UNKNOWN = RecordedTransaction(payments=(), is_admitted=False, held_before_ms=None)
SHARD_KINDS = (
    *KINDS,
    *("share", "keyed", "bound", "authorize_again", "leave", "come_back", "sell") * 3,
    *("refund",) * 8,
)
OF_ONE_PAYER: Sequence[Table] = (call_table, payment_table, authorization_table)


@dataclass(slots=True, kw_only=True)
class ShardHistory(BudgetHistory):
    """`books`: the sums of each ledger, one for each of its databases. `sent`: the transfers of `payments`."""

    books: Sequence[Sequence[PeriodBooks]]
    sent: list[NewPayment] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    authorizations: list[Authorization] = field(default_factory=list)
    refunded: int = 0

    def __post_init__(self) -> None:
        BudgetHistory.__post_init__(self)
        self.agents = [self._wallet(f"agent {number}") for number in range(AGENTS)]

    async def run(self, steps: Sequence[Any]) -> None:
        self.payments = [[] for _ in self.ledgers]
        for number, agent in enumerate(self.agents):
            await self._record([new_payment(500, f"{self.name} {number}", payer=agent)])
        await self.walk(steps)
        await self.compare()

    def _pair(self, number: int) -> tuple[Address, Address]:
        return self.owners[number % 5 == 4], self.agents[number % AGENTS]

    # ---- Transfers.

    async def _record(self, new: Sequence[NewPayment]) -> None:
        recorded: list[tuple[Payment, ...]] = [
            await gateways[0].record_payments(new, now_ms=self.now_ms) for gateways in self.ledgers
        ]
        equal([list(map(_without_place, some)) for some in recorded])
        for payments, some in zip(self.payments, recorded, strict=True):
            payments.extend(some)
        self.sent.extend(new)

    async def _share(self, number: int) -> None:
        """A bundle: one transaction with a transfer of each of two wallets."""
        payers = self.agents[number % AGENTS], self.agents[(number + 1 + number % 3) % AGENTS]
        name = f"{self.name} shared {number}"
        await self._record([new_payment(10 + number % 90, name, payer=payer) for payer in payers])

    async def _leave(self, number: int) -> None:
        place = number % len(self.sent)
        if self.sent[place].payee == PAYEE and place not in self.gone:
            self.gone.append(place)
            ids = [payments[place].id for payments in self.payments]
            equal(
                [
                    await gateways[0].mark_gone(one, now_ms=self.now_ms)
                    for gateways, one in zip(self.ledgers, ids, strict=True)
                ]
            )

    async def _come_back(self, number: int) -> None:
        if self.gone:
            await self._record([self.sent[self.gone.pop(number % len(self.gone))]])

    # ---- Transfers of the provider's wallet to a payer.

    async def _refund(self, number: int) -> None:
        run = await self._find(CallState.CONSUMED, number)
        if run is not None and run.claim.payer is not None and run.claim.pay_to == PAYEE:
            transfer, call_ids = self._transfer_to(run.claim.payer, number), [run.claim.call_id]
            outcomes = await self._each(
                0, "record_refund", transfer, call_ids, based_on=UNKNOWN, now_ms=self.now_ms
            )
            self.refunded += hasattr(outcomes[0], "units")

    async def _sell(self, number: int) -> None:
        """The payer of other calls sells too: it may get the same transfer for a call."""
        await self._record([self._transfer_to(self.agents[number % AGENTS], number)])
        await self._claim(len(self.sent) - 1, price_units=1)

    def _transfer_to(self, payee: Address, number: int) -> NewPayment:
        name = f"{self.name} transfer {number % 2} to {payee}"
        return new_payment(1 + number % 2, name, payer=PAYEE, payee=payee)

    # ---- Calls.

    async def _claim(self, number: int, **fields: Any) -> None:
        place = number % len(self.sent)
        price = fields.pop("price_units", 1 + number % 50)
        currency = CURRENCIES[number % 9 % len(CURRENCIES)]
        claim = claim_on(self.payments[0][place], price, currency=currency, **fields)
        await self._open(claim, number, agent=place)

    async def _keyed(self, number: int) -> None:
        """Wallets choose the same keys."""
        await self._claim(number, idempotency_key=f"{self.name} {number % 3}")

    async def _bound(self, number: int) -> None:
        payer = self.sent[number % len(self.sent)].payer
        await self._claim(number, nonce=keccak256(b"%d" % (number % 3) + payer), ends_plain=True)

    async def _authorize(self, number: int) -> None:
        payer, until_s = self.agents[number % AGENTS], self.now_ms // 1000 + 300
        self.authorizations.append(authorization_of(1 + number % 50, payer=payer, valid_before=until_s))
        await self._open(authorized_claim(self.authorizations[-1]), number)

    async def _authorize_again(self, number: int) -> None:
        if self.authorizations:
            shown = self.authorizations[number % len(self.authorizations)]
            await self._open(authorized_claim(shown), number)

    async def _free(self, number: int) -> None:
        await self._open(claim_on(None, payer=self.agents[number % AGENTS]), number)

    async def _claim_each(self, claims: Sequence[Claim], owner: int) -> list[Any]:
        outcomes = await BudgetHistory._claim_each(self, claims, owner)
        return [
            replace(one, call=replace(one.call, payment_id=None)) if isinstance(one, KeyTaken) else one
            for one in outcomes
        ]

    # ---- What is read.

    async def check(self, where: str) -> None:
        """Each step has compared its answers; `compare` reads, at the end."""

    async def compare(self) -> None:
        """Budgets, calls, sums and debts are equal, each ledger balances, and they count the same calls."""
        await BudgetHistory.check(self, self.name)
        reports = [await gateways[0].audit() for gateways in self.ledgers]
        assert not any(one.wrong for one in reports), [one.wrong for one in reports]
        equal([(one.calls, sorted(one.held_calls)) for one in reports])
        for role, wallets in (("payer", self.agents), ("provider", [PROVIDER])):
            for wallet in wallets:
                query = HistoryQuery(wallet=wallet, role=role, limit=20)  # type: ignore[arg-type]  # one of the two roles
                equal([await gateways[0].history(query) for gateways in self.ledgers])
        for agent in self.agents:
            equal([await gateways[0].debts(agent) for gateways in self.ledgers])
        start_ms = NOW_MS - NOW_MS % HOUR_MS
        sales = SalesQuery(wallet=PROVIDER, step="hour", from_ms=start_ms, to_ms=start_ms + DAY_MS)
        equal([await add_sales(books, sales) for books in self.books])


def _without_place(payment: Payment) -> Payment:
    """The number of a payment is of its database. The shard of the sender keeps the transfer of a refund without its value."""
    if payment.is_refund:
        payment = replace(payment, value_units=0, taken_units=0)
    return replace(payment, id=0)


async def list_payers(database: Database) -> dict[str, set[Address]]:
    """The payers of the rows of money, by table. The transfer of a refund is left out: it is the sender's, and stands beside the call too."""

    def read(connection: Any) -> dict[str, set[Address]]:
        found = {}
        for table in OF_ONE_PAYER:
            query = select(table.c.payer).where(table.c.payer.is_not(None)).distinct()
            query = query if table is not payment_table else query.where(~payment_table.c.is_refund)
            found[table.name] = {Address(payer) for payer in connection.scalars(query)}
        return found

    return await database.read(read)
