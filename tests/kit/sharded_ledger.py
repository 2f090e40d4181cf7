"""A ledger over several databases, each with the payers that fall to it and with gateways of its own, and a router before them.

A row of money belongs to one payer, so its keys (transfer, authorisation, idempotency key, channel) are unique in one database. What names no payer is read from
every database: a call by its id, a transaction, the calls and sums of a provider.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import delete

from tollway.ids import Address, CallId, ChainId, ChannelId, TxHash
from tollway.ledger.channels import Channel
from tollway.ledger.history import HistoryPage, HistoryQuery
from tollway.ledger.ledger import AuditReport, Claim, Claimed, ClaimOutcome
from tollway.ledger.records import CallRecord, NewPayment, Payment, RecordedTransaction
from tollway.ledger.refunds import CallsRefunded, RefundOutcome, TransferUsed
from tollway.ledger.sales import AssetTotal, PeriodBooks, SalesQuery, add_by
from tollway.spending_policy import SpendingPolicy
from tollway.storage.engine.database import Database
from tollway.storage.ledger.ledger_tables import payment_table
from tollway.storage.ledger.payments import insert_payment

OfPayer = Callable[[Address], int]
BY_PAYER = frozenset({"find_binding", "accept_owner", "list_budgets", "debts", "find_keyed_call"})
"""Methods whose first value is the payer."""
BY_CALL = frozenset({"reopen", "resolve", "conclude", "mark_orphaned", "move_transfer"})
"""Methods whose first value is the id of a call."""


def shard_of(payer: Address, count: int) -> int:
    return payer[-1] % count


class ShardedLedger:
    """One gateway of each shard, as one ledger. `of_payer`: the number of the shard of a payer. The number of a payment and of a channel is that of its shard's row, times the
    number of shards, plus the number of the shard."""

    def __init__(
        self, gateways: Sequence[Any], databases: Sequence[Database], of_payer: OfPayer | None = None
    ) -> None:
        self._gateways = gateways
        self._databases = databases
        self._of_payer = of_payer or partial(shard_of, count=len(gateways))
        self._running: dict[CallId, int] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in BY_PAYER | BY_CALL:
            raise AttributeError(name)

        async def call(first: Any, *values: Any, **options: Any) -> Any:
            number = self._of_payer(first) if name in BY_PAYER else await self._find_shard(first)
            if name == "reopen":
                self._running[first] = number
            return await getattr(self._gateways[number], name)(first, *values, **options)

        return call

    # ---- Of one payer.

    async def claim(self, claim: Claim) -> ClaimOutcome:
        number = 0 if claim.payer is None else self._of_payer(claim.payer)
        if claim.payment_id is not None:
            claim = replace(claim, payment_id=claim.payment_id // len(self._gateways))
        outcome: ClaimOutcome = await self._gateways[number].claim(claim)
        if isinstance(outcome, Claimed):
            self._running[claim.call_id] = number
        return outcome

    async def record_payments(self, payments: Sequence[NewPayment], *, now_ms: int) -> tuple[Payment, ...]:
        """A transaction of several payers is recorded in the shard of each."""
        recorded: list[Payment] = []
        for new in payments:
            number = self._of_payer(new.payer)
            some = await self._gateways[number].record_payments([new], now_ms=now_ms)
            recorded += [self._name_payment(number, one) for one in some]
        return tuple(recorded)

    async def open_channel(
        self, chain_id: ChainId, channel_id: ChannelId, config: Any, *values: Any, **options: Any
    ) -> Channel:
        number = self._of_payer(config.payer)
        opened = await self._gateways[number].open_channel(chain_id, channel_id, config, *values, **options)
        return self._name_channel(number, opened)

    async def store_policy(self, policy: SpendingPolicy, signature: str, **options: Any) -> Any:
        """A policy is kept where the calls of its agent are counted."""
        return await self._gateways[self._of_payer(policy.agent)].store_policy(policy, signature, **options)

    async def revoke_policy(self, owner: Address, agent: Address, **options: Any) -> Any:
        return await self._gateways[self._of_payer(agent)].revoke_policy(owner, agent, **options)

    # ---- Of one call or one row.

    async def close(self, close: Any) -> Any:
        return await self._gateways[await self._find_shard(close.call_id)].close(close)

    async def settle(self, close: Any, **options: Any) -> Any:
        return await self._gateways[await self._find_shard(close.call_id)].settle(close, **options)

    async def finish_cut(self, finish: Any) -> None:
        await self._gateways[await self._find_shard(finish.call_id)].finish_cut(finish)

    def finish(self, finish: Any) -> None:
        self._gateways[self._running[finish.call_id]].finish(finish)

    async def find_call(self, call_id: CallId) -> CallRecord | None:
        found: CallRecord | None = await self._gateways[await self._find_shard(call_id)].find_call(call_id)
        return found

    async def _find_shard(self, call_id: CallId) -> int:
        """The shard of a call; 0 where there is no such call."""
        if call_id in self._running:
            return self._running[call_id]
        for number, gateway in enumerate(self._gateways):
            if await gateway.find_call(call_id) is not None:
                return number
        return 0

    async def mark_gone(self, payment_id: int, *, now_ms: int) -> int:
        row, number = divmod(payment_id, len(self._gateways))
        debt: int = await self._gateways[number].mark_gone(row, now_ms=now_ms)
        return debt

    async def renew_channel(self, key: int, facts: Any, *, now_ms: int) -> Channel:
        row, number = divmod(key, len(self._gateways))
        return self._name_channel(
            number, await self._gateways[number].renew_channel(row, facts, now_ms=now_ms)
        )

    # ---- Of every shard.

    async def find_payments(self, tx_hash: TxHash) -> tuple[Payment, ...]:
        found = []
        for number, gateway in enumerate(self._gateways):
            found += [self._name_payment(number, one) for one in await gateway.find_payments(tx_hash)]
        return tuple(found)

    async def find_channel(self, chain_id: ChainId, channel_id: ChannelId) -> Channel | None:
        for number, gateway in enumerate(self._gateways):
            found = await gateway.find_channel(chain_id, channel_id)
            if found is not None:
                return self._name_channel(number, found)
        return None

    async def list_owned(self, owner: Address, *, limit: int) -> tuple[Any, ...]:
        found = [one for gateway in self._gateways for one in await gateway.list_owned(owner, limit=limit)]
        return tuple(sorted(found, key=lambda one: (-one.stored_ms, one.agent))[:limit])

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """The first page, of as many calls as the query asks for."""
        pages = [await gateway.history(query) for gateway in self._gateways]
        calls = sorted((call for page in pages for call in page.calls), key=_order, reverse=True)
        return HistoryPage(calls=tuple(calls[: query.limit]), total=sum(page.total for page in pages))

    async def audit(self) -> AuditReport:
        reports = [await gateway.audit() for gateway in self._gateways]
        return AuditReport(
            payments=sum(one.payments for one in reports),
            calls=sum(one.calls for one in reports),
            wrong=tuple(line for one in reports for line in one.wrong),
            held_calls=tuple(call_id for one in reports for call_id in one.held_calls),
            held_payments=tuple(name for one in reports for name in one.held_payments),
        )

    async def renew_ownership(self, *, now_ms: int) -> None:
        for gateway in self._gateways:
            await gateway.renew_ownership(now_ms=now_ms)

    # ---- Of two shards.

    async def record_refund(
        self, transfer: NewPayment, call_ids: Sequence[CallId], *, based_on: RecordedTransaction, now_ms: int
    ) -> RefundOutcome:
        """The transfer is the sender's, the calls are their payer's. Where these are two shards, that of the sender keeps the transfer first, so that it cannot be a payment too."""
        home, away = self._of_payer(transfer.payer), await self._find_shard(call_ids[0])
        is_kept = False
        if home != away:
            nothing = replace(transfer, value_units=0)  # its value is beside the calls
            keep = partial(insert_payment, new=nothing, now_ms=now_ms, is_refund=True)
            is_kept = await self._databases[home].write(keep)
            known = await self._gateways[home].find_payments(transfer.tx_hash)
            if any(
                one.payer == transfer.payer and one.payee == transfer.payee and not one.is_refund
                for one in known
            ):
                return TransferUsed()
        outcome: RefundOutcome = await self._gateways[away].record_refund(
            transfer, call_ids, based_on=based_on, now_ms=now_ms
        )
        if is_kept and not isinstance(outcome, CallsRefunded):
            columns = payment_table.c
            gone = delete(payment_table).where(
                columns.tx_hash == transfer.tx_hash, columns.payer == transfer.payer, columns.is_refund
            )
            await self._databases[home].write(lambda connection: connection.execute(gone) and None)
        return outcome

    def _name_payment(self, number: int, payment: Payment) -> Payment:
        return replace(payment, id=payment.id * len(self._gateways) + number)

    def _name_channel(self, number: int, channel: Channel) -> Channel:
        count = len(self._gateways)
        return replace(
            channel, key=channel.key * count + number, payment_id=channel.payment_id * count + number
        )


def _order(call: CallRecord) -> tuple[int, CallId]:
    return call.created_ms, call.id


async def add_sales(books: Sequence[PeriodBooks], query: SalesQuery) -> dict[Any, AssetTotal]:
    """The sums of a provider over all shards, by hour, listing and asset."""
    rows = [row for one in books for row in (await one.sales(query)).rows]
    return add_by(rows, lambda row: (row.start_ms, row.group, row.key))
