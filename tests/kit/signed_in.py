"""The pages of a signed-in reader over a database in memory, without a chain: a browser that signs in with a wallet, and the API beside the pages."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from gettext import NullTranslations
from typing import Any, cast
from urllib.parse import urlencode

import coincurve
import httpx

from tests.kit.budgets import bind, policy_of
from tests.kit.call_rows import call_record_row, insert_calls
from tests.kit.chain import MemoryChain
from tests.kit.chain_blocks import authorizing_token
from tests.kit.ledger_records import new_payment
from tests.kit.listings import find_block_in
from tests.kit.lookup_counter import LookupCounter
from tests.kit.pages import BROWSER, RULES, PageHarness, PageReader
from tests.kit.payer import KeyWallet
from tests.kit.refunds import make_refunds
from tests.kit.routes import PUBLIC_URL, make_app, open_client
from tests.kit.settlement import SettlementServices, settlement_rules
from tests.kit.sql_ledger import SqlLedger
from tests.kit.stores import ControlStores
from tests.kit.webhooks import WebhookHarness
from tollway.app.page_wiring import page_routers
from tollway.errors import Code, EndpointNotAllowed, Problem, Refusal, UpstreamUnreachable
from tollway.gateway.messages import ProxyRequest
from tollway.gateway.trial import TrialResult
from tollway.identity.authenticator import Authenticator
from tollway.identity.sessions import SignIn
from tollway.identity.signatures import ReceiptSigner, SignatureVerifier, eip191_digest
from tollway.identity.siwe import parse_origin
from tollway.identity.viewers import BookAccess, Viewer
from tollway.ids import Address
from tollway.ledger.records import Payment
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.outbound.client import FetchedDocument, HttpClient
from tollway.outbound.policy import Endpoint
from tollway.outbound.probes import OwnershipChecker
from tollway.rate_limits.limiter import RateLimiter
from tollway.registry.listing import CatalogEntry
from tollway.storage.accounts.identity_store import SqlPageSessions, SqlSessions
from tollway.storage.accounts.viewer_store import SqlViewers
from tollway.storage.ledger.budget_store import BudgetStore
from tollway.storage.ledger.gas_store import GasStore
from tollway.storage.ledger.history import HistoryStore
from tollway.storage.ledger.payments import PaymentLedgerStore
from tollway.storage.ledger.period_books import PeriodBookStore
from tollway.web.api.auth_routes import make_wallet_dependency, make_wallet_quota, signin_router
from tollway.web.api.history_routes import history_router
from tollway.web.api.idempotent_create import IdempotentCreate
from tollway.web.api.provider_documents import ProviderDocuments
from tollway.web.http.read_turns import ReadTurns
from tollway.web.pages.page_problems import ProblemPages
from tollway.web.pages.page_session import PAGE_COOKIE, make_form_token

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
USDC = RULES.assets[0]
READER = KeyWallet(key=coincurve.PrivateKey(b"\x31" * 32))
OTHER = KeyWallet(key=coincurve.PrivateKey(b"\x32" * 32))
SELLER = KeyWallet(key=coincurve.PrivateKey(b"\x33" * 32))
THIRD = KeyWallet(key=coincurve.PrivateKey(b"\x34" * 32))
TEXTS = {
    "chain_id": RULES.chain_id,
    "asset": USDC.key,
    "price": "0.01",
    "price_units": 10_000,
    "pay_to": SELLER.address,
    "provider": SELLER.address,
}


class Services:
    """The stores behind the pages, over one database in memory. `addresses`: of the hosts that resolve to others than a public one; empty for none. `texts`: of DNS."""

    def __init__(self, limits: Limits) -> None:
        self.now_ms = NOW_MS + 10_000
        self.stores = ControlStores(now_ms=self.read_ms)
        self.database = database = self.stores.database
        self.ledger = SqlLedger(database, owner_id="one", now_ms=self.read_ms)
        self.chain = MemoryChain(RULES.chain_id)
        assert USDC.token is not None
        self.chain.deploy(RULES.chain_id, USDC.token, authorizing_token(USDC))
        self.settlement = SettlementServices(
            settlement_rules(chain_id=RULES.chain_id),
            ledger=self.ledger,
            gas=GasStore(database),
            chains=self.chain,
            rules={RULES.chain_id: RULES},
            limits=DEFAULT_LIMITS,
            now_ms=self.read_ms,
        )
        self.call_history = HistoryStore(database, limits=DEFAULT_LIMITS)
        self.payments = PaymentLedgerStore(database)
        self.period_books = PeriodBookStore(database, limits=limits)
        self.sessions = SqlSessions(database)
        self.webhooks = WebhookHarness(database, now_ms=self.now_ms)
        self.trials = ScriptedTrials()
        self.viewers = SqlViewers(database)
        self.budgets = BudgetStore(database)
        self._calls_written = 0
        self.addresses: dict[str, list[str]] = {}
        self.documents: dict[str, bytes] = {}
        self.texts: dict[str, tuple[str, ...]] = {}
        self.blocked: set[Address] = set()
        drawn = iter(range(1, 1_000))
        self.entropy = lambda size: next(drawn).to_bytes(size, "big")
        self._verifier = SignatureVerifier(MemoryChain(RULES.chain_id), limits=DEFAULT_LIMITS)
        self.sign_in = SignIn(
            self.sessions,
            self._verifier,
            LookupCounter(),
            origin=parse_origin(PUBLIC_URL),
            limits=DEFAULT_LIMITS,
            now_ms=self.read_ms,
            entropy=self.entropy,
        )

    def read_ms(self) -> int:
        return self.now_ms

    def make_members(self) -> dict[str, Any]:
        """The members of the context."""
        return {
            "now_ms": self.read_ms,
            "entropy": self.entropy,
            "find_block": find_block_in(self.blocked),
            "sign_in": self.sign_in,
            "check_endpoint": self._check_endpoint,
            "find_addresses": self._find_addresses,
            "documents": ProviderDocuments(self._fetch_document),
            "ownership_checker": OwnershipChecker(
                http_client=cast(HttpClient, NoUpstream()),
                txt_records=self,
                verifier=self._verifier,
                gateway=PUBLIC_URL,
                limits=DEFAULT_LIMITS,
            ),
            "creations": IdempotentCreate(self.stores.creations, limits=DEFAULT_LIMITS, entropy=self.entropy),
            "budgets": self.budgets,
            "call_history": self.call_history,
            "payment_ledger": self.payments,
            "period_books": self.period_books,
            "held_calls": self.settlement.held_calls,
            "refunds": make_refunds(self.ledger, self.chain, {RULES.chain_id: RULES}, now_ms=self.read_ms),
            "receipt_signer": ReceiptSigner.derive(b"\x01" * 32),
            "webhooks": self.webhooks.store,
            "trials": self.trials,
        }

    async def _check_endpoint(self, endpoint: Endpoint) -> None:
        await self._find_addresses(endpoint)

    async def _find_addresses(self, endpoint: Endpoint) -> list[str]:
        found = self.addresses.get(endpoint.host, ["203.0.113.7"])
        if not found:
            raise EndpointNotAllowed("The endpoint's host does not resolve.")
        return found

    async def _fetch_document(self, url: str) -> bytes:
        if url not in self.documents:
            raise UpstreamUnreachable
        return self.documents[url]

    async def find_texts(self, name: str) -> tuple[str, ...] | None:
        return self.texts.get(name, ())

    async def write_calls(self, *changes: dict[str, Any]) -> None:
        shared = {**TEXTS, "payer": READER.address, "http_status": None, "upstream_status": None}
        shared |= {"tx_hash": None, "error": None}
        first = self._calls_written
        self._calls_written += len(changes)
        rows = [call_record_row(number, **{**shared, **one}) for number, one in enumerate(changes, first)]
        await self.write_rows(rows)

    async def write_rows(self, rows: Sequence[dict[str, Any]]) -> None:
        """Rows of `call_record_row`."""
        await self.database.write(lambda connection: insert_calls(connection, rows))

    async def record_payment(self, units: int) -> Payment:
        new = new_payment(
            units, payer=READER.address, payee=SELLER.address, chain_id=RULES.chain_id, asset=USDC.key
        )
        payment: Payment
        (payment,) = await self.ledger.record_payments([new], now_ms=self.now_ms)
        return payment


class ScriptedTrials:
    """Test calls that reach no upstream. `outcome`: the result of the next ones, or the refusal; `requests`: what was sent."""

    def __init__(self) -> None:
        self.outcome: TrialResult | Exception = Refusal(
            Problem(code=Code.UPSTREAM_UNREACHABLE, detail="The API could not be reached.")
        )
        self.requests: list[ProxyRequest] = []

    async def run(self, request: ProxyRequest, entry: CatalogEntry) -> TrialResult:
        self.requests.append(request)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class NoUpstream:
    """A client whose every server is away."""

    async def fetch(self, url: str, *, bytes_max: int, deadline_s: float) -> FetchedDocument:
        raise UpstreamUnreachable


class SignedInHarness:
    """A browser of the signed-in pages, and the API beside them."""

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        catalogs: Mapping[str, NullTranslations] | None = None,
        read_turns: ReadTurns | None = None,
    ) -> None:
        self.services = services = Services(limits)
        origin, rate_limiter = parse_origin(PUBLIC_URL), RateLimiter()
        quota = make_wallet_quota(limits=limits, rate_limiter=rate_limiter)
        authenticator = Authenticator(
            services.sessions,
            services.sign_in,
            origin=origin,
            limits=DEFAULT_LIMITS,
            now_ms=services.read_ms,
            rate_limiter=RateLimiter(),
        )
        pages = PageHarness(
            catalogs,
            stores=services.stores,
            limits=limits,
            rate_limiter=rate_limiter,
            authenticate=make_wallet_dependency(authenticator, body_bytes_max=65_536, quota=quota),
            book_access=BookAccess(
                services.viewers,
                services.budgets,
                limits=limits,
                now_ms=services.read_ms,
                rate_limiter=rate_limiter,
            ),
            read_turns=ReadTurns() if read_turns is None else read_turns,
            **services.make_members(),
        )
        self.catalog, self.renderer = pages.catalog, pages.renderer
        context = pages.context
        self.page_routers = page_routers(
            context,
            pages.renderer,
            sessions=SqlPageSessions(services.database),
            viewers=services.viewers,
        )
        self.app = make_app(
            context,
            signin_router(context),
            history_router(context),
            *self.page_routers,
            problem_pages=ProblemPages(pages.renderer),
            read_turns=context.read_turns,
        )
        self.browser = open_client(self.app, headers=BROWSER)
        self.token = ""

    async def message_for(self, wallet: KeyWallet, uri: str | None = f"{PUBLIC_URL}/signin") -> str:
        asked = {"address": str(wallet.address), "chainId": RULES.chain_id, "uri": uri}
        return str((await self.browser.post("/api/v2/auth/nonce", json=asked)).json()["message"])

    async def post(
        self, path: str, fields: Mapping[str, str | list[str]], *, route: str | None = None, **headers: str
    ) -> httpx.Response:
        """Posts a form as a browser does from a page of this origin. A list: a field that repeats."""
        route = path if route is None else route
        given = {"form_token": make_form_token(self.token, route), **fields} if self.token else fields
        own = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Sec-Fetch-Site": "same-origin",
            **headers,
        }
        return await self.browser.post(path, content=urlencode(given, doseq=True), headers=own)

    async def sign_in(self, wallet: KeyWallet = READER, *, to: str = "") -> httpx.Response:
        self.token = ""
        self.browser.cookies.clear()
        message = await self.message_for(wallet)
        signature = "0x" + wallet.sign(eip191_digest(message.encode())).hex()
        # A browser normalises the line breaks of a field.
        answer = await self.post(
            "/signin", {"message": message.replace("\n", "\r\n"), "signature": signature, "to": to}
        )
        self.token = answer.cookies.get(PAGE_COOKIE.name) or ""
        return answer

    async def name_viewer(self, wallet: KeyWallet, viewer: KeyWallet) -> None:
        """The wallet lets the viewer read its books for a week, and the viewer has read them."""
        since_ms = self.services.now_ms
        await self.services.viewers.put(
            Viewer(
                wallet=wallet.address,
                viewer=viewer.address,
                since_ms=since_ms,
                until_ms=since_ms + 7 * DAY_MS,
            ),
            most=DEFAULT_LIMITS.viewers_max,
        )
        await self.services.viewers.accept(wallet.address, viewer.address, now_ms=since_ms)

    async def bind_owner(self, wallet: KeyWallet, owner: KeyWallet) -> None:
        """The wallet accepts the owner, whose policy has a year to run."""
        policy = policy_of(owner=owner.address, agent=wallet.address, maxTotal="1")
        await bind(self.services.budgets, policy, self.services.now_ms)

    async def read(self, path: str, status: int = 200) -> PageReader:
        answer = await self.browser.get(path)
        assert answer.status_code == status, answer.text
        return PageReader(answer.text)


MIXED = (
    {
        "state": "consumed",
        "taken_units": 10_000,
        "http_status": 200,
        "upstream_status": 200,
        "tx_hash": b"\x01" * 32,
    },
    {"state": "released", "http_status": 502, "upstream_status": 502},
    {"state": "unknown", "taken_units": 10_000, "error": "upstream_timeout"},
    {"state": "reorged", "taken_units": 0, "http_status": 200, "upstream_status": 200},
    {
        "state": "consumed",
        "taken_units": 10_000,
        "http_status": 404,
        "upstream_status": 404,
        "listing_id": "api_2",
    },
    {
        "state": "consumed",
        "price_units": 0,
        "price": "0",
        "chain_id": None,
        "asset": None,
        "rail": "none",
        "http_status": 200,
        "upstream_status": 200,
    },
)
"""A call in each state that its price can have, and a free one."""


@contextlib.asynccontextmanager
async def open_signed_in(
    limits: Limits = DEFAULT_LIMITS,
    catalogs: Mapping[str, NullTranslations] | None = None,
    read_turns: ReadTurns | None = None,
) -> AsyncIterator[SignedInHarness]:
    """The harness with its ledger open. `limits`: of sums, and of authenticated requests."""
    harness = SignedInHarness(limits, catalogs, read_turns)
    writer = asyncio.get_running_loop().create_task(harness.services.ledger.run())
    await harness.services.ledger.open()
    async with harness.browser:
        yield harness
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)
