"""The settlement of authorised calls in the ledger model: the counterpart of `storage.ledger.settlement`. It broadcasts nothing."""

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from tests.model.channels import MemoryChannels, channel_of
from tests.model.rows import (
    MemoryAuthorization,
    MemoryCall,
    add_attempt,
    attempts_of_call,
    is_cut,
    is_unpaid,
    take_nonce,
)
from tollway.errors import StorageUnavailable
from tollway.ids import Address, CallId, ChainId
from tollway.ledger.channels import ChannelName
from tollway.ledger.claims import CreditAccount, find_account
from tollway.ledger.ledger import POSTPONED_MS_MAX, Claim, Close, Closed, Fenced, Finish, NonceUnavailable
from tollway.ledger.records import (
    AuthorizationKey,
    AuthorizedCall,
    CallState,
    Delivery,
    Interruption,
    Payment,
    PaymentState,
    SettledTransfer,
    SettlementAttempt,
    SettlementEnd,
    Usage,
    decide_dropped_call,
    decide_settlement_end,
)
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.money import UNITS_MAX
from tollway.payments.deployment import is_wrapped


class Dropped(NamedTuple):
    """A run whose answer reached no caller. `close`: the end that could not be written; None: it was in `settling`."""

    epoch: int
    close: Close | None


