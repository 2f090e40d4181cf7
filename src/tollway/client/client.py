"""The synchronous and the asynchronous client. An operation that needs the gateway is one coroutine over `Http` (`client/exchange.py`): the asynchronous
client awaits it, and the synchronous one runs it over an `Http` that never suspends. What a call sends, signs and pays is decided in the other modules of
this package.
"""

import contextlib
import functools
import inspect
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

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

from tollway.client import requests
from tollway.client.call_io import (
    ControlRequest,
    ControlResponse,
    PaymentProgress,
    PaymentQuote,
    SignedAuthorization,
    Transfer,
)
from tollway.client.channel_exit import (
    ChannelRefund,
    WithdrawalPlan,
    WithdrawnChannel,
    plan_withdrawal,
    refund_channel,
    send_withdrawal,
)
from tollway.client.control import CallStatus, ControlMethods, ControlPlane, Role
from tollway.client.deadline import open_transport, within
from tollway.client.driver import DEADLINE_S, NO_WALLET, TIMEOUT, ClientOptions, Driver, read_clock
from tollway.client.errors import CannotPay
from tollway.client.exchange import (
    RESPONSE_BYTES_MAX,
    AsyncHttp,
    BlockingHttp,
    Exchange,
    Http,
    perform,
    run_blocking,
)
from tollway.client.export import read_pages, read_pages_async
from tollway.client.issuers import open_tls
from tollway.client.own_channel import OwnChannel
from tollway.client.quote import ATTO_DECIMALS, Cap
from tollway.client.requests import CallPlan, CapText, named_options
from tollway.client.responses import (
    CallResponse,
    ResponseTooLong,
    build_unreachable,
    decode_response,
    wrap_response,
)
from tollway.client.store import PaymentStore
from tollway.client.transfer import Patience, RailChoice, resume_transfers
from tollway.client.wallet import Wallet
from tollway.ids import Address, TxHash
from tollway.money import Asset, format_decimal

