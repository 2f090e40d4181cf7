"""The operations of the control plane: listings, history, payments, ownership.

Each is a coroutine over `_send_control`. `AsyncTollwayClient` has them as they are, and `TollwayClient` as functions with the same parameters, results and
documentation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Literal

from tollway.client import requests
from tollway.client.call_io import ControlRequest, ControlResponse
from tollway.client.errors import GatewayRefused
from tollway.client.quote import parse_amount
from tollway.client.record_reader import read_record
from tollway.client.records import (
    AgentDocument,
    BookViewer,
    BudgetList,
    CallPage,
    DeliveryPage,
    FacetCounts,
    GatewayStatus,
    ListingDetails,
    ListingStats,
    NetworkList,
    OwnershipStatus,
    PaymentPage,
    PaymentStatus,
    RecordedCall,
    SalesReport,
    SearchPage,
    SignedReceipt,
    SpendingReport,
    TrialResponse,
    ViewerList,
    WalletBudget,
    WebhookList,
    WebhookStatus,
    read_agent_document,
    read_receipt,
)
from tollway.client.requests import GatewayDocument, named_options, read_document
from tollway.errors import Code

PRICE_DECIMALS_MAX = 9

Order = Literal["recommended", "relevance", "newest", "price", "-price", "name"]
CallStatus = Literal["pending", "succeeded", "failed", "unknown"]
Role = Literal["payer", "provider"]
Step = Literal["hour", "day"]
SumGroup = Literal["api", "provider", "wallet"]


class ControlPlane:
    """The exchange with the control plane, which each client performs."""

    async def _send_control(self, request: ControlRequest) -> ControlResponse:
        raise NotImplementedError

    def _own_address(self) -> str:
        """Raises `CannotPay` without a wallet."""
        raise NotImplementedError

    async def _fetch(self, request: ControlRequest) -> GatewayDocument:
        response = await self._send_control(request)
        return read_document(request, response.status, response.content, etag=response.etag)

    async def _fetch_agent_document(self, api_id: str, page: int) -> GatewayDocument:
        try:
            return await self._fetch(requests.describe_listing(api_id, page))
        except GatewayRefused as refusal:
            if not requests.lacks_document(refusal):
                raise
        return await self._fetch(requests.show_listing(api_id))


@named_options
class ControlMethods(ControlPlane):
    """The methods of both clients for the control plane. Each raises `GatewayRefused` for a refusal, `GatewayResponseInvalid` for a response that is not the
    requested document, and `CannotPay` where its request must be signed and there is no wallet."""

    async def fetch_document(self, request: ControlRequest) -> GatewayDocument:
        """The JSON object of a response as the gateway wrote it, for programs that print it; `{}` for an empty one. `client/requests.py` builds the
        requests. The other methods return records."""
        return await self._fetch(request)

    # ---- Callers.

    async def search(
        self,
        words: str | None = None,
        *,
        page: int | None = None,
        limit: int | None = None,
        provider: str | None = None,
        currency: str | None = None,
        network: str | None = None,
        tag: str | None = None,
        max_price: str | None = None,
        min_success_rate: float | None = None,
        verified: bool | None = None,
        sort: Order | None = None,
    ) -> SearchPage:
        """A page of listings.

        `words`: of the name, the description, the tags, the operations or the domain. Listings with all of them come first, then those with some, and
        each listing names the fields that matched. `page` counts from 1; `limit`: 1 to 100, default 20. `provider`: the address of a wallet. `network`: such as `eip155:8453`.
        `max_price`: a decimal such as `"0.05"`, which needs `currency`. `min_success_rate`: 0 to 1. `verified`: whether the provider has proved the
        ownership of the endpoint. `sort`: `recommended` (the default; with words it is `relevance`), `newest`, `price`, `-price` or `name`.
        """
        document = await self._fetch(
            requests.search_apis(
                words,
                {
                    "page": page,
                    "limit": limit,
                    "provider": provider,
                    "currency": currency,
                    "network": network,
                    "tag": tag,
                    "maxPrice": _check_price(max_price),
                    "minSuccessRate": min_success_rate,
                    "verified": verified,
                    "sort": sort,
                },
            )
        )
        return read_record(SearchPage, document)

    async def show(self, api_id: str) -> ListingDetails:
        """The details of a listing: terms, price with every way to pay it, measured quality, links."""
        return _read_listing(await self._fetch(requests.show_listing(api_id)))

    async def facets(self, words: str | None = None) -> FacetCounts:
        """How many listings have which tag, currency and network, the most frequent 50 of each. `words`: only of listings that match."""
        return read_record(FacetCounts, await self._fetch(requests.count_listings(words)))

    async def stats(self, api_id: str) -> ListingStats:
        """The paid calls of a listing on each of the last 30 days."""
        return read_record(ListingStats, await self._fetch(requests.show_stats(api_id)))

    async def networks(self) -> NetworkList:
        """The networks and assets of the gateway, and the rails that are open now."""
        return read_record(NetworkList, await self._fetch(requests.list_networks()))

    async def status(self) -> GatewayStatus:
        """The version of the gateway, its open rails by network, and since when others are withdrawn."""
        return read_record(GatewayStatus, await self._fetch(requests.show_status()))

    async def describe(self, api_id: str, *, page: int = 1) -> AgentDocument:
        """The agent document of a listing, one text with everything that a model needs to call it. `page`: the next pages have the operations that the
        first does not have whole."""
        return read_agent_document(await self._fetch_agent_document(api_id, page))

    async def fetch_agent_document(self, api_id: str, *, page: int = 1) -> GatewayDocument:
        """The agent document as the gateway wrote it; the details where the gateway has no such document."""
        return await self._fetch_agent_document(api_id, page)

    async def history(
        self,
        *,
        api_id: str | None = None,
        status: CallStatus | None = None,
        role: Role | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: str | None = None,
        limit: int | None = None,
        offset: int | None = None,
        wallet: str | None = None,
    ) -> CallPage:
        """A page of the calls of this wallet, newest first.

        `role`: `payer` (the default), or `provider` for calls to listings of this wallet. `since` and `until` are moments with a time zone. `before`:
        calls before this call id, for pages without a maximum; `offset`: at most 10,000. `limit`: 1 to 200, default 50. `wallet`: the calls of a wallet that has named
        this one as its viewer.
        """
        query = {
            "apiId": api_id,
            "status": status,
            "role": role,
            "from": requests.format_moment("since", since),
            "to": requests.format_moment("until", until),
            "before": before,
            "limit": limit,
            "offset": offset,
            "wallet": wallet,
        }
        return read_record(CallPage, await self._fetch(requests.list_calls(query)))

    async def find_call(self, call_id: str, *, wallet: str | None = None) -> RecordedCall:
        """One call of this wallet, as payer or as provider; or of a `wallet` that has named this one as its viewer."""
        return read_record(RecordedCall, await self._fetch(requests.find_call(call_id, wallet)))

    async def payment(self, transaction: str, *, wallet: str | None = None) -> PaymentStatus:
        """The state of a payment of this wallet in the gateway's ledger. `transaction`: its hash. `wallet`: as in `find_call`. Raises ValueError for other text."""
        return read_record(PaymentStatus, await self._fetch(requests.find_payment(transaction, wallet)))

    async def receipt(self, call_id: str) -> SignedReceipt:
        """The signed receipt of one call of this wallet, as payer or as provider. `document` is the whole, to be kept with the books; `verify_receipt`
        and `tollway receipt verify` read it. Raises `GatewayRefused` (409, retryable) for a call that still runs."""
        return read_receipt(await self._fetch(requests.find_receipt(call_id)))

    async def spending_report(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        step: Step | None = None,
        group_by: SumGroup | None = None,
        wallet: str | None = None,
    ) -> SpendingReport:
        """What this wallet spent by hour or day, from the gateway's ledger: charged, released, held and reorged, each asset by itself.

        `since` and `until` are moments with a time zone; the range is of whole steps, at most 744 hours or 366 days. `step`: `day` (the default) or `hour`.
        `group_by`: `api` (the default), `provider` or `wallet`. `wallet`: of a wallet that has named this one as its viewer. The method `spending` has what this machine has spent.
        """
        query = _range_query(since=since, until=until, step=step)
        document = await self._fetch(requests.show_spending({**query, "groupBy": group_by, "wallet": wallet}))
        return read_record(SpendingReport, document)

    async def recorded_payments(
        self,
        *,
        role: Role | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: str | None = None,
        limit: int | None = None,
        offset: int | None = None,
        wallet: str | None = None,
    ) -> PaymentPage:
        """A page of the payments of this wallet in the gateway's ledger, newest first. (`payments` lists those that this machine made.)

        `role`: `payer` (the default), or `provider` for payments that this wallet received. `since`, `until`: by when the ledger recorded them. `before`: payments
        before this transaction. `limit`: 1 to 100, default 50. `wallet`: as in `find_call`.
        """
        query = {
            "role": role,
            "from": requests.format_moment("since", since),
            "to": requests.format_moment("until", until),
            "before": before,
            "limit": limit,
            "offset": offset,
            "wallet": wallet,
        }
        return read_record(PaymentPage, await self._fetch(requests.list_payments(query)))

    # ---- Viewers.

    async def viewers(self) -> ViewerList:
        """The wallets that may read the books of this one, and the wallets whose books this one may read and has read (`wallet`)."""
        return read_record(ViewerList, await self._fetch(requests.list_viewers()))

    async def show_to(self, address: str, until: datetime) -> BookViewer:
        """Lets a wallet read the calls, payments and spending of this one until a moment with a time zone, at most 400 days ahead."""
        moment = requests.format_moment("until", until)
        assert moment is not None
        return read_record(BookViewer, await self._fetch(requests.put_viewer(address, moment)))

    async def hide_from(self, address: str) -> None:
        """Ends the permission of a wallet to read the books of this one, at once."""
        await self._fetch(requests.delete_viewer(address))

    async def decline(self, address: str) -> None:
        """Ends the permission of this wallet to read the books of another one, at once."""
        await self._fetch(requests.decline_wallet(address))

    # ---- Budgets.

    async def budget(self, agent: str | None = None) -> WalletBudget | None:
        """What this wallet may still spend at the gateway: the policy of the owner to whom it is bound, with what is left of each limit and until when. None: it is bound to no
        owner, so the gateway limits nothing. `agent`: what the policy of this wallet, its owner, leaves to that wallet; None: it has signed none."""
        wallet = self._own_address() if agent is None else agent
        try:
            document = await self._fetch(requests.show_budgets(wallet))
        except GatewayRefused as refusal:
            if refusal.code != Code.BUDGET_NOT_FOUND.value:
                raise
            return None
        found = read_record(BudgetList, document)
        return found.bound if agent is None else next(iter(found.budgets), None)

    # ---- Webhooks.

    async def webhooks(self) -> WebhookList:
        """The webhooks of this wallet."""
        return read_record(WebhookList, await self._fetch(requests.list_webhooks()))

    async def add_webhook(
        self, url: str, types: Sequence[str], *, secret: Literal["v1"] | None = None, is_shared: bool = False
    ) -> WebhookStatus:
        """Registers a URL that gets events of these types once it has echoed a challenge. `secret`: also sign by Standard Webhooks; the result has the
        secret, and no later one. `is_shared`: the URL may get events of another wallet; its receiver must then return this wallet with the challenge."""
        request = requests.add_webhook(url, types, secret, is_shared=is_shared)
        return read_record(WebhookStatus, await self._fetch(request))

    async def remove_webhook(self, webhook_id: str) -> None:
        """Removes a webhook with everything that waits for it."""
        await self._fetch(requests.remove_webhook(webhook_id))

    async def deliveries(
        self,
        webhook_id: str,
        *,
        state: Literal["pending", "delivered", "dead"] | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> DeliveryPage:
        """Events of a webhook with their last attempts, newest first. `before`: an event id. `limit`: 1 to 200, default 50."""
        query = {"state": state, "before": before, "limit": limit}
        return read_record(DeliveryPage, await self._fetch(requests.list_deliveries(webhook_id, query)))

    async def resend(self, webhook_id: str, event_id: str) -> None:
        """Sends an event again that was delivered or has failed for good."""
        await self._fetch(requests.resend_event(webhook_id, event_id))

    # ---- Providers.

    async def publish(self, draft: Mapping[str, object], *, dry_run: bool = False) -> ListingDetails:
        """Creates a listing; returns it with its `id` and `warnings`. `draft`: the members of `POST /apis`. `dry_run`: only checks it; the `id` is then
        empty."""
        document = await self._fetch(requests.publish_listing(draft, dry_run=dry_run))
        return read_record(ListingDetails, {**document, "id": document.get("id") or ""})

    async def update(
        self, api_id: str, draft: Mapping[str, object], *, etag: str | None = None
    ) -> ListingDetails:
        """Replaces a listing of this wallet: absent members get their defaults. `etag`: only if the listing has not changed since."""
        return _read_listing(await self._fetch(requests.update_listing(api_id, draft, etag=etag)))

    async def patch(
        self, api_id: str, changes: Mapping[str, object], *, etag: str | None = None, dry_run: bool = False
    ) -> ListingDetails:
        """Changes the members of a listing of this wallet that `changes` names, and no others (RFC 7396). None sets a member to its default; a list
        is replaced whole. `etag`: of `show`; the patch is refused where the listing has changed since. `dry_run`: only checks it."""
        request = requests.patch_listing(api_id, changes, etag=etag, dry_run=dry_run)
        return _read_listing(await self._fetch(request))

    async def try_out(
        self,
        api_id: str,
        path: str = "",
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        content: str | None = None,
    ) -> TrialResponse:
        """Sends one request to the upstream of a listing of this wallet, as the gateway sends a paid call. It costs nothing, and the history has no such
        call. `path`: below the endpoint, with its query."""
        trial = {"method": method, "path": path, "headers": dict(headers or {}), "body": content}
        given = {name: value for name, value in trial.items() if value is not None}
        return read_record(TrialResponse, await self._fetch(requests.try_listing(api_id, given)))

    async def sales_report(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        step: Step | None = None,
        api_id: str | None = None,
    ) -> SalesReport:
        """What the listings of this wallet earned by hour or day: charged, released, held and reorged, each asset by itself.

        `since` and `until` are moments with a time zone; the range is of whole steps, at most 744 hours (of the last 90 days) or 366 days. `step`: `day` (the
        default) or `hour`. `api_id`: only of this listing.
        """
        query = _range_query(since=since, until=until, step=step)
        document = await self._fetch(requests.show_sales({**query, "apiId": api_id}))
        return read_record(SalesReport, document)

    async def resolve(self, call_id: str, outcome: Literal["consumed", "released"]) -> RecordedCall:
        """Decides a call to a listing of this wallet whose outcome is unknown: `consumed` charges its price, `released` gives it back as credit."""
        return read_record(RecordedCall, await self._fetch(requests.resolve_call(call_id, outcome)))

    async def retire(self, api_id: str) -> None:
        """Retires a listing permanently."""
        await self._fetch(requests.retire_listing(api_id))

    async def ownership(self, api_id: str) -> OwnershipStatus:
        """Whether the ownership of a listing's endpoint is proved, and the ways to prove it."""
        return read_record(OwnershipStatus, await self._fetch(requests.show_ownership(api_id)))

    async def check_ownership(self, api_id: str) -> OwnershipStatus:
        """Requests a check of the ownership now; only for the provider of the listing."""
        return read_record(OwnershipStatus, await self._fetch(requests.check_ownership(api_id)))


def _check_price(text: str | None) -> str | None:
    """Raises ValueError for text that is no price, TypeError for a number."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(f'max_price must be text such as "0.05", not {type(text).__name__}')
    if parse_amount(text, decimals=PRICE_DECIMALS_MAX) is None:
        raise ValueError(
            "max_price must be a decimal number such as 0.05; the currency is a parameter of its own"
        )
    return text


def _read_listing(document: GatewayDocument) -> ListingDetails:
    return replace(read_record(ListingDetails, document), etag=document.etag)


def _range_query(
    *, since: datetime | None, until: datetime | None, step: Step | None
) -> dict[str, str | None]:
    return {
        "from": requests.format_moment("since", since),
        "to": requests.format_moment("until", until),
        "step": step,
    }
