"""The records that the signed-in pages show of the ledger: calls, the ticket of one call, payments, viewers. Pure: from the records of stores to plain texts.

Words of providers are cleaned here and escaped by the templates. Sentences are in the templates; this module has only names, numbers, states and addresses.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from tollway.chain.networks import NetworkProfile
from tollway.discovery.safe_text import clean_line
from tollway.identity.viewers import Viewer
from tollway.ids import Address, CallId, ChainId
from tollway.ledger.records import AUTHORIZED_RAILS, CallRecord, CallState, Payment, is_charged_by_provider
from tollway.money import Asset, format_decimal
from tollway.payments.held_calls import ChargeFault
from tollway.web.api.context import FindAsset
from tollway.web.api.history_routes import (
    call_status,
    find_call_asset,
    http_status,
    payment_members,
    payment_state,
)
from tollway.web.http.query import format_time

NAME_LENGTH_MAX = 120
PATH_LENGTH_MAX = 200
PLACE_FIELDS = ("before", "asOf")
"""The parameters of a place in a list, beside those of its filter."""
ROWS_MAX = 30
"""Rows of a page of calls or payments. A page is rendered in one turn of the event loop, and has 20 kB at most."""

# ---- Calls.


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRowView:
    """A call in a list. `stamp`: what became of the price: charged, released, held, reorged; failed or free where the call has none."""

    id: str
    href: str
    created_at: str
    api_name: str
    api_href: str
    method: str
    path: str
    http_status: str
    price: str
    currency: str
    stamp: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BookFilterView:
    """The form of a list: what it holds. `wallets`: whose books the reader may read, its own first. `errors`: sentences, by parameter. `all_href`: the list of
    that wallet without a filter."""

    role: str
    api_id: str
    status: str
    from_day: str
    to_day: str
    wallets: tuple[tuple[str, bool], ...]
    errors: Mapping[str, str]
    has_filters: bool
    all_href: str


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


def view_call_rows(
    calls: Sequence[CallRecord], find_asset: FindAsset, *, wallet: Address | None
) -> tuple[CallRowView, ...]:
    return tuple(view_call_row(call, find_asset, wallet=wallet) for call in calls)


def view_call_row(call: CallRecord, find_asset: FindAsset, *, wallet: Address | None = None) -> CallRowView:
    """`wallet`: whose books have the call, None for the reader's own."""
    status = http_status(call)
    return CallRowView(
        id=call.id,
        href=link_call(call.id, wallet),
        created_at=format_time(call.created_ms),
        api_name=clean_line(call.listing_name, NAME_LENGTH_MAX) or call.listing_id,
        api_href=f"/apis/{quote(call.listing_id, safe='')}",
        method=clean_line(call.method, 32),
        path=clean_line(call.path, PATH_LENGTH_MAX) or "/",
        http_status="" if status is None else str(status),
        price=call.price,
        currency=call.currency,
        stamp=stamp_of(call, find_asset),
    )


def link_call(call_id: CallId, wallet: Address | None) -> str:
    return link_book(f"/my/calls/{quote(call_id, safe='')}", wallet)


def stamp_of(call: CallRecord, find_asset: FindAsset) -> str:
    """What became of the price; of a free call, whether it failed."""
    if find_call_asset(call, find_asset) is not None:
        return str(payment_state(call))
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


# ---- The ticket of one call.


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketStep:
    """A moment of the call. `name`: of the state that began then, or `ended`."""

    name: str
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketView:
    """The ticket of a call. `can_resolve`: the reader decides the outcome of the call; `charge_fault`: why it can only be released.
    `is_credit`: a released price is credit, because a transfer has reached the payee. `calls_href`: the list of which it is a row. Sizes in bytes."""

    id: str
    api_name: str
    api_href: str
    operation: str
    stamp: str
    is_credit: bool
    status: str
    price: str
    currency: str
    rail: str
    network: str
    payer: str | None
    pay_to: str | None
    transaction: str | None
    transaction_href: str | None
    block: int | None
    steps: tuple[TicketStep, ...]
    http_status: str
    upstream_status: str
    response_bytes: int | None
    latency_ms: int | None
    is_partial: bool
    error: str | None
    held_until: str | None
    request_id: str
    idempotency_key: str | None
    can_resolve: bool
    charge_fault: str | None
    is_settling: bool
    calls_href: str
    receipt_href: str


