"""The shared part of the synchronous and the asynchronous client: their options and limits, the payments of running calls, and the requests.

`SessionLimit` is a limit of one client in memory, beside the budget of the store. A payment that is signed and stored counts
permanently, for every later report of a gateway or a node; the exception is an authorisation of which no byte was sent.
"""

import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Unpack

import httpx
from httpx._types import TimeoutTypes

import tollway
from tollway.client.call_io import (
    CallIo,
    ControlRequest,
    HeaderPairs,
    NodeUnavailable,
    OverBudget,
    OwnVoucher,
    PaymentProgress,
    PaymentQuote,
    Stored,
    StoreOutcome,
    Transfer,
)
from tollway.client.errors import CannotPay, HttpNotAllowed
from tollway.client.flow import free_flow, pay_flow
from tollway.client.own_channel import OwnChannel
from tollway.client.provider import is_loopback
from tollway.client.quote import DEFAULT_MAX_PRICE, Cap, to_atto
from tollway.client.requests import (
    API_PREFIX,
    CallOptions,
    CallPlan,
    CapText,
    check_rail,
    plan_call,
    plan_refund,
)
from tollway.client.response_rules import CallResult
from tollway.client.store import PaymentStore
from tollway.client.transfer import CallRules, Patience, PaymentSource, RailChoice
from tollway.client.wallet import Wallet
from tollway.identity.http_signatures import SignedRequest
from tollway.identity.siwe import parse_origin
from tollway.ids import Address, ChainId, ChannelId, TxHash
from tollway.money import Asset


@dataclass(slots=True, kw_only=True)
class _SignedAmount:
    symbol: str
    atto: int


class _Reservation(Enum):
    NEW = 1
    EXISTING = 2


@dataclass(slots=True, kw_only=True)
class _UsedChannel:
    """A channel in a session. `charged_before`: before the first call of the session. `deposited`: by the session."""

    charged_before: int
    deposited: int = 0


class SessionLimit:
    """A limit on the sum that one client signs. Safe to use from many threads at once.

    A channel counts once: with what the session deposits into it, or with what its vouchers can take where that is more, because an earlier session has deposited."""

    def __init__(self, cap: Cap | None) -> None:
        self.cap = cap
        self._signed: dict[bytes, _SignedAmount] = {}
        self._channels: dict[ChannelId, _UsedChannel] = {}
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

    def store_voucher(self, voucher: OwnVoucher, *, store: Callable[[], StoreOutcome]) -> StoreOutcome:
        """Reserves what the voucher and its deposit add, then stores them; `OverBudget` where the limit is exceeded. One call at a time has the channel."""
        channel, pending = voucher.channel, voucher.channel.pending
        assert pending is not None
        deposit = 0 if voucher.deposit is None else voucher.deposit.amount
        with self._lock:
            used = self._channels.setdefault(channel.id, _UsedChannel(charged_before=pending.charged_before))
            amount = max(pending.ceiling - used.charged_before, used.deposited + deposit)
            before = self._signed.get(channel.id)
            over = self._find_channel_excess(channel.id, channel.asset, amount)
            if over is not None:
                return over
            self._count_channel(channel.id, channel.asset, amount)
            used.deposited += deposit
        is_stored = False
        try:
            outcome = store()
            is_stored = isinstance(outcome, Stored)
        finally:
            if not is_stored:
                with self._lock:
                    used.deposited -= deposit
                    if before is None:
                        self._signed.pop(channel.id, None)
                    else:
                        self._signed[channel.id] = before
        return outcome

    def find_quote_excess(self, quote: PaymentQuote) -> OverBudget | None:
        """`OverBudget` where a payment that is not signed yet exceeds the limit. Reserves nothing."""
        channel = quote.channel
        if channel is None:
            return self.find_excess(quote.asset, quote.amount)
        with self._lock:
            used = self._channels.get(channel.id, _UsedChannel(charged_before=channel.charged))
            ceiling = channel.charged + quote.amount
            amount = max(ceiling - used.charged_before, used.deposited + quote.moved)
            return self._find_channel_excess(channel.id, channel.asset, amount)

    def _find_channel_excess(self, key: ChannelId, asset: Asset, amount: int) -> OverBudget | None:
        counted = self._signed.get(key)
        more = to_atto(amount, asset) - (0 if counted is None else counted.atto)
        if self.cap is None or more <= 0:
            return None
        spent, limit = self._sum(asset.symbol), self.cap.atto_for(asset.symbol) or 0
        return (
            None
            if spent + more <= limit
            else OverBudget(spent_atto=spent, budget_atto=limit, limit="limit of this session")
        )

    def _count_channel(self, key: ChannelId, asset: Asset, amount: int) -> None:
        """What is counted never falls: a voucher that was sent can be claimed."""
        counted = self._signed.get(key)
        atto = max(to_atto(amount, asset), 0 if counted is None else counted.atto)
        self._signed[key] = _SignedAmount(symbol=asset.symbol, atto=atto)

    def release_deposit(self, channel: OwnChannel, amount: int) -> None:
        """Releases a deposit and its voucher of which no byte was sent."""
        with self._lock:
            used = self._channels.get(channel.id)
            if used is None:
                return
            used.deposited -= amount
            spent = max(used.deposited, channel.charged - used.charged_before, 0)
            self._signed[channel.id] = _SignedAmount(
                symbol=channel.asset.symbol, atto=to_atto(spent, channel.asset)
            )

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