P = ParamSpec("P")
T = TypeVar("T")
Transport = TypeVar("Transport", httpx.BaseTransport, httpx.AsyncBaseTransport)
OpenCall = TypeVar(
    "OpenCall", AbstractContextManager[CallResponse], AbstractAsyncContextManager[CallResponse]
)
Parts = TypeVar("Parts", Iterator[bytes], AsyncIterator[bytes])


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The limits of spending: per call, per network fee of a payment, per wallet in total, and per client. None: not set; for fees
    the presets then apply (`client/fee_limit.py`)."""

    max_price: Cap
    max_fee: Cap | None
    budget: Cap | None
    session_budget: Cap | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentAmount:
    """An amount in one currency, in 10^-18."""

    symbol: str
    atto: int

    def describe(self) -> str:
        """`0.05 USDC`."""
        return f"{format_decimal(self.atto, decimals=ATTO_DECIMALS)} {self.symbol}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """The amounts that count against the budgets, one for each currency: `total` of this wallet in its store, `session` signed by this client."""

    total: tuple[SpentAmount, ...]
    session: tuple[SpentAmount, ...]


@named_options
class PayingClient(ControlPlane, Generic[Transport, OpenCall, Parts]):
    """The options of both clients, their operations that only use the store, and those whose result is a stream."""

    def __init__(
        self,
        gateway_url: str,
        *,
        wallet: Wallet | None = None,
        rpc_urls: Mapping[int, str] | None = None,
        chains: Iterable[int] = (),
        rail: RailChoice = "auto",
        max_price: CapText = None,
        max_fee: CapText = None,
        max_deposit: CapText = None,
        budget: CapText = None,
        session_budget: CapText = None,
        store_path: Path | str | None = None,
        before_signing: Callable[[PaymentQuote], None] | None = None,
        on_progress: Callable[[PaymentProgress], None] | None = None,
        public_url: str | None = None,
        patience: Patience | None = None,
        timeout: TimeoutTypes = TIMEOUT,
        deadline_s: float = DEADLINE_S,
        allow_http: bool = False,
        assets: tuple[Asset, ...] = (),
        transport: Transport | None = None,
        now_ms: Callable[[], int] = read_clock,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """`wallet`: pays and signs; without one only free calls work. `rpc_urls`: a node per chain id; the client pays by transaction on these chains only.
        `chains`: further chains, where it pays by authorisations only, without a node. `rail`: `"tx"`, `"x402"`, `"channel"` or `"auto"`, see `client/flow.py`.

        `max_price`: the maximum price of a call: `"0.05 USDC"`, a mapping by currency, or `"0.05"` of any currency (default: 1 of each dollar token of
        the presets, and nothing in other currencies). `max_fee`: the maximum network fee of one payment, in the native currency, same format, see `client/fee_limit.py`.
        `max_deposit`: the maximum of one deposit into a payment channel (default: 1 of each dollar token).
        `budget`: the maximum sum of all payments in this store, same format; `session_budget`: the maximum sum that this client signs.
        `store_path`: the file of payments, shared by all processes of a wallet (default `~/.tollway/payments.sqlite3`). `before_signing`: called
        with each payment within these limits before it is signed; an exception stops it. `on_progress`: called with the progress of each signed payment. The
        asynchronous client calls both in a thread.

        `public_url`: the public URL of the gateway, needed if `gateway_url` is another one. `patience`: how long a call waits for the confirmation of its
        payment. `timeout`: of one request to the gateway, in a form that httpx accepts. `deadline_s`: the maximum duration of a call in seconds; of `stream`, until its
        head. `allow_http`: allows URLs without TLS that are not on loopback. `assets`: tokens besides the presets, whose symbol and decimals
        are then not read from a node. `transport`: an httpx transport to the gateway. `now_ms` and `entropy`: clock and randomness, for tests.

        Raises ValueError for an invalid option.
        """
        options = ClientOptions(
            wallet=wallet,
            rpc_urls=rpc_urls or {},
            chains=chains,
            rail=rail,
            max_price=max_price,
            max_fee=max_fee,
            max_deposit=max_deposit,
            budget=budget,
            session_budget=session_budget,
            store_path=store_path,
            before_signing=before_signing,
            on_progress=on_progress,
            public_url=public_url,
            patience=patience or Patience(),
            timeout=timeout,
            deadline_s=deadline_s,
            allow_http=allow_http,
            assets=assets,
            now_ms=now_ms,
            entropy=entropy,
        )
        self._driver = Driver(gateway_url, options)
        self._is_resumed = False
        self._http = self._open(transport)

    def _open(self, transport: Transport | None) -> Http:
        raise NotImplementedError

    def payments(self) -> tuple[Transfer, ...]:
        """Every payment in the store of this wallet, oldest first."""
        wallet = self._driver.wallet
        return () if wallet is None else self._driver.store.list_transfers(wallet.address)

    def authorizations(self) -> tuple[SignedAuthorization, ...]:
        """Every authorisation in the store of this wallet, oldest first."""
        wallet = self._driver.wallet
        return () if wallet is None else self._driver.store.list_authorizations(wallet.address)

    def channels(self) -> tuple[OwnChannel, ...]:
        """Every payment channel in the store of this wallet, oldest first."""
        wallet = self._driver.wallet
        return () if wallet is None else self._driver.store.list_channels(wallet.address)

    def abandon(self, transaction: str) -> bool:
        """Abandons an unresolved payment, so that its payee can be paid again; or an open authorisation, so that its request can be paid again.
        `transaction`: the hash of the payment, or the nonce of the authorisation. The money is lost if it moves later. False where the store has no such
        payment. Raises ValueError for a text of another form."""
        transaction_hash = TxHash.parse(transaction)
        return self._driver.store.abandon(transaction_hash) or self._driver.store.abandon_authorization(
            bytes(transaction_hash)
        )

    @property
    def store(self) -> PaymentStore:
        """The store of the wallet's payments and refunds."""
        return self._driver.store

    @property
    def address(self) -> Address | None:
        """None without a wallet."""
        return None if self._driver.wallet is None else self._driver.wallet.address

    @property
    def gateway(self) -> str:
        """The URL of the gateway."""
        return self._driver.root

    @property
    def allowance(self) -> Allowance:
        """The limits of this client."""
        driver = self._driver
        return Allowance(
            max_price=driver.max_price,
            max_fee=driver.max_fee,
            budget=driver.budget,
            session_budget=driver.session.cap,
        )

    def spending(self) -> Spending:
        """The amounts that count against the budgets now."""
        driver, wallet = self._driver, self._driver.wallet
        total = {} if wallet is None else driver.store.spent(wallet.address)
        return Spending(total=_list_amounts(total), session=_list_amounts(driver.session.spent()))

    def keep_key(
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
    ) -> str | None:
        """The idempotency key for this call: the same key for the same call until `drop_key`, also after a crash. None without a wallet: such a client
        pays nothing. Sends nothing. The options, such as `max_price`, are those of `call`, without `idempotency_key`: give `call` the returned key."""
        plan = self._driver.plan_call(
            api_id,
            path,
            method=method,
            params=params,
            headers=headers,
            content=content,
            data=data,
            files=files,
            json=json,
            timeout=timeout,
            max_price=max_price,
            max_fee=max_fee,
            rail=rail,
            prepay=prepay,
            idempotency_key=idempotency_key,
        )
        driver = self._driver
        return None if driver.wallet is None else driver.keep_key(driver.wallet.address, plan)

    def drop_key(
        self,
        key: str,
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
    ) -> None:
        """Drops the key of a call whose response was delivered: the same request is then another call. `key`: the one that `keep_key` returned. The options,
        such as `max_price`, are those of `call`, without `idempotency_key`."""
        plan = self._driver.plan_call(
            api_id,
            path,
            method=method,
            params=params,
            headers=headers,
            content=content,
            data=data,
            files=files,
            json=json,
            timeout=timeout,
            max_price=max_price,
            max_fee=max_fee,
            rail=rail,
            prepay=prepay,
            idempotency_key=idempotency_key,
        )
        driver = self._driver
        if driver.wallet is not None:
            driver.drop_key(driver.wallet.address, plan, key)

    def stream(
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
    ) -> OpenCall:
        """As `call`, with a streamed response, in a `with` block: `iter_bytes`, `iter_lines` and the other iterators of httpx read its body, of any size. In
        asyncio `async with`, and `aiter_bytes`. The options, such as `max_price`, are those of `call`. Reading raises the exceptions of httpx, and
        `ResponseUnreadable` for a body that does not match its content coding."""
        plan = self._driver.plan_call(
            api_id,
            path,
            method=method,
            params=params,
            headers=headers,
            content=content,
            data=data,
            files=files,
            json=json,
            timeout=timeout,
            max_price=max_price,
            max_fee=max_fee,
            rail=rail,
            prepay=prepay,
            idempotency_key=idempotency_key,
        )
        return self._stream(plan)

    def export_calls(
        self,
        *,
        api_id: str | None = None,
        status: CallStatus | None = None,
        role: Role | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        wallet: str | None = None,
    ) -> Parts:
        """The calls of this wallet as a CSV file, newest first, in parts of any size: `docs/accounting.md` has the columns.

        `role`: `payer` (the default), or `provider` for calls to listings of this wallet. `since` and `until` are moments with a time zone. `wallet`: the address of
        a wallet that has named this one as its viewer. Nothing is sent before the first part is read. Reading raises the exceptions of a control request, and
        `GatewayUnreachable` when the transfer breaks off: the text until then is incomplete.
        """
        query = {
            "apiId": api_id,
            "status": status,
            "role": role,
            "from": requests.format_moment("since", since),
            "to": requests.format_moment("until", until),
            "wallet": wallet,
        }
        return self._read_pages(requests.export_calls(query))

    def export_payments(
        self,
        *,
        role: Role | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        wallet: str | None = None,
    ) -> Parts:
        """The payments of this wallet in the gateway's ledger as a CSV file, newest first. `role`: `payer` (the default), or `provider` for payments that this wallet
        received. `since` and `until`: by when the ledger recorded them. The rest is as in `export_calls`."""
        query = {
            "role": role,
            "from": requests.format_moment("since", since),
            "to": requests.format_moment("until", until),
            "wallet": wallet,
        }
        return self._read_pages(requests.export_payments(query))

    def _stream(self, plan: CallPlan) -> OpenCall:
        raise NotImplementedError

    def _read_pages(self, first: ControlRequest) -> Parts:
        raise NotImplementedError

    # ---- Coroutines of both clients.

    async def _resume(self) -> None:
        unresolved = await self._http.run(self._driver.find_unresolved)
        await resume_transfers(Exchange(self._driver, self._http), unresolved)

    @contextlib.asynccontextmanager
    async def _locked_channel(self, channel_id: str) -> AsyncIterator[tuple[Exchange, OwnChannel]]:
        """A channel that no call uses meanwhile. Raises ValueError for an unknown one."""
        driver, find = self._driver, functools.partial(self._driver.find_channel, channel_id)
        found = await self._http.run(find)
        plan = driver.plan_refund(found)
        exchange = Exchange(driver, self._http, plan)
        try:
            if not await self._http.run(functools.partial(driver.lock_channel, found.id, plan)):
                raise CannotPay("A call of this wallet uses the channel. Repeat the command later.")
            yield exchange, await self._http.run(find)
        finally:
            driver.end_call(plan)
            await exchange.close()

    def _own_address(self) -> str:
        if self.address is None:
            raise CannotPay(NO_WALLET)
        return str(self.address)

    async def _send_control(self, request: ControlRequest) -> ControlResponse:
        return await Exchange(self._driver, self._http).send_control(request)

    async def _call(self, plan: CallPlan) -> CallResponse:
        exchange = Exchange(self._driver, self._http, plan)
        with self._resuming_after_failure(), within(self._driver.deadline_s):
            try:
                response = await self._open_response(exchange)
                return response if response.is_closed else await self._read_response(response)
            finally:
                await exchange.close()

    async def _open_response(self, exchange: Exchange) -> CallResponse:
        """Makes the call, up to the head of its response, or to its end where the gateway refuses."""
        with within(self._driver.deadline_s):  # the deadline of a stream, whose body has none
            if not self._is_resumed:
                # Another thread may begin a call before the end of the resumption: the store gives it no second payment to the same payee and no used nonce.
                self._is_resumed = True
                await self._resume()
            try:
                paid = await perform(self._driver.begin_call(exchange, exchange.plan))
            finally:
                self._driver.end_call(exchange.plan)
        assert exchange.response is not None
        return wrap_response(exchange.response, paid, exchange.content)

    async def _read_response(self, response: CallResponse) -> CallResponse:
        try:
            content = await self._http.read(response, bytes_max=RESPONSE_BYTES_MAX)
            return decode_response(response, content, bytes_max=RESPONSE_BYTES_MAX)
        except (httpx.TransportError, ResponseTooLong) as exc:
            raise build_unreachable(exc, transaction=response.payment.transaction) from exc

    @contextlib.contextmanager
    def _resuming_after_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            # A stored payment may not have been sent. After an exception of the caller's own block the resumption finds nothing to send.
            self._is_resumed = False
            raise