def view_ticket(
    call: CallRecord,
    reader: Address,
    find_asset: FindAsset,
    profiles: Mapping[ChainId, NetworkProfile],
    *,
    wallet: Address | None,
    block: int | None,
    can_resolve: bool,
    charge_fault: ChargeFault | None,
) -> TicketView:
    """`wallet`: whose books have the call, None for the reader's own. `block`: of the transaction, None where the ledger does not have it."""
    row = view_call_row(call, find_asset)
    profile = None if call.chain_id is None else profiles.get(call.chain_id)
    role = "provider" if call.provider == (reader if wallet is None else wallet) else "payer"
    return TicketView(
        id=call.id,
        api_name=row.api_name,
        api_href=row.api_href,
        operation=f"{row.method} {row.path}",
        stamp=row.stamp,
        is_credit=call.rail not in AUTHORIZED_RAILS or call.tx_hash is not None,
        status=call_status(call),
        price=call.price,
        currency=call.currency,
        rail=call.rail.value,
        network="" if call.chain_id is None else name_network(call.chain_id, profiles),
        payer=None if call.payer is None else str(call.payer),
        pay_to=None if call.pay_to is None else str(call.pay_to),
        transaction=None if call.tx_hash is None else str(call.tx_hash),
        transaction_href=None
        if profile is None or call.tx_hash is None
        else profile.link_transaction(call.tx_hash),
        block=block,
        steps=_list_steps(call),
        http_status=row.http_status,
        upstream_status="" if call.upstream_status is None else str(call.upstream_status),
        response_bytes=call.response_bytes,
        latency_ms=call.latency_ms,
        is_partial=call.delivery is not None and call.delivery.value == "partial",
        error=call.error,
        held_until=None if call.held_until_ms is None else format_time(call.held_until_ms),
        request_id=clean_line(call.request_id, 128),
        idempotency_key=None if call.idempotency_key is None else clean_line(call.idempotency_key, 255),
        can_resolve=can_resolve,
        charge_fault=None if charge_fault is None else charge_fault.value,
        is_settling=is_charged_by_provider(call.state, call.upstream_status),
        calls_href=link_book("/my/calls", wallet, role=role),
        receipt_href=link_book(f"/my/calls/{quote(call.id, safe='')}/receipt", wallet),
    )


def _list_steps(call: CallRecord) -> tuple[TicketStep, ...]:
    """The moments that the row keeps: the claim, the last write of the state, the end of the response."""
    steps = [TicketStep(name="claimed", at=format_time(call.created_ms))]
    if call.state is not CallState.FORWARDING:
        steps.append(TicketStep(name=call.state.value, at=format_time(call.moved_ms)))
    if call.completed_ms is not None and call.completed_ms >= call.moved_ms:
        steps.append(TicketStep(name="ended", at=format_time(call.completed_ms)))
    return tuple(steps)


def name_network(chain_id: ChainId, profiles: Mapping[ChainId, NetworkProfile]) -> str:
    return profiles[chain_id].name if chain_id in profiles else f"eip155:{chain_id}"


# ---- Payments.


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentRowView:
    """A payment in a list: decimal amounts in its currency. `reason`: why units of it are neither charged nor available."""

    transaction: str
    href: str
    explorer: str | None
    network: str
    payer: str
    payee: str
    amount: str
    credit: str
    currency: str
    state: str
    reason: str | None
    mined_at: str


def view_payment_row(
    payment: Payment,
    find_asset: FindAsset,
    profiles: Mapping[ChainId, NetworkProfile],
    *,
    is_restored: bool,
    is_held_by_call: bool,
    wallet: Address | None,
) -> PaymentRowView:
    """`wallet`: whose books have the payment, None for the reader's own."""
    asset = find_asset(payment.chain_id, payment.asset)
    members = payment_members(payment, find_asset, is_restored=is_restored, is_held_by_call=is_held_by_call)
    transaction = str(payment.tx_hash)
    profile = profiles.get(payment.chain_id)
    return PaymentRowView(
        transaction=transaction,
        href=link_book(f"/my/credit/{transaction}", wallet),
        explorer=None if profile is None else profile.link_transaction(transaction),
        network=name_network(payment.chain_id, profiles),
        payer=str(payment.payer),
        payee=str(payment.payee),
        amount=_decimal(members["amount"], asset),
        credit=_decimal(members["credit"], asset),
        currency="" if asset is None else asset.symbol,
        state=members["state"] or "",
        reason=members["reason"],
        mined_at=format_time(payment.block_time * 1000),
    )


def _decimal(base_units: str | None, asset: Asset | None) -> str:
    """Empty for an asset that is no longer configured."""
    if base_units is None or asset is None:
        return ""
    return format_decimal(int(base_units), decimals=asset.decimals)


# ---- Viewers.


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionView:
    """A permission to read: the other wallet, and until when."""

    address: str
    until: str


def view_permissions(viewers: Sequence[Viewer], *, of: str) -> tuple[PermissionView, ...]:
    """`of`: the member of the record that names the other wallet: `viewer` or `wallet`."""
    return tuple(
        PermissionView(address=str(getattr(one, of)), until=format_time(one.until_ms)) for one in viewers
    )