NO_WALLET = "This request must be signed, and there is no wallet. Configure a wallet."
DEADLINE_S = 900.0
"""A whole call, from its first request to the end of its response, its payment included."""
TIMEOUT = httpx.Timeout(10.0, read=330.0)  # a provider may take 300 s until its head
NODE_TIMEOUT = httpx.Timeout(10.0)
MAINNET = ChainId(1)
NO_FREE_CALLS_S = 3_600
"""A listing whose free calls are used is asked for them again after an hour, or after its period where that is shorter."""
CHANNEL_TEXT_MIN = 6
"""The beginning of a channel's id that names it: `0x` and four digits."""


def read_clock() -> int:
    """The clock, in unix milliseconds."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of both clients, beside the gateway's URL and the transport; see `client.PayingClient`."""

    wallet: Wallet | None = None
    rpc_urls: Mapping[int, str] = field(default_factory=dict, repr=False)
    chains: Iterable[int] = ()
    rail: RailChoice = "auto"
    max_price: CapText = None
    max_fee: CapText = None
    max_deposit: CapText = None
    budget: CapText = None
    session_budget: CapText = None
    store_path: Path | str | None = None
    before_signing: Callable[[PaymentQuote], None] | None = None
    on_progress: Callable[[PaymentProgress], None] | None = None
    public_url: str | None = None
    patience: Patience = field(default_factory=Patience)
    timeout: TimeoutTypes = field(default_factory=lambda: TIMEOUT)
    deadline_s: float = DEADLINE_S
    allow_http: bool = False
    assets: tuple[Asset, ...] = ()
    now_ms: Callable[[], int] = read_clock
    entropy: Callable[[int], bytes] = secrets.token_bytes