def _list_amounts(spent: Mapping[str, int]) -> tuple[SpentAmount, ...]:
    return tuple(SpentAmount(symbol=symbol, atto=atto) for symbol, atto in spent.items())


@named_options
class AsyncTollwayClient(
    PayingClient[httpx.AsyncBaseTransport, AbstractAsyncContextManager[CallResponse], AsyncIterator[bytes]],
    ControlMethods,
):
    """`TollwayClient` for asyncio. Safe to use from many tasks. Close it, or use it in an `async with`. It has the methods of `TollwayClient`: those that
    need the gateway are awaited, `stream` is an `async with`, and an export is read by `async for`."""

    def _open(self, transport: httpx.AsyncBaseTransport | None) -> Http:
        # trust_env False: a netrc entry would add an Authorization header to every call.
        self._client = httpx.AsyncClient(
            transport=transport or httpx.AsyncHTTPTransport(verify=open_tls(), trust_env=False),
            trust_env=False,
            follow_redirects=False,
        )
        return AsyncHttp(self._client)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def resume(self) -> None:
        """Broadcasts payments that an earlier process stored and perhaps never sent. The first call does it, and the next one after a failed call. Waits for
        no confirmation and signs nothing."""
        await self._resume()

    async def refund_channel(self, channel: str) -> ChannelRefund:
        """Asks the gateway for all that is left in a payment channel. `channel`: its id, or the beginning of it. Raises ValueError for an unknown one."""
        async with self._locked_channel(channel) as (exchange, own):
            if own.gateway != self._driver.gateway:
                raise ValueError(
                    f"the channel is one of the gateway {own.gateway}; name that one (--gateway)"
                )
            with within(self._driver.deadline_s):
                has_node = own.asset.chain_id in self._driver.rpc_urls
                return await perform(
                    refund_channel(exchange, own, exchange.plan.rules.patience, has_node=has_node)
                )

    async def plan_withdrawal(self, channel: str) -> WithdrawalPlan:
        """Plans the next transaction that withdraws what is left of a payment channel, without the gateway: signs and sends nothing. Needs a node of its chain. Raises
        `PaymentPending` while the delay of the channel runs, ValueError for an unknown channel."""
        async with self._locked_channel(channel) as (exchange, own):
            return await perform(plan_withdrawal(exchange, own, self._driver.max_fee))

    async def send_withdrawal(self, plan: WithdrawalPlan) -> WithdrawnChannel:
        """Sends the transaction of a plan, which costs gas, and waits until it is mined."""
        async with self._locked_channel(str(plan.channel.id)) as (exchange, _):
            patience = exchange.plan.rules.patience
            return await perform(send_withdrawal(exchange, plan, patience))

    async def call(
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
    ) -> CallResponse:
        """Calls a listing, and pays where that is required. Reads the whole response, of any status, up to 64 MiB. A refusal of the gateway is a response,
        too: with a `problem`.

        `path`: under the listing, with or without a query; `params` are added to it. `method`: GET, or POST with a body. `params`, `headers`, `content`,
        `data`, `files`, `json` and `timeout` are those of httpx. A body is read into memory (at most 64 MiB), because a call is sent again after a
        402. The multipart boundary is derived from the body, so two runs of a call are the same request.

        `max_price`, `max_fee`, `rail`: for this call, instead of the client's. `prepay`: the number of calls that a new payment covers.
        `idempotency_key`: a repeat of the same call gets the stored response and is paid once, and the client may repeat it after a broken
        connection.

        Raises a `CallerFailure` (`client/errors.py`): `GatewayUnreachable` without a whole response, others where the call cannot be paid or its outcome is
        unknown. Raises ValueError for a call that cannot be sent, TypeError for a value of a wrong type.
        """
        plan = self._driver.plan_call(
            api_id,
            path,
            method=method,
            params=params,
            headers=headers,
            content=content,
            data=data,
            files=files,
            json=json,
            timeout=timeout,
            max_price=max_price,
            max_fee=max_fee,
            rail=rail,
            prepay=prepay,
            idempotency_key=idempotency_key,
        )
        return await self._call(plan)

    @contextlib.asynccontextmanager
    async def _stream(self, plan: CallPlan) -> AsyncIterator[CallResponse]:
        exchange = Exchange(self._driver, self._http, plan)
        with self._resuming_after_failure():
            try:
                yield await self._open_response(exchange)
            finally:
                await exchange.close()

    def _read_pages(self, first: ControlRequest) -> AsyncIterator[bytes]:
        return read_pages_async(self._driver, self._http, first)


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["TollwayClient", P], T]:
    """The synchronous method that runs a method of the asynchronous client. It has no `__wrapped__`: a framework that unwraps a function would take it for a
    coroutine function. So it has a `__signature__` of its own."""

    @functools.wraps(method)
    def run(client: "TollwayClient", /, *args: P.args, **options: P.kwargs) -> T:
        return run_blocking(method(client, *args, **options))

    vars(run)["__signature__"] = inspect.signature(method)
    del run.__wrapped__
    run.__qualname__ = f"TollwayClient.{method.__name__}"
    return run


