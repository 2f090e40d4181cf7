"""The facts of a history, independent of the ledger: the requests at the upstream, the responses of the callers, the
transfers on the chain. And the laws that the ledger must keep against these facts, checked after each step.

It reads the rows of the ledger and does not use its audit.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.model.rows import MemoryRows, charged_holders, find_credits, has_refund
from tollway.ids import Address, CallId
from tollway.ledger.claims import CreditAccount, credit_account_of, find_account
from tollway.ledger.records import (
    MOVES,
    TAKING,
    Authorization,
    AuthorizationKey,
    CallState,
    PaymentState,
    SettledTransfer,
)
from tollway.ledger.sales import HOUR_MS, floor_to

_BEFORE: dict[str, frozenset[CallState]] = {
    "close": frozenset({CallState.FORWARDING}),
    "reopen": frozenset({CallState.UNKNOWN, CallState.CONSUMED}),
    "settle": frozenset({CallState.FORWARDING}),
    "conclude": frozenset({CallState.SETTLING, CallState.UNKNOWN, CallState.REORGED}),
    "recover": frozenset({CallState.FORWARDING, CallState.UNKNOWN}),
    "resolve": frozenset({CallState.UNKNOWN}),
    "gone": frozenset({CallState.CONSUMED}),
    "continue": frozenset({CallState.CONSUMED, CallState.REORGED}),
    # Credit pays debts; a payment that returns with less value loses its calls first.
    "claim": frozenset({CallState.REORGED}),
    "record": frozenset({CallState.REORGED, CallState.CONSUMED}),
    # One with more calls than one transaction moves leaves the chain first.
    "relocate": frozenset({CallState.REORGED, CallState.CONSUMED}),
}
"""Where each step of a history may take a call from. What is not named moves none."""


_CHARGED = (CallState.CONSUMED, CallState.REORGED)


class LawBroken(AssertionError):
    """An invariant of the ledger is broken. The message names it, and the call or payment."""


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """The purpose of a caller, with one or many requests. `calls`: every call that was made for it."""

    number: int
    payer: Any
    method: str
    digest: bytes
    price_units: int
    tx_name: str | None
    nonce: bytes | None
    key: str | None
    is_first_price: bool
    authorization: Authorization | None
    shown: int = 0
    calls: list[CallId] = field(default_factory=list)

    @property
    def is_safe(self) -> bool:
        return self.method == "GET"


@dataclass(slots=True, kw_only=True, eq=False)
class Fact:
    """The truth about one call. `sends`: the epochs in which its bytes reached the upstream, whole. `repeats`: the transactions and nonces of the
    bound signatures with which it ran again."""

    request: Request
    sends: list[int] = field(default_factory=list)
    repeats: set[tuple[str | None, bytes | None]] = field(default_factory=set)
    free_epoch: int = 0  # the upstream's answer in that epoch cost nothing
    has_cost: bool = False  # an answer that costs came, in whichever epoch
    is_shown: bool = False  # and its caller saw it
    is_cut: bool = False  # but not to its end
    is_lost_close: bool = False  # a power cut took a close of it
    late_epoch: int = 0  # the end of that run could not be written at once
    dropped_epoch: int = 0  # an answer that costs came in that one, and its end could not be written
    is_decided: bool = False  # by the provider
    since_ms: int = 0  # when it became unknown


@dataclass(slots=True, kw_only=True)
class Truth:
    """`moved`: the transactions in which authorisations made their transfers; `public`: authorisations that any account may use."""

    facts: dict[CallId, Fact] = field(default_factory=dict)
    moved: dict[AuthorizationKey, SettledTransfer] = field(default_factory=dict)
    public: set[AuthorizationKey] = field(default_factory=set)
    balances: dict[Any, int] = field(default_factory=dict)
    plain_ended: set[int] = field(default_factory=set)
    has_moved_transfer: bool = False

    def note_sent(self, call_id: CallId, epoch: int, *, attempts_max: int) -> None:
        fact = self.facts[call_id]
        need(epoch not in fact.sends, "one run of a call was sent twice", call_id)
        fact.sends.append(epoch)
        need(len(fact.sends) <= attempts_max, "a call ran too often", call_id)
        is_repeatable = fact.request.is_safe or fact.request.key is not None
        need(is_repeatable or len(fact.sends) == 1, "an unsafe request ran twice", call_id)
        is_late = epoch < max(fact.sends)  # its gateway had stalled between the claim and the first byte
        is_whole = fact.is_shown and not fact.is_cut and not fact.is_lost_close
        need(not is_whole or is_late, "a call whose answer was shown ran again", call_id)


def need(is_true: bool, law: str, what: object = "") -> None:
    if not is_true:
        raise LawBroken(f"{law}: {what}" if what else law)


class Laws:
    """Compares the ledger with its state a step ago, and with the truth."""

    def __init__(self, rows: MemoryRows, truth: Truth, *, hold_ms: int) -> None:
        self._rows = rows
        self._truth = truth
        self._hold_ms = hold_ms
        self._seen: dict[CallId, tuple[CallState, int]] = {}
        self.debt_units = 0

    def forget(self) -> None:
        """After a power cut, observed commits may be lost."""
        for call_id, (state, epoch) in self._seen.items():
            call = self._rows.calls.get(call_id)
            if call is None or (call.state, call.epoch) != (state, epoch):
                self._truth.facts[call_id].is_lost_close = True
        self._seen = {key: (call.state, call.epoch) for key, call in self._rows.calls.items()}

    def check(self, cause: str, now_ms: int) -> None:
        rows, seen = self._rows, self._seen
        held: dict[int, int] = {}
        debt_units = 0
        for call_id, call in rows.calls.items():
            state = call.state
            before = seen.get(call_id)
            if before is None or before[0] is not state or before[1] != call.epoch:
                self._check_move(call_id, before, cause, now_ms)
                seen[call_id] = (state, call.epoch)
            units, claim = 0, call.claim
            for payment_id, part in call.parts.items():
                need(part > 0, "a call holds nothing, or less", call_id)
                held[payment_id] = held.get(payment_id, 0) + part
                units += part
            if claim.payment_id is None:
                need(units == 0, "a call holds what nobody paid", call_id)
            elif state in TAKING:
                need(units == claim.price_units, "a call holds another sum than its price", call_id)
            elif state is CallState.RELEASED:
                need(units == 0, "a released call holds something", call_id)
            else:
                need(units < claim.price_units, "a debt is none", call_id)
                debt_units += claim.price_units - units
        for payment in rows.payments.values():
            if payment.is_refund:
                need(payment.id not in held, "a call holds what was given back", payment.id)
                continue
            need(
                payment.taken_units == held.get(payment.id, 0),
                "taken is not the sum of the calls",
                payment.id,
            )
            need(payment.taken_units <= payment.value_units, "more is taken than there was", payment.id)
        self._check_refunds()
        self.debt_units = debt_units
        need(sum(rows.debts.values()) == debt_units, "the kept debts are not what the calls lack")

    def _check_refunds(self) -> None:
        """A refund is at most the price, of a call that keeps its charge; each transfer gives back what it moved, once, and each credit is the price of its call."""
        given: dict[int, int] = {}
        in_force: set[CallId] = set()
        for one in self._rows.refunds.values():
            call, payment = self._rows.calls[one.call_id], self._rows.payments[one.payment_id]
            need(call.state in _CHARGED, "a refunded call lost its charge", one.call_id)
            need(0 < one.units <= call.claim.price_units, "a refund above the price", one.call_id)
            given[payment.id] = given.get(payment.id, 0) + one.units
            side = payment.payer if one.is_credit else payment.payee
            need(side == call.claim.payer, "a refund to another wallet", one.call_id)
            need(payment.is_refund is not one.is_credit, "a transfer of a refund is a payment", payment.id)
            is_gone = payment.state is PaymentState.GONE
            need(one.is_reversed or not is_gone, "a refund without its transfer", one.call_id)
            if not one.is_reversed:
                need(one.call_id not in in_force, "a call has two refunds", one.call_id)
                in_force.add(one.call_id)
        for payment_id, units in given.items():
            payment = self._rows.payments[payment_id]
            need(payment.value_units == units, "a transfer gave back another sum than it moved", payment_id)
        for one in self._rows.refunds.values():
            is_gone = self._rows.payments[one.payment_id].state is PaymentState.GONE
            need(is_gone or one.call_id in in_force, "a transfer on its chain refunds nothing", one.call_id)

    def check_nothing_left(self) -> None:
        """After a check of the watcher without faults, gone payments have paid for nothing, and no credit stands beside a debt."""
        for payment in self._rows.payments.values():
            if payment.state is PaymentState.GONE:
                need(not charged_holders(self._rows, payment.id), "a gone payment is charged", payment.id)
        for account, units in self._rows.debts.items():
            need(units == self.debt_of(account), "a kept debt is not what its calls lack", account)
            need(not units or not find_credits(self._rows, account), "a debt beside credit", account)

    def _check_move(
        self, call_id: CallId, before: tuple[CallState, int] | None, cause: str, now_ms: int
    ) -> None:
        call, fact = self._rows.calls[call_id], self._truth.facts[call_id]
        after = call.state
        if before is None:
            need((after, call.epoch) == (CallState.FORWARDING, 1), "a call was born otherwise", call_id)
            return
        state, epoch = before
        need(call.epoch in (epoch, epoch + 1), "an epoch fell, or leapt", call_id)
        need(call.epoch == call.attempts, "attempts are not the epochs", call_id)
        if call.epoch > epoch:
            need(after is CallState.FORWARDING and cause == "reopen", "an epoch grew without a run", call_id)
        is_late = state is CallState.FORWARDING and epoch in (fact.late_epoch, fact.dropped_epoch)
        is_dropped = (state, after) == (CallState.CONSUMED, CallState.UNKNOWN) and fact.dropped_epoch == epoch
        need(
            is_late or is_dropped or state in _BEFORE.get(cause, ()),
            f"nothing moves a call from {state} by {cause}",
            call_id,
        )
        ways = MOVES[state]
        is_way = after in ways or (after is CallState.REORGED and CallState.CONSUMED in ways)
        need(is_way or after is state, f"no way from {state} to {after} ({cause})", call_id)
        if after is CallState.UNKNOWN:
            fact.since_ms = now_ms
        elif after is CallState.RELEASED:
            self._check_release(call_id, state, cause, now_ms)
        elif after in (CallState.CONSUMED, CallState.REORGED):
            is_paid = call.claim.authorization is None or call.claim.payment_id is not None
            need(is_paid, "an authorised call is consumed and nothing has moved", call_id)
            is_known = fact.has_cost or fact.is_decided or cause in ("conclude", "relocate")
            need(is_known, "consumed without an answer that costs", call_id)

    def _check_release(self, call_id: CallId, state: CallState, cause: str, now_ms: int) -> None:
        """The price is free again: nothing was sent, or the answer costs nothing, or it was held for its time, or the
        provider says so, or an authorisation will never pay, or pays credit."""
        call, fact = self._rows.calls[call_id], self._truth.facts[call_id]
        is_whole = fact.is_shown and not fact.is_cut
        if cause == "resolve":
            return
        if call.claim.authorization is not None and cause == "conclude":
            need(not fact.is_shown, "what was shown became credit", call_id)
            is_charged = state is CallState.SETTLING and fact.is_decided
            need(
                not is_charged or call.claim.payment_id is None,
                "what the provider charged became credit",
                call_id,
            )
            return
        if not fact.sends:
            return
        if cause == "recover" and state is CallState.UNKNOWN:
            need(not is_whole, "the clock gave back what an answer has cost", call_id)
            need(now_ms - fact.since_ms >= self._hold_ms, "a held price came back too early", call_id)
            return
        need(fact.free_epoch == call.epoch, f"a price came back that may be owed ({cause})", call_id)
        need(not is_whole or fact.is_lost_close, "a shown answer was given back", call_id)

    # ---- At the moment of a claim.

    def check_granted(
        self, request: Request, call_id: CallId, *, is_separate_call: bool, unfinal_max_units: int | None
    ) -> None:
        """All reasons against this claim, computed in another way than the ledger does."""
        rows = self._rows
        self._check_budget(request.payer, call_id)
        if request.key is not None:
            self._check_key(request, call_id)
        if request.authorization is not None:
            self._check_authorized(request, call_id)
            return
        call = rows.calls[call_id]
        payment = rows.payments[call.claim.payment_id or 0]
        need(payment.state is not PaymentState.GONE, "a gone payment was spent", call_id)
        need(not payment.is_held, "a held payment was spent", call_id)
        need(self.debt_of(credit_account_of(payment)) == 0, "a debtor was served", call_id)
        need(
            request.nonce is not None or payment.id not in self._truth.plain_ended,
            "a plain signature counted after its end",
            call_id,
        )
        if request.is_safe and request.key is None and not is_separate_call:
            self._check_none_waits(call_id)
        if request.nonce is not None:
            self._truth.plain_ended.add(payment.id)
            self._check_nonce(request, call_id)
        if request.is_first_price:
            need(payment.taken_units == call.parts[payment.id], "the first price was given twice", call_id)
        unfinal = [one for one in rows.payments.values() if one.state is PaymentState.UNFINAL]
        if unfinal_max_units is not None and any(one.id in call.parts for one in unfinal):
            spent = sum(one.taken_units for one in unfinal if one.payer == payment.payer)
            need(spent <= unfinal_max_units, "too much was spent that is not final", call_id)

    def _check_budget(self, payer: Address, call_id: CallId) -> None:
        """A wallet that is bound counts each paid call, and stays within the policy of its owner at that moment."""
        call = self._rows.calls[call_id]
        bound = [
            one for one in self._rows.budgets.values() if one.agent == payer and one.bound_ms is not None
        ]
        need(len(bound) <= 1, "a wallet has two owners", call_id)
        need(
            (call.budget_ms is not None) == bool(bound),
            "a call counts in no budget, or in one too many",
            call_id,
        )
        for policy in (one.policy for one in bound):
            assert call.budget_ms is not None
            counted = [
                (one.budget_ms, one.claim.price_units)
                for one in self._rows.calls.values()
                if one.claim.payer == payer
                and one.budget_ms is not None
                and one.state is not CallState.RELEASED
            ]
            hour_ms = floor_to(HOUR_MS, call.budget_ms)
            spent_units = {
                "maxPerCall": call.claim.price_units,
                "maxPerHour": sum(units for at_ms, units in counted if at_ms >= hour_ms),
                "maxTotal": sum(units for _, units in counted),
            }
            need(policy is not None, "a wallet without a policy bought something", call_id)
            need(policy is None or policy.currency == "USDC", "a policy paid in another currency", call_id)
            for name, units in spent_units.items():
                limit_nano = None if policy is None else policy.limit_nano(name)
                need(limit_nano is None or units * 1_000 <= limit_nano, f"beyond {name}", call_id)

    def check_repeated(self, request: Request, call_id: CallId) -> None:
        """A bound signature counts for one call, and ends the plain form, in a repeat too."""
        if request.nonce is not None:
            payment_id = self._rows.calls[call_id].claim.payment_id
            assert payment_id is not None
            self._truth.plain_ended.add(payment_id)
            self._truth.facts[call_id].repeats.add((request.tx_name, request.nonce))
            self._check_nonce(request, call_id)

    def _check_none_waits(self, call_id: CallId) -> None:
        """A safe request is not charged again while its last call waits to run again."""
        own = self._rows.calls[call_id]
        claim = own.claim
        last = None
        for key, call in self._rows.calls.items():  # in the order of their claims
            is_same = (call.claim.payment_id, call.claim.digest) == (claim.payment_id, claim.digest)
            is_cut = call.state is CallState.CONSUMED and call.cut == "cut"
            is_open = is_cut or call.state in (CallState.FORWARDING, CallState.UNKNOWN)
            is_open = is_open or self.is_paid_for_nothing(key)
            if key != call_id and is_same and is_open:
                last = call
        waits = last is not None and last.state is not CallState.FORWARDING
        if last is not None and last.owner_id == own.owner_id:  # another gateway may not know yet
            waits = waits or self._truth.facts[last.claim.call_id].dropped_epoch == last.epoch
        need(not waits, "the same request was charged anew while its call waited", call_id)

    def is_paid_for_nothing(self, call_id: CallId) -> bool:
        """It is charged, its gateway has dropped the answer, and the same request does not run again. A call that was refunded meanwhile keeps its charge."""
        call, fact = self._rows.calls[call_id], self._truth.facts[call_id]
        is_charged = call.state is CallState.CONSUMED and call.cut != "cut"
        is_charged = is_charged and not has_refund(self._rows, call_id)
        return is_charged and fact.dropped_epoch == call.epoch and not (fact.is_shown or fact.is_decided)

    def _check_key(self, request: Request, call_id: CallId) -> None:
        """One key of one wallet, one call; a released one is given up, and after its time a key is forgotten."""
        calls = self._rows.calls
        since_ms = calls[call_id].claim.created_ms - self._hold_ms
        mine = [
            key
            for key, fact in self._truth.facts.items()
            if (fact.request.payer, fact.request.key) == (request.payer, request.key)
            and (one := calls.get(key)) is not None
            and one.state is not CallState.RELEASED
            and one.claim.created_ms > since_ms
        ]
        need(mine == [call_id], "one key named two calls", call_id)

    def _check_nonce(self, request: Request, call_id: CallId) -> None:
        shown = (request.tx_name, request.nonce)
        mine = [
            key
            for key, fact in self._truth.facts.items()
            if ((fact.request.tx_name, fact.request.nonce) == shown or shown in fact.repeats)
            and (one := self._rows.calls.get(key)) is not None
            and one.state is not CallState.RELEASED
        ]
        need(mine == [call_id], "one nonce bought twice", call_id)

    def _check_authorized(self, request: Request, call_id: CallId) -> None:
        key = request.authorization.key  # type: ignore[union-attr]  # an authorised request
        mine = [
            one.claim.call_id
            for one in self._rows.calls.values()
            if one.claim.authorization is not None
            and one.claim.authorization.key == key
            and one.state is not CallState.RELEASED
        ]
        need(mine == [call_id], "one authorisation bought twice", call_id)
        need(key not in self._truth.moved, "an authorisation that has paid bought again", call_id)
        account = find_account(self._rows.calls[call_id].claim)
        need(self.debt_of(account) == 0, "a debtor was served", call_id)
        if self._truth.has_moved_transfer:
            return
        open_units = sum(
            one.claim.price_units
            for one in self._rows.calls.values()
            if one.claim.authorization is not None
            and one.claim.payer == request.payer
            and one.state in (CallState.FORWARDING, CallState.SETTLING)
            and one.claim.authorization.key not in self._truth.moved
        )
        need(
            open_units <= self._truth.balances[request.payer],
            "more is under way than there is to move",
            call_id,
        )

    def debt_of(self, account: CreditAccount) -> int:
        return sum(
            call.claim.price_units - sum(call.parts.values())
            for call in self._rows.calls.values()
            if call.state is CallState.REORGED and find_account(call.claim) == account
        )
