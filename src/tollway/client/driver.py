"""The shared part of the synchronous and the asynchronous client: builds requests, signs, uses the store, and performs every step of a flow
that needs no network.

`SessionLimit` is a limit of one client in memory, beside the budget of the store. A payment that is signed and stored counts
permanently, for every later report of a gateway or a node; the exception is an authorisation of which no byte was sent.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TypedDict

import httpx
from httpx._client import UseClientDefault
from httpx._types import (
    HeaderTypes,
    QueryParamTypes,
    RequestContent,
    RequestData,
    RequestFiles,
    TimeoutTypes,
)

import tollway
from tollway.client.errors import CannotPay, HttpNotAllowed
from tollway.client.flow import free_flow, pay_flow
from tollway.client.provider import is_loopback
from tollway.client.quote import DEFAULT_MAX_PRICE, Cap, to_atto
from tollway.client.requests import (
    API_PREFIX,
    CallOptions,
    CallPlan,
    CapText,
    check_rail,
    plan_call,
)
from tollway.client.response_rules import CallResult
from tollway.client.steps import (
    ApprovePayment,
    AuthorizationState,
    ControlRequest,
    CountServedCalls,
    FindLapsedAuthorizations,
    FindNextNonce,
    FindPayments,
    FindUnsentTransfers,
    Flow,
    HeaderPairs,
    LeaseAuthorization,
    NodeUnavailable,
    OverBudget,
    PaidAlready,
    PaymentProgress,
    PaymentQuote,
    QueryNode,
    RecordAuthorizationState,
    RecordTransferState,
    ReportProgress,
    SendCall,
    SignAuthorization,
    SignCall,
    SignedAuthorization,
    SignTransfer,
    StepOutcome,
    StoreAuthorization,
    Stored,
    StoreOutcome,
    StoreTransfer,
    Transfer,
)
from tollway.client.store import PaymentStore
from tollway.client.transfer import CallRules, Patience, PaymentSource, RailChoice, resume_transfers
from tollway.client.wallet import Wallet
from tollway.identity.http_signatures import SignedRequest
from tollway.identity.siwe import parse_origin
from tollway.ids import Address, ChainId, TxHash
from tollway.money import Asset


@dataclass(slots=True, kw_only=True)
class _SignedAmount:
    symbol: str
    atto: int


class _Reservation(Enum):
    NEW = 1
    EXISTING = 2


class SessionLimit:
    """A limit on the sum that one client signs. Safe to use from many threads at once."""

    def __init__(self, cap: Cap | None) -> None:
        self.cap = cap
        self._signed: dict[bytes, _SignedAmount] = {}
        self._lock = threading.Lock()

    def store(
        self, name: bytes, asset: Asset, amount: int, *, store: Callable[[], StoreOutcome]
    ) -> StoreOutcome:
        """Reserves the amount, then stores the payment; `OverBudget` where the limit is exceeded. `name`: its hash or nonce."""
        over = self._reserve(name, asset, amount)
        if isinstance(over, OverBudget):
            return over
        is_stored = False
        try:
            outcome = store()
            is_stored = isinstance(outcome, Stored)
        finally:
            if over is _Reservation.NEW and not is_stored:
                self.release(name)
        return outcome

    def _reserve(self, name: bytes, asset: Asset, amount: int) -> "OverBudget | _Reservation":
        with self._lock:
            if name in self._signed:  # two concurrent calls can sign the same transaction
                return _Reservation.EXISTING
            over = self._find_excess(asset, amount)
            if over is not None:
                return over
            self._signed[name] = _SignedAmount(symbol=asset.symbol, atto=to_atto(amount, asset))
        return _Reservation.NEW

    def find_excess(self, asset: Asset, amount: int) -> OverBudget | None:
        """`OverBudget` where one more payment of this amount exceeds the limit. Reserves nothing."""
        with self._lock:
            return self._find_excess(asset, amount)

    def _find_excess(self, asset: Asset, amount: int) -> OverBudget | None:
        if self.cap is None:
            return None
        spent, limit = self._sum(asset.symbol), self.cap.atto_for(asset.symbol) or 0
        if spent + to_atto(amount, asset) <= limit:
            return None
        return OverBudget(spent_atto=spent, budget_atto=limit, limit="limit of this session")

    def release(self, name: bytes) -> None:
        """Releases a payment that never left this process: it was not stored, or no byte of it was sent."""
        with self._lock:
            self._signed.pop(name, None)

    def spent(self) -> Mapping[str, int]:
        """The signed amounts by currency, in 10^-18."""
        with self._lock:
            symbols = {signed.symbol for signed in self._signed.values()}
            return {symbol: self._sum(symbol) for symbol in sorted(symbols)}

    def _sum(self, symbol: str) -> int:
        return sum(signed.atto for signed in self._signed.values() if signed.symbol == symbol)


AuthorizationStep = (
    LeaseAuthorization
    | FindLapsedAuthorizations
    | SignAuthorization
    | StoreAuthorization
    | RecordAuthorizationState
)
LocalStep = (
    SignCall
    | ApprovePayment
    | ReportProgress
    | SignTransfer
    | FindPayments
    | FindNextNonce
    | FindUnsentTransfers
    | StoreTransfer
    | RecordTransferState
    | CountServedCalls
    | AuthorizationStep
)
"""Steps that need no network."""

RESPONSE_BYTES_MAX = 64 * 1024 * 1024
NODE_BYTES_MAX = 1024 * 1024
"""The largest response of a node is a transaction receipt."""
CALL_DEADLINE_S = 420.0
"""One exchange of a call, to the end of a problem or to the head of another response: a provider may take 300 s."""
CONTROL_DEADLINE_S = 60.0
NODE_DEADLINE_S = 20.0
DEADLINE_S = 900.0
"""A whole call, from its first request to the end of its response, its payment included."""
TIMEOUT = httpx.Timeout(10.0, read=330.0)  # a provider may take 300 s until its head
NODE_TIMEOUT = httpx.Timeout(10.0)
MAINNET = ChainId(1)


class ClientOptions(TypedDict, total=False):
    """The options of both clients, beside the gateway's URL and the transport; see `client.PayingClient`."""

    wallet: Wallet | None
    rpc_urls: Mapping[int, str]
    chains: Iterable[int]
    rail: RailChoice
    store_path: Path | str | None
    max_price: CapText
    max_fee: CapText
    budget: CapText
    session_budget: CapText
    public_url: str | None
    patience: Patience
    before_signing: Callable[[PaymentQuote], None] | None
    on_progress: Callable[[PaymentProgress], None] | None
    timeout: TimeoutTypes
    deadline_s: float
    allow_http: bool
    assets: tuple[Asset, ...]
    now_ms: Callable[[], int]
    entropy: Callable[[int], bytes]