class MemorySettling(MemoryChannels):
    """Keeps what `Ledger` promises about authorisations."""

    def __init__(
        self, *, now_ms: Callable[[], int], owner_id: str = "memory", limits: Limits = DEFAULT_LIMITS
    ) -> None:
        super().__init__(now_ms=now_ms, limits=limits)
        self._owner_id = owner_id
        self._dropped: dict[CallId, Dropped] = {}

    def _answer(self) -> None:
        super()._answer()
        self._write_dropped()

    def _write_dropped(self) -> None:
        """What could not be written while the ledger was away comes before everything else."""
        while self._dropped:
            call_id, dropped = self._dropped.popitem()
            self._drop(call_id, dropped)

    def _drop(self, call_id: CallId, dropped: Dropped) -> None:
        """An upstream's answer reached no caller (`storage.ledger.ledger_batch`, `Drop`)."""
        call = self._rows.calls.get(call_id)
        if call is None or (call.epoch, call.owner_id) != (dropped.epoch, self._owner_id):
            return
        after = decide_dropped_call(
            call.state,
            method=call.claim.method,
            digest=call.claim.digest,
            runs_left=self._limits.attempts_max - call.attempts,
        )
        is_ours = call.error == (None if dropped.close is None else dropped.close.error)
        if after is None or (call.state is CallState.CONSUMED and not is_ours):
            return
        if self._keeps_charge(call_id):
            return
        call.close = replace(call.close or dropped.close, http_status=None)  # type: ignore[type-var]  # one of them is
        call.error, call.completed_ms = Interruption.ANSWER_DROPPED.value, self._now_ms()
        if after is CallState.CONSUMED:
            call.cut = "cut"
            call.finish = Finish(
                call_id=call_id,
                epoch=call.epoch,
                delivery=Delivery.PARTIAL,
                request_bytes=0,
                response_bytes=0,
                completed_ms=self._now_ms(),
            )
        else:
            call.finish = None
            self._move(call, after)

    async def find_authorized_call(self, key: AuthorizationKey) -> AuthorizedCall | None:
        self._answer()
        held = self._rows.authorizations.get(key)
        return None if held is None else self._authorized(held)

    async def has_open_deployment(self, call: CallId, *, chain_id: ChainId, payer: Address) -> bool:
        self._answer()
        return any(
            held.call_id != call
            and (held.authorization.chain_id, held.authorization.payer) == (chain_id, payer)
            and is_wrapped(held.authorization.signature)
            and self._rows.calls[held.call_id].state is CallState.SETTLING
            and attempts_of_call(self._rows, held.call_id) != ()
            for held in self._rows.authorizations.values()
        )

    async def find_call_authorization(self, call_id: CallId) -> AuthorizedCall | None:
        self._answer()
        call = self._rows.calls.get(call_id)
        held = None if call is None else self._held_by(call)
        return None if held is None else self._authorized(held)

    async def settle(
        self, close: Close, *, attempt: SettlementAttempt | None, digest: bytes | None
    ) -> Closed | Fenced | NonceUnavailable:
        if close.after is not CallState.SETTLING:
            raise ValueError("to settle is to go to settling")
        if self.away:
            self._dropped[close.call_id] = Dropped(close.epoch, close)
        self._answer()
        call = self._rows.calls.get(close.call_id)
        if call is None or not is_unpaid(call) or self._held_by(call) is None:
            return Fenced()
        expected = (CallState.FORWARDING, close.epoch, self._owner_id)
        if (call.state, call.epoch, call.owner_id) != expected:
            return Fenced()
        if attempt is not None:
            taken = take_nonce(self._rows, attempt)
            if taken is not None:
                return taken
        if close.known_usage is not None and call.quantities == "":
            call.actual_units = close.known_usage.actual_units
            call.quantities = close.known_usage.quantities
        self._move(call, CallState.SETTLING)
        call.close, call.error = close, close.error
        if digest is not None:
            call.claim = replace(call.claim, digest=digest)
        return Closed(remaining_units=None)

    async def add_attempt(
        self, attempt: SettlementAttempt, *, is_filling: bool = False
    ) -> bool | NonceUnavailable:
        self._answer()
        return add_attempt(self._rows, attempt, is_filling=is_filling)

    async def attempts_of(self, call_id: CallId) -> tuple[SettlementAttempt, ...]:
        self._answer()
        return attempts_of_call(self._rows, call_id)

    async def conclude(
        self, call_id: CallId, *, epoch: int, transfer: SettledTransfer | None, is_orphaned: bool, now_ms: int
    ) -> CallState | None:
        state = await self._conclude(
            call_id, epoch=epoch, transfer=transfer, is_orphaned=is_orphaned, now_ms=now_ms
        )
        if state is CallState.RELEASED and transfer is not None:
            with suppress(StorageUnavailable):
                self._pay_debts(find_account(self._rows.calls[call_id].claim))
        return state

    async def _conclude(
        self, call_id: CallId, *, epoch: int, transfer: SettledTransfer | None, is_orphaned: bool, now_ms: int
    ) -> CallState | None:
        if self.away and not is_orphaned:
            self._dropped[call_id] = Dropped(epoch, None)
        self._answer()
        call = self._rows.calls.get(call_id)
        held = None if call is None else self._held_by(call)
        if call is None or held is None or call.epoch != epoch:
            return None
        if not self._is_due(call, held, is_orphaned=is_orphaned):
            return None
        if transfer is not None:
            self._check_sum(call, transfer)
        held.is_orphaned = False
        if not is_orphaned and call.close is not None:
            waited_ms = max(0, now_ms - call.moved_ms)
            call.close = replace(call.close, latency_ms=call.close.latency_ms + waited_ms)
        ending = decide_settlement_end(
            is_moved=transfer is not None,
            is_orphaned=is_orphaned,
            is_charged_by_provider=call.is_charged_by_provider,
            has_stored_response=self._has_answer(call_id),
            is_deposit=call.claim.channel is not None,
            method=call.claim.method,
            digest=call.claim.digest,
            runs_left=self._limits.attempts_max - call.attempts,
        )
        is_bought = transfer is not None and ending is not SettlementEnd.CREDIT
        if not is_bought and call.actual_units is not None:
            call.actual_units, call.quantities = None, ""
        if transfer is None:
            self._move(call, CallState.RELEASED)
        else:
            held.transfer, held.settled_block = transfer.tx_hash, transfer.block_number
            self._book_transfer(call, transfer, ending, is_orphaned=is_orphaned, now_ms=now_ms)
        call.moved_ms = call.completed_ms = now_ms
        return call.state

    async def mark_orphaned(self, call_id: CallId, *, epoch: int, usage: Usage | None = None) -> bool:
        self._answer()
        call = self._rows.calls.get(call_id)
        held = None if call is None else self._held_by(call)
        if call is None or held is None or held.is_orphaned:
            return False
        if (call.state, call.epoch, call.owner_id) != (CallState.SETTLING, epoch, self._owner_id):
            return False
        held.is_orphaned, held.looked_ms = True, 0
        if usage is not None and call.quantities == "":
            call.actual_units, call.quantities = usage.actual_units, usage.quantities
        return True

    async def unsettled(self, *, limit: int) -> tuple[AuthorizedCall, ...]:
        self._answer()
        now_ms = self._now_ms()
        hold_ms = self._limits.unknown_hold_s * 1000
        for held in self._rows.authorizations.values():
            if held.is_orphaned and held.looked_ms > now_ms + POSTPONED_MS_MAX:
                held.looked_ms = now_ms
        waiting = [
            held
            for held in self._rows.authorizations.values()
            if held.looked_ms <= now_ms and (held.is_orphaned or self._is_overdue(held, now_ms - hold_ms))
        ]
        waiting.sort(key=lambda held: (held.looked_ms, held.call_id))
        for held in waiting[:limit]:
            held.looked_ms = now_ms
        return tuple(map(self._authorized, waiting[:limit]))

    async def postpone(self, call_id: CallId, *, until_ms: int) -> None:
        self._answer()
        for held in self._rows.authorizations.values():
            is_unknown = self._rows.calls[held.call_id].state is CallState.UNKNOWN
            if held.call_id == call_id and (held.is_orphaned or is_unknown):
                held.looked_ms = until_ms

    def _note_authorization(self, claim: Claim) -> None:
        if claim.authorization is not None and claim.cover is not None:
            self._rows.authorizations[claim.authorization.key] = MemoryAuthorization(
                authorization=claim.authorization,
                call_id=claim.call_id,
                seen_block=claim.cover.block_number,
            )

    def _mark_orphaned(self, living: Collection[str]) -> int:
        """What dead gateways were settling, settlement recovery finishes. Returns how many."""
        left = [
            held
            for held in self._rows.authorizations.values()
            if not held.is_orphaned
            and self._rows.calls[held.call_id].state is CallState.SETTLING
            and self._rows.calls[held.call_id].owner_id not in living
        ]
        for held in left:
            held.is_orphaned, held.looked_ms = True, 0
        return len(left)

    def _book_transfer(
        self,
        call: MemoryCall,
        transfer: SettledTransfer,
        ending: SettlementEnd,
        *,
        is_orphaned: bool,
        now_ms: int,
    ) -> None:
        is_bought = ending is not SettlementEnd.CREDIT
        name = channel_of(call.claim)
        if name is not None:
            payment_id = self._book_deposit(call, transfer, name, now_ms=now_ms)
        else:
            payment_id = self._add_settled(call, transfer, is_bought=is_bought, now_ms=now_ms)
        call.claim = replace(call.claim, payment_id=payment_id, tx_hash=transfer.tx_hash)
        if not is_bought:
            self._move(call, CallState.RELEASED)
            return
        if name is not None and is_orphaned:
            self._announce_stored(name, call)
        self._hold(call, {payment_id: self._covered_units(call, payment_id)})
        self._move(call, CallState.CONSUMED)
        if ending is SettlementEnd.LOST:
            call.cut = "cut"

    def _book_deposit(
        self, call: MemoryCall, transfer: SettledTransfer, name: ChannelName, *, now_ms: int
    ) -> int:
        """Returns the payment of the channel, which pays the call."""
        self._add_settled(call, transfer, is_bought=False, now_ms=now_ms)
        assert call.claim.authorization is not None
        units = call.claim.authorization.base_units
        self._count_deposit(name, units, block_number=transfer.block_number, now_ms=now_ms)
        return self._rows.channels[name].payment_id

    def _covered_units(self, call: MemoryCall, payment_id: int) -> int:
        """What the channel has left of a call's price; another payment has all of it."""
        name = channel_of(call.claim)
        if name is None:
            return call.claim.price_units
        channel = self._channel(name)
        return min(call.price_units, max(0, channel.balance_units - channel.taken_units))

    def _check_sum(self, call: MemoryCall, transfer: SettledTransfer) -> None:
        """Raises `StorageUnavailable` where the payment would be worth more than 2^63 - 1."""
        settled, units = (*settled_account(call.claim), transfer.tx_hash), settled_units(call.claim)
        for old in self._rows.payments.values():
            named = (old.chain_id, old.asset, old.payer, old.payee, old.tx_hash)
            if named == settled and old.value_units + units > UNITS_MAX:
                raise StorageUnavailable

    def _add_settled(
        self, call: MemoryCall, transfer: SettledTransfer, *, is_bought: bool, now_ms: int
    ) -> int:
        account, price_units = settled_account(call.claim), settled_units(call.claim)
        for old in self._rows.payments.values():
            if (old.chain_id, old.asset, old.payer, old.payee, old.tx_hash) == (*account, transfer.tx_hash):
                self._rows.payments[old.id] = replace(
                    old,
                    value_units=old.value_units + price_units,
                    calls=old.calls + is_bought,
                    is_authorized=True,
                )
                self._rows.checked_ms[old.id] = 0
                return old.id
        payment_id = len(self._rows.payments) + 1
        self._rows.payments[payment_id] = Payment(
            id=payment_id,
            chain_id=account.chain_id,
            tx_hash=transfer.tx_hash,
            asset=account.asset,
            payer=account.payer,
            payee=account.payee,
            value_units=price_units,
            taken_units=0,
            state=PaymentState.FINAL if transfer.is_final else PaymentState.UNFINAL,
            block_number=transfer.block_number,
            block_hash=transfer.block_hash,
            block_time=transfer.block_time,
            calls=int(is_bought),
            is_authorized=True,
            is_escrow=call.claim.channel is not None,
        )
        self._rows.recorded_ms[payment_id] = now_ms
        self._rows.checked_ms[payment_id] = 0
        return payment_id

    def _is_due(self, call: MemoryCall, held: MemoryAuthorization, *, is_orphaned: bool) -> bool:
        if call.state is CallState.UNKNOWN:
            return is_orphaned and is_unpaid(call)
        if call.state is not CallState.SETTLING or held.is_orphaned is not is_orphaned:
            return False
        return is_orphaned or call.owner_id == self._owner_id

    def _is_overdue(self, held: MemoryAuthorization, before_ms: int) -> bool:
        """Unknown for so long that the clock would release it, if only nothing had moved."""
        call = self._rows.calls[held.call_id]
        return call.state is CallState.UNKNOWN and is_unpaid(call) and call.moved_ms <= before_ms

    def _held_by(self, call: MemoryCall) -> MemoryAuthorization | None:
        """The authorisation that this call holds; a released one may pay another by now."""
        if call.claim.authorization is None:
            return None
        held = self._rows.authorizations[call.claim.authorization.key]
        return held if held.call_id == call.claim.call_id else None

    def _authorized(self, held: MemoryAuthorization) -> AuthorizedCall:
        call = self._rows.calls[held.call_id]
        claim = call.claim
        return AuthorizedCall(
            authorization=held.authorization,
            call_id=claim.call_id,
            listing_id=claim.listing_id,
            method=claim.method,
            digest=claim.digest,
            state=call.state,
            epoch=call.epoch,
            attempts=call.attempts,
            price=claim.price,
            price_units=claim.price_units,
            is_orphaned=held.is_orphaned,
            is_lost=is_cut(call),
            has_stored_response=self._has_answer(claim.call_id),
            seen_block=held.seen_block,
            transfer=held.transfer,
            created_ms=claim.created_ms,
            moved_ms=call.moved_ms,
            idempotency_key=claim.idempotency_key,
            client_network=claim.client_network,
        )


def settled_account(claim: Claim) -> CreditAccount:
    """The account of the transfer: a deposit pays the collector."""
    deposit = claim.authorization if claim.channel is not None else None
    account = find_account(claim)
    return account if deposit is None else account._replace(payee=deposit.payee)


def settled_units(claim: Claim) -> int:
    deposit = claim.authorization if claim.channel is not None else None
    return claim.price_units if deposit is None else deposit.base_units
