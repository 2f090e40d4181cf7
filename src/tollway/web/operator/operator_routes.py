"""The operator's pages: what needs an operator, runbooks, chains, gas, open calls, listings, wallets, books, audit log; and their forms under `/admin/api`.

Each change is an entry of the audit log in the transaction of the change, as for the commands. A GET changes nothing; a form counts with the cookie, the origin and the
token of the form (`page_session.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from tollway.audit_log import AuditOrigin
from tollway.errors import Code, Problem, Refusal
from tollway.identity.admin_sessions import ENTRY_PATH
from tollway.ids import Address, ListingId, TxHash
from tollway.ledger.ledger import AuditReport
from tollway.registry.catalog import ListingQuery
from tollway.registry.listing import Listing
from tollway.registry.moderation import (
    AlwaysEdited,
    NoActiveListing,
    parse_reason,
    restore_listing,
    suspend_listing,
)
from tollway.registry.text import join_lines
from tollway.web.api.network_routes import describe_status
from tollway.web.http.query import format_time
from tollway.web.operator.chains import chain_json, channels_json
from tollway.web.operator.gas import gas_json
from tollway.web.operator.ledger_state import books_json
from tollway.web.operator.open_calls import call_json
from tollway.web.operator.operator_app import (
    NO_STORE,
    NONCE_PATH,
    SESSION_PATH,
    Handler,
    explain_problem,
    guarded,
    guarded_json,
    read_admin_form,
    read_one,
    refuse_form,
    respond_page,
    session_of,
)
from tollway.web.operator.operator_context import AdminContext
from tollway.web.operator.overview import read_overview
from tollway.web.operator.sign_in import SIGN_OUT
from tollway.web.pages.page_session import redirect_to
from tollway.web.pages.public_views import find_prices

AUDIT_ENTRIES_SHOWN = 50
FOUND_SHOWN = 14
CALLS_SHOWN = 15
"""Open calls of each state on the page; its JSON has up to a hundred."""

SUSPENSION = "/admin/api/listings/{apiId}/suspension"
BLOCK = "/admin/api/wallets/{address}/block"
BLOCKS = "/admin/api/wallets/block"
AUDIT = "/admin/api/audit"
ADMISSIONS = "/admin/api/admissions"
RELEASE = "/admin/api/release"
TRANSACTION = "/admin/api/transactions/{transaction}"


@dataclass(slots=True)
class AuditRun:
    """The audit that a page started last, on this gateway. `report` None: it runs, or it failed."""

    started_ms: int
    actor: str
    report: AuditReport | None = None
    failure: str = ""
    is_running: bool = True


def admin_router(context: AdminContext) -> Router:
    routes, sign_in = AdminRoutes(context), context.sign_in
    pages: Sequence[tuple[str, Handler, str]] = (
        (ENTRY_PATH, sign_in.show_entry, "GET"),
        (ENTRY_PATH, sign_in.enter, "POST"),
        (SIGN_OUT, sign_in.sign_out, "POST"),
        ("/", routes.show_overview, "GET"),
        ("/chains", routes.show_chains, "GET"),
        ("/gas", routes.show_gas, "GET"),
        ("/calls", routes.show_calls, "GET"),
        ("/listings", routes.show_listings, "GET"),
        ("/wallets", routes.show_wallets, "GET"),
        ("/books", routes.show_books, "GET"),
        ("/audit-log", routes.show_audit_log, "GET"),
        ("/runbooks", routes.show_runbooks, "GET"),
        ("/runbooks/{alert}", routes.show_runbook, "GET"),
        (SUSPENSION, routes.change_suspension, "POST"),
        (BLOCKS, routes.change_block, "POST"),
        (BLOCK, routes.change_block, "POST"),
        (AUDIT, routes.run_audit, "POST"),
        (ADMISSIONS, routes.admit, "POST"),
        (RELEASE, routes.release, "POST"),
    )
    json: Sequence[tuple[str, Handler, str]] = (
        ("/admin/api/overview", routes.get_overview, "GET"),
        ("/admin/api/chains", routes.get_chains, "GET"),
        ("/admin/api/gas", routes.get_gas, "GET"),
        ("/admin/api/calls", routes.get_calls, "GET"),
        ("/admin/api/books", routes.get_books, "GET"),
        (TRANSACTION, context.transactions.get, "GET"),
    )
    if sign_in.has_wallets:
        json = (*json, (NONCE_PATH, sign_in.issue_nonce, "POST"))
        pages = (*pages, (SESSION_PATH, sign_in.open_wallet_session, "POST"))
    as_json = partial(guarded_json, public_url=context.web.public_url)
    return Router(
        [
            *(Route(path, guarded(handler), methods=[method]) for path, handler, method in pages),
            *(Route(path, as_json(handler), methods=[method]) for path, handler, method in json),
        ],
        default=_refuse_path,
    )


async def _refuse_path(scope: Scope, receive: Receive, send: Send) -> None:
    response = explain_problem(Request(scope, receive), _NO_PATH)
    await response(scope, receive, send)


class AdminRoutes:
    """The handlers of the operator's pages. Many tasks may call them at once; one audit runs at a time."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._audit: AuditRun | None = None

    # ---- What is shown.

    async def show_overview(self, request: Request) -> Response:
        found = await read_overview(self._context)
        return respond_page(request, "admin_overview.j2", runbooks=list(self._context.runbooks), **found)

    async def get_overview(self, request: Request) -> Response:
        return JSONResponse(await read_overview(self._context), headers=NO_STORE)

    async def show_runbooks(self, request: Request) -> Response:
        return respond_page(request, "admin_runbooks.j2", runbooks=list(self._context.runbooks.values()))

    async def show_runbook(self, request: Request) -> Response:
        runbook = self._context.runbooks.get(request.path_params["alert"])
        if runbook is None:
            raise Refusal(_NO_RUNBOOK)
        return respond_page(request, "admin_runbook.j2", runbook=runbook)

    async def show_chains(self, request: Request) -> Response:
        return respond_page(request, "admin_chains.j2", networks=await self._describe_chains())

    async def get_chains(self, request: Request) -> Response:
        return JSONResponse({"networks": await self._describe_chains()}, headers=NO_STORE)

    async def _describe_chains(self) -> list[dict[str, Any]]:
        context = self._context
        channels = await context.books.sum_channels()
        withdrawn = context.web.withdrawn_since_ms()
        nodes = {found.network: found.nodes for found in context.list_nodes()}
        return [
            {
                **chain_json(
                    status, nodes.get(status["network"], ()), withdrawn, now_ms=context.web.now_ms()
                ),
                "channels": channels_json(status["network"], channels, context.web.find_asset),
            }
            for status in describe_status(context.web)
        ]

    async def show_gas(self, request: Request) -> Response:
        return respond_page(request, "admin_gas.j2", **self._describe_gas())

    async def get_gas(self, request: Request) -> Response:
        return JSONResponse(self._describe_gas(), headers=NO_STORE)

    def _describe_gas(self) -> dict[str, Any]:
        return gas_json(self._context.list_gas_keys(), self._context.list_gas_spending())

    async def show_calls(self, request: Request) -> Response:
        """With `transaction` the page begins with that transaction, read now."""
        calls, text = self._context.open_calls, request.query_params.get("transaction", "")
        return respond_page(
            request,
            "admin_calls.j2",
            inspected=await self._context.transactions.describe(request, text) if text else None,
            unknown=[call_json(call) for call in (await calls.list_open("unknown"))[:CALLS_SHOWN]],
            settling=[call_json(call) for call in (await calls.list_open("settling"))[:CALLS_SHOWN]],
        )

    async def get_calls(self, request: Request) -> Response:
        state = request.query_params.get("state", "unknown")
        if state not in ("unknown", "settling"):
            raise refuse_form("state is unknown or settling.")
        found = await self._context.open_calls.list_open(state)
        return JSONResponse({"calls": [call_json(call) for call in found]}, headers=NO_STORE)

    async def show_listings(self, request: Request) -> Response:
        words = join_lines(request.query_params.get("q", ""))[:256]
        found = await self._context.web.catalog.search(
            ListingQuery(words=words or None, limit=FOUND_SHOWN, sort="relevance" if words else "newest")
        )
        suspended = [
            {
                "id": one.id,
                "name": join_lines(one.name),
                "provider": str(one.provider),
                "since": format_time(one.suspended_ms),
                "price": f"{one.price} {one.currency}",
                "reason": join_lines(one.reason),
            }
            for one in await self._context.web.catalog.list_suspended()
        ]
        return respond_page(
            request,
            "admin_listings.j2",
            words=words,
            total=found.total,
            suspended=suspended,
            found=[
                {
                    "id": one.listing.id,
                    "name": join_lines(one.listing.name),
                    "provider": str(one.listing.provider),
                    "prices": find_prices(one.listing),
                    "currency": one.listing.currency,
                    "state": one.listing.status,
                    "quality": one.reputation.quality,
                }
                for one in found.found
            ],
        )

    async def show_wallets(self, request: Request) -> Response:
        blocked = [
            {"wallet": str(one.wallet), "since": format_time(one.since_ms), "reason": join_lines(one.reason)}
            for one in await self._context.moderation.list_blocked()
        ]
        return respond_page(request, "admin_wallets.j2", blocked=blocked)

    async def get_books(self, request: Request) -> Response:
        return JSONResponse(await self._describe_books(), headers=NO_STORE)

    async def _describe_books(self) -> dict[str, Any]:
        context = self._context
        return books_json(
            last_audit=await context.open_calls.find_last_audit(),
            held_count=await context.open_calls.count_held_payments(),
            held=await context.books.list_held(),
            encrypted_values=await context.fleet.count_encrypted_values(),
            sizes=await context.books.read_sizes(),
            rules=context.web.rules,
            profiles=context.web.profiles,
        )

    async def show_books(self, request: Request) -> Response:
        audit = self._audit
        return respond_page(
            request,
            "admin_books.j2",
            books=await self._describe_books(),
            gateway_name=self._context.gateway_name,
            audit=None
            if audit is None
            else {
                "started": format_time(audit.started_ms),
                "actor": audit.actor,
                "is_running": audit.is_running,
                "failure": audit.failure,
                "report": audit.report,
            },
        )

    async def show_audit_log(self, request: Request) -> Response:
        entries = [
            {
                "at": format_time(entry.origin.at_ms),
                "actor": join_lines(entry.origin.actor),
                "kind": entry.kind,
                "target": join_lines(entry.target),
                "reason": join_lines(entry.origin.reason),
            }
            for entry in await self._context.entries.list_audit_entries(limit=AUDIT_ENTRIES_SHOWN)
        ]
        return respond_page(request, "admin_audit_log.j2", entries=entries)

    # ---- What is changed.

    async def change_suspension(self, request: Request) -> Response:
        fields = await read_admin_form(request, SUSPENSION)
        listing_id = ListingId(request.path_params["apiId"])
        match read_one(fields, "do"):
            case "suspend":
                change = suspend_listing
            case "restore":
                change = restore_listing
            case _:
                raise refuse_form("The form says neither suspend nor restore.")
        changed = await change(
            self._context.web.catalog, listing_id, origin=self._make_origin(request, fields)
        )
        match changed:
            case NoActiveListing():
                raise Refusal(_NO_LISTING)
            case AlwaysEdited():
                raise refuse_form("The listing changed meanwhile. Send the form again.")
            case Listing():
                return redirect_to("/listings")

    async def change_block(self, request: Request) -> Response:
        is_new = "address" not in request.path_params
        fields = await read_admin_form(request, BLOCKS if is_new else BLOCK)
        text = read_one(fields, "address") if is_new else request.path_params["address"]
        try:
            wallet = Address.parse(text.strip())
        except ValueError as exc:
            raise refuse_form(f"The wallet is not understood: {exc}.") from exc
        origin = self._make_origin(request, fields)
        match read_one(fields, "do"):
            case "block":
                await self._context.moderation.block(wallet, origin=origin)
            case "unblock":
                await self._context.moderation.unblock(wallet, origin=origin)
            case _:
                raise refuse_form("The form says neither block nor unblock.")
        return redirect_to("/wallets")

    async def admit(self, request: Request) -> Response:
        fields = await read_admin_form(request, ADMISSIONS)
        try:
            tx_hash = TxHash.parse(read_one(fields, "transaction").strip())
        except ValueError as exc:
            raise refuse_form(f"The transaction is not understood: {exc}.") from exc
        await self._context.operator_ledger.admit(tx_hash, origin=self._make_origin(request, fields))
        return redirect_to("/audit-log")

    async def release(self, request: Request) -> Response:
        """Releases held balances, only with the name of the gateway and a ledger that balances."""
        fields = await read_admin_form(request, RELEASE)
        if read_one(fields, "gateway").strip() != self._context.gateway_name:
            raise refuse_form(
                f"Type the name of this gateway to release the balances: {self._context.gateway_name}"
            )
        origin = self._make_origin(request, fields)
        report = await self._context.operator_ledger.audit()
        if not report.is_balanced:
            raise refuse_form(
                "The ledger does not balance, so nothing was released. Run: tollway gateway audit"
            )
        await self._context.operator_ledger.release_held(origin=origin)
        return redirect_to("/books")

    async def run_audit(self, request: Request) -> Response:
        """Starts an audit, unless one runs on this gateway."""
        await read_admin_form(request, AUDIT)
        if self._audit is None or not self._audit.is_running:
            run = AuditRun(started_ms=self._context.web.now_ms(), actor=session_of(request).actor)
            self._audit = run
            response = redirect_to("/books")
            response.background = BackgroundTask(self._audit_ledger, run)  # runs when the response is sent
            return response
        return redirect_to("/books")

    async def _audit_ledger(self, run: AuditRun) -> None:
        try:
            run.report = await self._context.operator_ledger.audit()
            await self._context.record_audit(run.report)
        except Exception as exc:  # noqa: BLE001 - the root of this task; the page shows the failure
            run.failure = str(exc)[:200] or type(exc).__name__
        finally:
            run.is_running = False

    # ---- Parts.

    def _make_origin(self, request: Request, fields: Mapping[str, Sequence[str]]) -> AuditOrigin:
        try:
            reason = parse_reason(read_one(fields, "reason"))
        except ValueError as exc:
            raise refuse_form(f"The reason is not accepted: {exc}.") from exc
        return AuditOrigin(
            actor=f"{session_of(request).actor} (page)", at_ms=self._context.web.now_ms(), reason=reason
        )


_NO_LISTING = Problem(code=Code.API_NOT_FOUND, detail="There is no active listing of this id.")
_NO_PATH = Problem(
    code=Code.ROUTE_NOT_FOUND, detail="There is no such page. The navigation lists the pages of an operator."
)
_NO_RUNBOOK = Problem(
    code=Code.ROUTE_NOT_FOUND,
    detail="There is no runbook of this alert. /runbooks lists those of this release.",
)