class Driver:
    """The shared part of a client. Safe to use from many threads and tasks at once. Raises ValueError for invalid
    options."""

    def __init__(self, gateway_url: str, options: ClientOptions) -> None:
        for url in (gateway_url, *options.get("rpc_urls", {}).values()):
            check_tls(url, allow_http=options.get("allow_http", False))
        self.root = gateway_url.rstrip("/").removesuffix(API_PREFIX)
        # Signatures cover the gateway's public URL, not the URL at which it is reached.
        self.origin = parse_origin(options.get("public_url") or self.root)
        self.wallet = options.get("wallet")
        self.rpc_urls = {ChainId(chain_id): url for chain_id, url in options.get("rpc_urls", {}).items()}
        self.signing_chains = frozenset(ChainId(chain_id) for chain_id in options.get("chains", ()))
        self._before_signing = options.get("before_signing") or _approve
        self._on_progress = options.get("on_progress") or _ignore_progress
        self._timeout = httpx.Timeout(options.get("timeout", TIMEOUT))
        max_fee = options.get("max_fee")
        max_price, budget = options.get("max_price"), options.get("budget")
        self.budget = None if budget is None else Cap.parse(budget)
        session_budget = options.get("session_budget")
        self.session = SessionLimit(None if session_budget is None else Cap.parse(session_budget))
        self.deadline_s = options.get("deadline_s", DEADLINE_S)
        self._now_ms = options.get("now_ms", read_clock)
        self._entropy = options.get("entropy", secrets.token_bytes)
        self._rules = CallRules(
            max_price=DEFAULT_MAX_PRICE if max_price is None else Cap.parse(max_price),
            max_fee=None if max_fee is None else Cap.parse(max_fee),
            patience=options.get("patience", Patience()),
            rail=check_rail(options.get("rail", "auto")),
        )
        self._assets: Mapping[tuple[ChainId, Address | None], Asset] = {
            (asset.chain_id, asset.token): asset for asset in options.get("assets", ())
        }
        path = options.get("store_path") or Path.home() / ".tollway" / "payments.sqlite3"
        # Payments of one call's price, made by calls that are running now; other calls must not spend them.
        # In memory on purpose: after a crash no call reserves the payment, and the next call spends it.
        self._reserved_by: dict[TxHash, CallPlan] = {}
        # Authorisations of running calls, by nonce; and those that ended calls of this process left without an outcome.
        self._submitted: dict[bytes, CallPlan] = {}
        self._left_open: set[bytes] = set()
        # Keys of requests that were begun before and have no response yet.
        self._repeated_keys: set[str] = set()
        # Held while a payment is stored and reserved, so that no other call sees it stored and not reserved.
        self._reservation_lock = threading.Lock()
        self.store = PaymentStore(Path(path), now_ms=self._now_ms)

    @property
    def max_price(self) -> Cap:
        return self._rules.max_price

    @property
    def max_fee(self) -> Cap | None:
        return self._rules.max_fee

    def keep_key(self, payer: Address, plan: CallPlan) -> str:
        fresh = self._entropy(16).hex()
        key = self.store.keep_key(payer=payer, request=plan.digest(str(self.origin)), fresh=fresh)
        if key != fresh:
            self._repeated_keys.add(key)
        return key

    def drop_key(self, payer: Address, plan: CallPlan, key: str) -> None:
        self.store.drop_key(payer=payer, request=plan.digest(str(self.origin)), key=key)
        self._repeated_keys.discard(key)

    # ---- One call.

    def plan_call(
        self,
        api_id: str,
        path: str = "",
        *,
        method: str | None = None,
        params: QueryParamTypes | None = None,
        headers: HeaderTypes | None = None,
        content: RequestContent | None = None,
        data: RequestData | None = None,
        files: RequestFiles | None = None,
        json: object = None,
        timeout: TimeoutTypes | UseClientDefault = httpx.USE_CLIENT_DEFAULT,
        max_price: CapText = None,
        max_fee: CapText = None,
        rail: RailChoice | None = None,
        prepay: int = 1,
        idempotency_key: str | None = None,
    ) -> CallPlan:
        """Checks a call before anything is sent.

        `path`: under the listing, with or without a query; `params` are added to it. `method`: GET, or POST with a body. `params`, `headers`, `content`,
        `data`, `files`, `json` and `timeout` are those of httpx; an iterator is read into memory, because a call is sent again after a 402 (at most
        64 MiB). A file is sent under a boundary that follows from the body, so two runs of a call are the same request.

        `max_price`, `max_fee`, `rail`: for this call, instead of the client's. `prepay`: the number of calls that a new payment covers.
        `idempotency_key`: a repeat of the same call gets the stored response and is paid once, and the client may repeat it after a broken
        connection.

        Raises ValueError for a call that cannot be sent, TypeError for a value of a wrong type.
        """
        options: CallOptions = {
            "method": method,
            "params": params,
            "headers": headers,
            "content": content,
            "data": data,
            "files": files,
            "json": json,
            "timeout": timeout,
            "max_price": max_price,
            "max_fee": max_fee,
            "rail": rail,
            "prepay": prepay,
            "idempotency_key": idempotency_key,
        }
        return plan_call(self.root, api_id, path, options, defaults=self._rules, timeout=self._timeout)

    def begin_call(self, plan: CallPlan) -> Flow[CallResult]:
        """The flow of this call."""
        if self.wallet is None:
            return free_flow(plan.rules)
        source = PaymentSource(
            payer=self.wallet.address,
            chains=frozenset(self.rpc_urls),
            gateway=str(self.origin),
            assets=self._assets,
            signing_chains=self.signing_chains,
        )
        return pay_flow(source, plan.rules)

    def begin_resume(self) -> Flow[None]:
        """The flow that broadcasts payments which an earlier process may not have sent."""
        unresolved = () if self.wallet is None else self.store.unresolved(self.wallet.address)
        return resume_transfers([transfer for transfer in unresolved if transfer.chain_id in self.rpc_urls])

    def build_call(self, plan: CallPlan, step: SendCall) -> httpx.Request:
        request = httpx.Request(
            step.method or plan.method, plan.url, headers=list(plan.headers), content=plan.body or None
        )
        for name, value in step.headers:
            request.headers[name] = value
        request.extensions = {"timeout": plan.timeout.as_dict()}
        return request

    def perform_local(self, step: LocalStep, plan: CallPlan | None) -> StepOutcome:
        """Performs a step that needs no network. May wait for the disk."""
        wallet = self.wallet
        assert wallet is not None, "a flow without a wallet does not sign or store"
        match step:
            case SignCall():
                assert plan is not None
                return wallet.sign_call(
                    chain_id=step.chain_id,
                    tx_hash=step.tx_hash,
                    gateway=str(self.origin),
                    api_id=plan.api_id,
                    method=plan.method,
                    target=plan.target,
                    body=plan.body,
                    now_s=self._now_ms() // 1000,
                    nonce=self._entropy(32),
                )
            case ApprovePayment(quote=quote):
                return self._approve_payment(quote, wallet)
            case ReportProgress(progress=progress):
                self._on_progress(progress)
                return None
            case SignTransfer():
                return wallet.sign_transfer(step)
            case FindPayments():
                assert plan is not None
                return self._find_payments(step, plan, wallet)
            case FindNextNonce():
                return self.store.next_nonce(
                    payer=wallet.address, chain_id=step.chain_id, pending=step.pending
                )
            case FindUnsentTransfers():
                unresolved = self.store.unresolved(wallet.address)
                return tuple(transfer for transfer in unresolved if transfer.chain_id == step.chain_id)
            case StoreTransfer():
                assert plan is not None
                return self._store_transfer(step, plan)
            case RecordTransferState():
                self.store.record_state(step.tx_hash, step.state, step.rest, is_served=step.is_served)
                return None
            case CountServedCalls():
                return self.store.count_served(step.tx_hash)
            case _:
                assert plan is not None
                return self._perform_authorization(step, plan, wallet)

    def _approve_payment(self, quote: PaymentQuote, wallet: Wallet) -> OverBudget | None:
        over = self.session.find_excess(quote.asset, quote.amount) or self.store.find_excess(
            quote, payer=wallet.address, gateway=str(self.origin), budget=self.budget
        )
        if over is None:
            self._before_signing(quote)
        return over

    def _perform_authorization(
        self, step: AuthorizationStep, plan: CallPlan, wallet: Wallet
    ) -> SignedAuthorization | tuple[SignedAuthorization, ...] | StoreOutcome | None:
        match step:
            case LeaseAuthorization():
                return self._lease_authorization(plan, wallet)
            case FindLapsedAuthorizations():
                return self.store.find_lapsed_authorizations(
                    payer=wallet.address, chains=self.rpc_urls, nonce=step.nonce
                )
            case SignAuthorization():
                return wallet.sign_authorization(
                    step, gateway=str(self.origin), now_s=self._now_ms() // 1000, nonce=self._entropy(32)
                )
            case StoreAuthorization(authorization=signed):
                self._submitted[signed.nonce] = plan
                request = plan.digest(str(self.origin))
                return self.session.store(
                    signed.nonce,
                    signed.asset,
                    signed.amount,
                    store=lambda: self.store.store_authorization(signed, request=request, budget=self.budget),
                )
            case RecordAuthorizationState():
                is_recorded = self.store.record_authorization(
                    step.nonce, step.state, step.tx_hash, is_sent_again=step.is_sent_again
                )
                self._submitted.pop(step.nonce, None)
                if is_recorded and step.state is AuthorizationState.UNSENT:
                    self.session.release(step.nonce)
                return None

    def _lease_authorization(self, plan: CallPlan, wallet: Wallet) -> SignedAuthorization | None:
        with self._reservation_lock:
            found = self.store.lease_authorization(
                payer=wallet.address, request=plan.digest(str(self.origin)), left=tuple(self._left_open)
            )
            if found is not None:
                self._left_open.discard(found.nonce)
                self._submitted[found.nonce] = plan
        return found

    def _store_transfer(self, step: StoreTransfer, plan: CallPlan) -> StoreOutcome:
        """Only the call that stored a payment reserves it: two concurrent calls can sign the same transaction."""
        tx_hash = step.transfer.tx_hash
        with self._reservation_lock:
            others = self._reserved_by_others(plan)
            outcome = self.session.store(
                tx_hash,
                step.transfer.asset,
                step.transfer.amount,
                store=lambda: self.store.store(
                    step.transfer, budget=self.budget, price=step.price, tried=step.tried
                ),
            )
            if isinstance(outcome, Stored) and plan.rules.prepay == 1:
                self._reserved_by[tx_hash] = plan
        if isinstance(outcome, PaidAlready):
            return replace(outcome, is_reserved=outcome.transfer.tx_hash in others)
        return outcome

    def _find_payments(self, step: FindPayments, plan: CallPlan, wallet: Wallet) -> tuple[Transfer, ...]:
        with self._reservation_lock:
            # Before the read of the store: a call that ends in between has stored what is left.
            others = self._reserved_by_others(plan)
            known = self.store.find_payments(
                payer=wallet.address, gateway=str(self.origin), api_id=plan.api_id, payees=step.payees
            )
            if plan.idempotency_key in self._repeated_keys and not step.payees:
                # The payment of the earlier run may be spent, and its response still be stored. The key finds it, and any
                # payment of this wallet that counts there proves the payer. It comes first, so that nothing is paid again.
                known = (
                    *self.store.find_last_exhausted(
                        payer=wallet.address, gateway=str(self.origin), api_id=plan.api_id
                    ),
                    *known,
                )
        return tuple(transfer for transfer in known if transfer.tx_hash not in others)

    def _reserved_by_others(self, plan: CallPlan) -> frozenset[TxHash]:
        """The payments that other running calls have reserved."""
        owners = self._reserved_by.copy()
        return frozenset(tx_hash for tx_hash, owner in owners.items() if owner is not plan)

    def end_call(self, plan: CallPlan) -> None:
        """Ends a call, with or without a response: other calls may spend what it left."""
        for tx_hash in [tx_hash for tx_hash, owner in self._reserved_by.copy().items() if owner is plan]:
            self._reserved_by.pop(tx_hash, None)
        # A cancelled call has recorded no outcome of its authorisation: the same request sends it again.
        for nonce in [nonce for nonce, owner in self._submitted.copy().items() if owner is plan]:
            self._left_open.add(nonce)
            self._submitted.pop(nonce, None)

    # ---- The control plane.

    def build_control(self, control_request: ControlRequest) -> httpx.Request:
        """Raises `CannotPay` where the request must be signed and there is no wallet."""
        request = httpx.Request(
            control_request.method,
            f"{self.root}{API_PREFIX}{control_request.path}",
            content=control_request.body or None,
        )
        request.headers["User-Agent"] = f"tollway/{tollway.__version__}"
        request.headers["Accept"] = "application/json"
        for name, value in (
            *control_request.headers,
            *(self._sign_control(request, control_request) if control_request.is_signed else ()),
        ):
            request.headers[name] = value
        request.extensions = {"timeout": self._timeout.as_dict()}
        return request

    def _sign_control(self, request: httpx.Request, control_request: ControlRequest) -> HeaderPairs:
        if self.wallet is None:
            raise CannotPay("This request must be signed, and there is no wallet. Configure a wallet.")
        raw_path, _, query = request.url.raw_path.partition(b"?")
        signed_request = SignedRequest(
            method=control_request.method,
            raw_path=raw_path,
            query=query,
            headers=request.headers.raw,
            body=control_request.body,
        )
        return self.wallet.sign_request(
            signed_request,
            origin=self.origin,
            chain_id=next(iter(self.rpc_urls), MAINNET),
            now_s=self._now_ms() // 1000,
            nonce=self._entropy(16).hex(),
        )

    # ---- Nodes.

    def build_node_request(self, step: QueryNode) -> httpx.Request | NodeUnavailable:
        url = self.rpc_urls.get(step.chain_id)
        if url is None:
            return NodeUnavailable(detail="no URL of a node is configured")
        rpc_request = {"jsonrpc": "2.0", "id": 1, "method": step.method, "params": list(step.params)}
        request = httpx.Request("POST", url, json=rpc_request)
        request.extensions = {"timeout": NODE_TIMEOUT.as_dict()}
        return request


def check_tls(url: str, *, allow_http: bool) -> None:
    """Raises `HttpNotAllowed` for `http://` to a host that is not on loopback. Its text holds no URL, because URLs of nodes hold keys."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return  # httpx refuses the URL itself
    if parsed.scheme == "http" and not allow_http and not is_loopback(parsed.host):
        raise HttpNotAllowed(
            f"the URL of {parsed.host} has no TLS: use https, or allow it (--allow-http, allow_http=True)"
        )


def _approve(_: PaymentQuote) -> None:
    pass


def _ignore_progress(_: PaymentProgress) -> None:
    pass


def read_clock() -> int:
    """The clock, in unix milliseconds."""
    return time.time_ns() // 1_000_000


class Exchange:
    """The HTTP response of the flow's last `GatewayResponse`, and its body where that has been read."""

    __slots__ = ("content", "plan", "response")

    def __init__(self, plan: CallPlan | None) -> None:
        self.plan = plan
        self.response: httpx.Response | None = None
        self.content: bytes | None = None