class TollwayClient(PayingClient[httpx.BaseTransport, AbstractContextManager[CallResponse], Iterator[bytes]]):
    """The synchronous client. Safe to use from many threads: they share the connections of httpx and the store, which decides on each payment in one
    transaction. Close it, or use it in a `with`.

    Every method that needs the gateway can raise a `CallerFailure` (`client/errors.py`), such as `GatewayUnreachable`; those besides `call` and `stream` raise
    `GatewayRefused` for a refusal. A method whose request must be signed raises `CannotPay` without a wallet."""

    call = _blocking(AsyncTollwayClient.call)
    refund_channel = _blocking(AsyncTollwayClient.refund_channel)
    plan_withdrawal = _blocking(AsyncTollwayClient.plan_withdrawal)
    send_withdrawal = _blocking(AsyncTollwayClient.send_withdrawal)
    resume = _blocking(AsyncTollwayClient.resume)
    search = _blocking(AsyncTollwayClient.search)
    show = _blocking(AsyncTollwayClient.show)
    describe = _blocking(AsyncTollwayClient.describe)
    facets = _blocking(AsyncTollwayClient.facets)
    stats = _blocking(AsyncTollwayClient.stats)
    networks = _blocking(AsyncTollwayClient.networks)
    status = _blocking(AsyncTollwayClient.status)
    history = _blocking(AsyncTollwayClient.history)
    spending_report = _blocking(AsyncTollwayClient.spending_report)
    sales_report = _blocking(AsyncTollwayClient.sales_report)
    find_call = _blocking(AsyncTollwayClient.find_call)
    receipt = _blocking(AsyncTollwayClient.receipt)
    payment = _blocking(AsyncTollwayClient.payment)
    recorded_payments = _blocking(AsyncTollwayClient.recorded_payments)
    viewers = _blocking(AsyncTollwayClient.viewers)
    show_to = _blocking(AsyncTollwayClient.show_to)
    hide_from = _blocking(AsyncTollwayClient.hide_from)
    decline = _blocking(AsyncTollwayClient.decline)
    budget = _blocking(AsyncTollwayClient.budget)
    webhooks = _blocking(AsyncTollwayClient.webhooks)
    add_webhook = _blocking(AsyncTollwayClient.add_webhook)
    remove_webhook = _blocking(AsyncTollwayClient.remove_webhook)
    deliveries = _blocking(AsyncTollwayClient.deliveries)
    resend = _blocking(AsyncTollwayClient.resend)
    publish = _blocking(AsyncTollwayClient.publish)
    update = _blocking(AsyncTollwayClient.update)
    patch = _blocking(AsyncTollwayClient.patch)
    try_out = _blocking(AsyncTollwayClient.try_out)
    resolve = _blocking(AsyncTollwayClient.resolve)
    retire = _blocking(AsyncTollwayClient.retire)
    ownership = _blocking(AsyncTollwayClient.ownership)
    check_ownership = _blocking(AsyncTollwayClient.check_ownership)
    fetch_document = _blocking(AsyncTollwayClient.fetch_document)
    fetch_agent_document = _blocking(AsyncTollwayClient.fetch_agent_document)

    def _open(self, transport: httpx.BaseTransport | None) -> Http:
        self._client = httpx.Client(
            transport=transport or open_transport(), trust_env=False, follow_redirects=False
        )
        return BlockingHttp(self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    @contextlib.contextmanager
    def _stream(self, plan: CallPlan) -> Iterator[CallResponse]:
        exchange = Exchange(self._driver, self._http, plan)
        with self._resuming_after_failure():
            try:
                yield run_blocking(self._open_response(exchange))
            finally:
                run_blocking(exchange.close())

    def _read_pages(self, first: ControlRequest) -> Iterator[bytes]:
        return read_pages(self._driver, self._http, first)