class Driver:
    """The shared part of a client. Safe to use from many threads and tasks at once. Raises ValueError for invalid
    options."""

    def __init__(self, gateway_url: str, options: ClientOptions) -> None:
        for url in (gateway_url, *options.rpc_urls.values()):
            check_tls(url, allow_http=options.allow_http)
        self.root = gateway_url.rstrip("/").removesuffix(API_PREFIX)
        # Signatures cover the gateway's public URL, not the URL at which it is reached.
        self.origin = parse_origin(options.public_url or self.root)
        self.gateway = str(self.origin)
        self.wallet = options.wallet
        self.rpc_urls = {ChainId(chain_id): url for chain_id, url in options.rpc_urls.items()}
        self.signing_chains = frozenset(ChainId(chain_id) for chain_id in options.chains)
        self.before_signing = options.before_signing or _approve
        self.on_progress = options.on_progress or _ignore_progress
        self._timeout = httpx.Timeout(options.timeout)
        self.budget = _parse_cap(options.budget)
        self.session = SessionLimit(_parse_cap(options.session_budget))
        self.deadline_s = options.deadline_s
        self.now_ms = options.now_ms
        self.entropy = options.entropy
        self._rules = CallRules(
            max_price=DEFAULT_MAX_PRICE if options.max_price is None else Cap.parse(options.max_price),
            max_fee=_parse_cap(options.max_fee),
            max_deposit=DEFAULT_MAX_PRICE if options.max_deposit is None else Cap.parse(options.max_deposit),
            patience=options.patience,
            rail=check_rail(options.rail),
        )
        self._assets: Mapping[tuple[ChainId, Address | None], Asset] = {
            (asset.chain_id, asset.token): asset for asset in options.assets
        }
        path = options.store_path or Path.home() / ".tollway" / "payments.sqlite3"
        # Payments of one call's price, made by calls that are running now; other calls must not spend them.
        # In memory on purpose: after a crash no call reserves the payment, and the next call spends it.
        self.reserved_by: dict[TxHash, CallPlan] = {}
        # Authorisations of running calls, by nonce; and those that ended calls of this process left without an outcome.
        self.submitted: dict[bytes, CallPlan] = {}
        self.left_open: set[bytes] = set()
        # Channels that running calls have locked: the call and the descriptor of its lock.
        self._channel_locks: dict[ChannelId, tuple[CallPlan, int]] = {}
        # Listings at which the wallet has no free call left, and until when they are not asked again.
        self._no_free_calls_until_ms: dict[str, int] = {}
        # Keys of requests that were begun before and have no response yet.
        self.repeated_keys: set[str] = set()
        # Held while a payment is stored and reserved, so that no other call sees it stored and not reserved.
        self.reservation_lock = threading.Lock()
        self.store = PaymentStore(Path(path), now_ms=self.now_ms)

    @property
    def max_price(self) -> Cap:
        return self._rules.max_price

    @property
    def max_deposit(self) -> Cap:
        return self._rules.max_deposit

    @property
    def max_fee(self) -> Cap | None:
        return self._rules.max_fee

    def keep_key(self, payer: Address, plan: CallPlan) -> str:
        fresh = self.entropy(16).hex()
        key = self.store.keep_key(payer=payer, request=plan.digest(self.gateway), fresh=fresh)
        if key != fresh:
            self.repeated_keys.add(key)
        return key

    def drop_key(self, payer: Address, plan: CallPlan, key: str) -> None:
        self.store.drop_key(payer=payer, request=plan.digest(self.gateway), key=key)
        self.repeated_keys.discard(key)

    # ---- One call.

    def plan_call(self, api_id: str, path: str = "", **options: Unpack[CallOptions]) -> CallPlan:
        """Checks a call before anything is sent; `AsyncTollwayClient.call` documents the options. Raises ValueError for a call that cannot be sent,
        TypeError for a value of a wrong type."""
        return plan_call(self.root, api_id, path, options, defaults=self._rules, timeout=self._timeout)

    def plan_refund(self, channel: OwnChannel) -> CallPlan:
        return plan_refund(self.root, channel, defaults=self._rules, timeout=self._timeout)

    def find_channel(self, text: str) -> OwnChannel:
        """The channel of the wallet with that id, or with an id that begins so. Raises ValueError."""
        wallet = self.wallet
        known = () if wallet is None else self.store.list_channels(wallet.address)
        found = [channel for channel in known if str(channel.id).startswith(text.lower())]
        if len(found) != 1 or len(text) < CHANNEL_TEXT_MIN:
            raise ValueError(
                "this wallet has no such channel in its store; tollway wallet channels lists them"
            )
        return found[0]

    def begin_call(self, io: CallIo, plan: CallPlan) -> Coroutine[Any, Any, CallResult]:
        """The flow of this call."""
        if self.wallet is None:
            return free_flow(io, plan.rules)
        source = PaymentSource(
            payer=self.wallet.address,
            chains=frozenset(self.rpc_urls),
            gateway=self.gateway,
            assets=self._assets,
            signing_chains=self.signing_chains,
        )
        return pay_flow(io, source, plan.rules)

    def find_unresolved(self) -> list[Transfer]:
        """The payments on a chain with a node that an earlier process stored, and perhaps never sent."""
        unresolved = () if self.wallet is None else self.store.unresolved(self.wallet.address)
        return [transfer for transfer in unresolved if transfer.chain_id in self.rpc_urls]

    def build_call(self, plan: CallPlan, added: HeaderPairs, method: str | None) -> httpx.Request:
        request = httpx.Request(
            method or plan.method, plan.url, headers=list(plan.headers), content=plan.body or None
        )
        for name, value in added:
            request.headers[name] = value
        request.extensions = {"timeout": plan.timeout.as_dict()}
        return request

    def reserved_by_others(self, plan: CallPlan) -> frozenset[TxHash]:
        """The payments that other running calls have reserved."""
        owners = self.reserved_by.copy()
        return frozenset(tx_hash for tx_hash, owner in owners.items() if owner is not plan)

    def end_call(self, plan: CallPlan) -> None:
        """Ends a call, with or without a response: other calls may spend what it left."""
        for tx_hash in [tx_hash for tx_hash, owner in self.reserved_by.copy().items() if owner is plan]:
            self.reserved_by.pop(tx_hash, None)
        # A cancelled call has recorded no outcome of its authorisation: the same request sends it again.
        for nonce in [nonce for nonce, owner in self.submitted.copy().items() if owner is plan]:
            self.left_open.add(nonce)
            self.submitted.pop(nonce, None)
        for key in [key for key, (owner, _) in self._channel_locks.copy().items() if owner is plan]:
            self.store.unlock_channel(self._channel_locks.pop(key)[1])

    def lock_channel(self, key: ChannelId, plan: CallPlan) -> bool:
        """Locks a channel for this call until its end. False while another call of the wallet has it, in any process."""
        owner = self._channel_locks.get(key)
        if owner is not None:
            return owner[0] is plan
        descriptor = self.store.lock_channel(key)
        if descriptor is None:
            return False
        self._channel_locks[key] = (plan, descriptor)
        return True

    def lease_pending(self, key: ChannelId, plan: CallPlan) -> OwnChannel | None:
        """The channel whose pending voucher an earlier run of this call left, locked for this call. None where that is in use, or where its outcome is known by now."""
        if not self.lock_channel(key, plan):
            return None
        found = self.store.find_channel(key)
        pending = None if found is None else found.pending
        return found if pending is not None and pending.request == plan.digest(self.gateway) else None

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
            *(self._sign_request(request, control_request.body) if control_request.is_signed else ()),
        ):
            request.headers[name] = value
        request.extensions = {"timeout": self._timeout.as_dict()}
        return request

    def _sign_request(self, request: httpx.Request, body: bytes) -> HeaderPairs:
        if self.wallet is None:
            raise CannotPay(NO_WALLET)
        raw_path, _, query = request.url.raw_path.partition(b"?")
        signed_request = SignedRequest(
            method=request.method,
            raw_path=raw_path,
            query=query,
            headers=request.headers.raw,
            body=body,
        )
        return self.wallet.sign_request(
            signed_request,
            origin=self.origin,
            chain_id=next(iter(self.rpc_urls), MAINNET),
            now_s=self.now_ms() // 1000,
            nonce=self.entropy(16).hex(),
        )

    # ---- Free calls.

    def sign_free_call(self, plan: CallPlan) -> HeaderPairs:
        if self.now_ms() < self._no_free_calls_until_ms.get(plan.api_id, 0):
            return ()
        return self._sign_request(self.build_call(plan, (), None), plan.body)

    def end_free_calls(self, plan: CallPlan, per_s: int | None) -> None:
        wait_s = NO_FREE_CALLS_S if per_s is None else min(per_s, NO_FREE_CALLS_S)
        self._no_free_calls_until_ms[plan.api_id] = self.now_ms() + wait_s * 1000

    # ---- Nodes.

    def build_node_request(
        self, chain_id: ChainId, method: str, params: tuple[object, ...]
    ) -> httpx.Request | NodeUnavailable:
        url = self.rpc_urls.get(chain_id)
        if url is None:
            return NodeUnavailable(detail="no URL of a node is configured")
        rpc_request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
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


def _parse_cap(text: CapText) -> Cap | None:
    return None if text is None else Cap.parse(text)


def _approve(_: PaymentQuote) -> None:
    pass


def _ignore_progress(_: PaymentProgress) -> None:
    pass
