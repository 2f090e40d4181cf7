"""What the signed-in pages show beside the records of the ledger: links, states, steps of a call, payments. Pure.

Their templates clean the words of providers and escape them. Sentences are in the templates; this module has only names, numbers, states and addresses.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from tollway.ids import Address, CallId
from tollway.ledger.records import CallRecord, CallState, Payment
from tollway.money import Asset, format_decimal
from tollway.web.api.context import FindAsset
from tollway.web.api.history_routes import (
    call_status,
    payment_state,
)
from tollway.web.http.query import format_time

NAME_LENGTH_MAX = 120
PLACE_FIELDS = ("before", "asOf")
"""The parameters of a place in a list, beside those of its filter."""
ROWS_MAX = 30
"""Rows of a page of calls or payments. A page is rendered in one turn of the event loop, and has 20 kB at most."""

# ---- Calls.


def choose_wallet(own: Address, named: Iterable[Address], chosen: str) -> tuple[tuple[str, bool], ...]:
    """The reader and the newest wallets that have named it, each with whether the form has chosen it. A chosen one that is older is the last."""
    addresses = [str(one) for one in (own, *named)]
    if chosen.lower() not in (one.lower() for one in addresses) and is_address(chosen):
        addresses.append(chosen)
    return tuple((one, one.lower() == chosen.lower()) for one in addresses)


def is_address(text: str) -> bool:
    try:
        Address.parse(text)
    except ValueError:
        return False
    return True


def link_book(path: str, wallet: Address | None, **fields: str) -> str:
    """A page about the books of a wallet. `wallet`: whose, None for the reader's own. Without it in the link, the page would show the reader's."""
    query = urlencode({**fields, **({} if wallet is None else {"wallet": str(wallet)})})
    return f"{path}?{query}" if query else path


def link_payment(transaction: str, wallet: Address | None) -> str:
    return link_book(f"/my/credit/{transaction}", wallet)


def link_call(call_id: CallId, wallet: Address | None) -> str:
    return link_book(f"/my/calls/{quote(call_id, safe='')}", wallet)


def stamp_of(call: CallRecord) -> str:
    """What became of the price: charged, released, held or reorged; of a free call, failed or free."""
    state = payment_state(call)
    if state != "none":
        return state
    return "failed" if call_status(call) in ("failed", "unknown") else "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPages:
    """The addresses of the newer and the older page of a list; None where there is none."""

    newer: str | None
    older: str | None


class ListLinks:
    """The links of a list: the filter of the form as it was at the first page, and a place in the list. A new row moves none of its pages."""

    def __init__(self, given: Mapping[str, str], *, path: str, as_of_ms: int) -> None:
        self._path = path
        self._kept = {name: value for name, value in given.items() if name not in PLACE_FIELDS}
        self._as_of = format_time(as_of_ms)

    def by_place(self, *, here: object | None, newer: object | None, older: object | None) -> ListPages:
        """`here`: `before` of this page, None on the first one. `newer`, `older`: those of the pages beside it, None for the first page and without an older one."""
        return ListPages(
            newer=None if here is None else self._at("" if newer is None else str(newer)),
            older=None if older is None else self._at(str(older)),
        )

    def _at(self, before: str) -> str:
        place = {"before": before} if before else {}
        return f"{self._path}?{urlencode({**self._kept, 'asOf': self._as_of, **place})}"


# ---- Payments.


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentAmounts:
    """What a payment brought and what is left of it, as decimals; empty for an asset that is no longer configured."""

    amount: str
    left: str
    symbol: str


def view_amounts(
    rows: Iterable[tuple[Payment, Mapping[str, str | None]]], find_asset: FindAsset
) -> tuple[PaymentAmounts, ...]:
    """The amounts of payments, each with its members under `/api/v2`."""
    return tuple(
        _view_amounts(members, find_asset(payment.chain_id, payment.asset)) for payment, members in rows
    )


def _view_amounts(members: Mapping[str, str | None], asset: Asset | None) -> PaymentAmounts:
    if asset is None:
        return PaymentAmounts(amount="", left="", symbol="")
    amount, left = (
        format_decimal(int(members[name] or 0), decimals=asset.decimals) for name in ("amount", "credit")
    )
    return PaymentAmounts(amount=amount, left=left, symbol=asset.symbol)


# ---- One call.


def list_steps(call: CallRecord) -> tuple[tuple[str, int], ...]:
    """The moments that the row keeps, each with its time: the claim, the last write of the state, the end of the response."""
    steps = [("claimed", call.created_ms)]
    if call.state is not CallState.FORWARDING:
        steps.append((call.state.value, call.moved_ms))
    if call.completed_ms is not None and call.completed_ms >= call.moved_ms:
        steps.append(("ended", call.completed_ms))
    return tuple(steps)
