"""The synchronous and the asynchronous client. Every operation is one flow of steps; each client performs the steps, with `httpx.Client` or
`httpx.AsyncClient`. The other modules of this package make every decision.

The methods that need a network are made of the functions of `client/control.py` and of `Driver.plan_call`, so both clients have the same ones.
"""

import asyncio
import contextlib
import inspect
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, get_args

import httpx
from httpx._types import TimeoutTypes

from tollway.client import control
from tollway.client.deadline import check_deadline, interrupted, open_transport, within
from tollway.client.driver import (
    CALL_DEADLINE_S,
    CONTROL_DEADLINE_S,
    DEADLINE_S,
    NODE_BYTES_MAX,
    NODE_DEADLINE_S,
    RESPONSE_BYTES_MAX,
    TIMEOUT,
    ClientOptions,
    Driver,
    Exchange,
    read_clock,
)
from tollway.client.export import plan_calls, plan_payments, read_pages, read_pages_async
from tollway.client.issuers import open_tls
from tollway.client.quote import ATTO_DECIMALS, Cap
from tollway.client.requests import CallPlan, CapText, check_names
from tollway.client.responses import (
    PROBLEM_BYTES_MAX,
    CallResponse,
    ResponseTooLong,
    build_unreachable,
    decode_problem,
    decode_response,
    describe_failure,
    describe_node_failure,
    is_from_gateway,
    read_node_response,
    read_response,
    wrap_response,
)
from tollway.client.steps import (
    ControlRequest,
    ControlResponse,
    Flow,
    GatewayResponse,
    NodeOutcome,
    NodeUnavailable,
    NoResponse,
    Pause,
    PaymentProgress,
    PaymentQuote,
    QueryNode,
    SendCall,
    SignedAuthorization,
    Step,
    StepOutcome,
    Transfer,
)
from tollway.client.transfer import Patience, RailChoice
from tollway.client.wallet import Wallet
from tollway.ids import Address, TxHash
from tollway.money import Asset, format_decimal

P = ParamSpec("P")
T = TypeVar("T")
Transport = TypeVar("Transport", httpx.BaseTransport, httpx.AsyncBaseTransport)


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
    """An amount that was spent in one currency, in 10^-18."""

    symbol: str
    atto: int

    def describe(self) -> str:
        """`0.05 USDC`."""
        return f"{format_decimal(self.atto, decimals=ATTO_DECIMALS)} {self.symbol}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """The amounts spent, one for each currency: by this wallet in total, and signed by this client."""

    total: tuple[SpentAmount, ...]
    session: tuple[SpentAmount, ...]


# ---- Methods made of flows and of the plan of a call. Each has the parameters of its source.

Method = TypeVar("Method", bound=Callable[..., object])
Planner = Callable[Concatenate[Driver, P], CallPlan]


def _describe_method(
    run: Method, name: str, source: Callable[..., object], doc: str, *own: str, returns: object
) -> Method:
    """Gives a method its name, documentation and signature: `self`, the parameters `own`, then those of `source`."""
    run.__name__, run.__doc__ = name, doc
    first = [inspect.Parameter(one, inspect.Parameter.POSITIONAL_OR_KEYWORD) for one in ("self", *own)]
    rest = [one for one in inspect.signature(source).parameters.values() if one.name != "self"]
    signature = inspect.Signature([*first, *rest], return_annotation=returns)
    run.__signature__ = signature  # type: ignore[attr-defined] # read by inspect.signature
    return run


def _result_of(flow: Callable[..., object]) -> object:
    """The T of a function that returns `Flow[T]`."""
    return get_args(inspect.signature(flow).return_annotation)[2]


def _document_call(first: str) -> str:
    return f"{first}\n\n{inspect.getdoc(Driver.plan_call)}"


def _blocking(flow: Callable[P, Flow[T]]) -> Callable[Concatenate["TollwayClient", P], T]:
    """The method of the synchronous client that performs a flow."""
    name = flow.__name__

    def run(client: "TollwayClient", /, *args: P.args, **options: P.kwargs) -> T:
        check_names(options, inspect.signature(flow).parameters, of=f"{name}()")
        return client._drive(flow(*args, **options), Exchange(None))

    return _describe_method(run, name, flow, inspect.getdoc(flow) or "", returns=_result_of(flow))


def _awaited(
    flow: Callable[P, Flow[T]],
) -> Callable[Concatenate["AsyncTollwayClient", P], Coroutine[Any, Any, T]]:
    """The method of the asynchronous client that performs a flow."""
    name = flow.__name__

    async def run(client: "AsyncTollwayClient", /, *args: P.args, **options: P.kwargs) -> T:
        check_names(options, inspect.signature(flow).parameters, of=f"{name}()")
        return await client._drive(flow(*args, **options), Exchange(None))

    return _describe_method(run, name, flow, inspect.getdoc(flow) or "", returns=_result_of(flow))


def _check_options(options: Mapping[str, object], *, of: str) -> None:
    """Raises TypeError for an unknown option, with the nearest one: a misspelt limit would not apply."""
    check_names(options, inspect.signature(Driver.plan_call).parameters, of=of)


_CALL = "Calls a listing, and pays where that is required. Reads the whole response, of any status. Raises a `CallerFailure` (`client/errors.py`) where the call cannot be paid or its outcome is unknown."
_STREAM = "As `call`, with a streamed response, in a `with` block: `iter_bytes`, `iter_lines` and the other iterators of httpx read its body."
_KEEP_KEY = "The idempotency key for this call: the same key for the same call until `drop_key`, also after a crash. None without a wallet, which pays nothing."
_DROP_KEY = "Drops the key of a call whose response was delivered: the same request is then another call."


def _calling(plan: Planner[P]) -> Callable[Concatenate["TollwayClient", P], CallResponse]:
    def call(client: "TollwayClient", /, *args: P.args, **options: P.kwargs) -> CallResponse:
        _check_options(options, of="call()")
        return client._call(plan(client._driver, *args, **options))

    return _describe_method(call, "call", plan, _document_call(_CALL), returns=CallResponse)


def _calling_async(
    plan: Planner[P],
) -> Callable[Concatenate["AsyncTollwayClient", P], Coroutine[Any, Any, CallResponse]]:
    async def call(client: "AsyncTollwayClient", /, *args: P.args, **options: P.kwargs) -> CallResponse:
        _check_options(options, of="call()")
        return await client._call(plan(client._driver, *args, **options))

    return _describe_method(call, "call", plan, _document_call(_CALL), returns=CallResponse)


def _streaming(
    plan: Planner[P],
) -> Callable[Concatenate["TollwayClient", P], AbstractContextManager[CallResponse]]:
    def stream(
        client: "TollwayClient", /, *args: P.args, **options: P.kwargs
    ) -> AbstractContextManager[CallResponse]:
        _check_options(options, of="stream()")
        return client._stream(plan(client._driver, *args, **options))

    return _describe_method(
        stream, "stream", plan, _document_call(_STREAM), returns=AbstractContextManager[CallResponse]
    )


def _streaming_async(
    plan: Planner[P],
) -> Callable[Concatenate["AsyncTollwayClient", P], AbstractAsyncContextManager[CallResponse]]:
    def stream(
        client: "AsyncTollwayClient", /, *args: P.args, **options: P.kwargs
    ) -> AbstractAsyncContextManager[CallResponse]:
        _check_options(options, of="stream()")
        return client._stream(plan(client._driver, *args, **options))

    return _describe_method(
        stream, "stream", plan, _document_call(_STREAM), returns=AbstractAsyncContextManager[CallResponse]
    )


def _keeping(plan: Planner[P]) -> Callable[Concatenate["PayingClient[Any]", P], str | None]:
    def keep_key(client: "PayingClient[Any]", /, *args: P.args, **options: P.kwargs) -> str | None:
        _check_options(options, of="keep_key()")
        driver = client._driver
        planned = plan(driver, *args, **options)
        return None if driver.wallet is None else driver.keep_key(driver.wallet.address, planned)

    return _describe_method(keep_key, "keep_key", plan, _document_call(_KEEP_KEY), returns=str | None)


def _dropping(plan: Planner[P]) -> Callable[Concatenate["PayingClient[Any]", str, P], None]:
    def drop_key(client: "PayingClient[Any]", key: str, /, *args: P.args, **options: P.kwargs) -> None:
        _check_options(options, of="drop_key()")
        driver = client._driver
        planned = plan(driver, *args, **options)
        if driver.wallet is not None:
            driver.drop_key(driver.wallet.address, planned, key)

    return _describe_method(drop_key, "drop_key", plan, _document_call(_DROP_KEY), "key", returns=None)


def _exporting(
    plan: Callable[P, ControlRequest], name: str
) -> Callable[Concatenate["TollwayClient", P], Iterator[bytes]]:
    """The method of the synchronous client that reads a CSV file part by part."""

    def export(client: "TollwayClient", /, *args: P.args, **options: P.kwargs) -> Iterator[bytes]:
        check_names(options, inspect.signature(plan).parameters, of=f"{name}()")
        return read_pages(client._http, client._driver, plan(*args, **options))

    return _describe_method(export, name, plan, inspect.getdoc(plan) or "", returns=Iterator[bytes])


def _exporting_async(
    plan: Callable[P, ControlRequest], name: str
) -> Callable[Concatenate["AsyncTollwayClient", P], AsyncIterator[bytes]]:
    """See `_exporting`."""

    def export(client: "AsyncTollwayClient", /, *args: P.args, **options: P.kwargs) -> AsyncIterator[bytes]:
        check_names(options, inspect.signature(plan).parameters, of=f"{name}()")
        return read_pages_async(client._http, client._driver, plan(*args, **options))

    return _describe_method(export, name, plan, inspect.getdoc(plan) or "", returns=AsyncIterator[bytes])


class PayingClient(Generic[Transport]):
    """The options of both clients, and their operations that need no network."""

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
        """`wallet`: pays and signs; without one only free calls work. `rpc_urls`: a node per chain id; the client pays on these chains only.
        `chains`: further chains, where it pays by authorisations only, without a node. `rail`: `"tx"`, `"x402"` or `"auto"`, see `client/flow.py`.

        `max_price`: the maximum price of a call: `"0.05 USDC"`, a mapping by currency, or `"0.05"` of any currency (default: one dollar,
        dollars only). `max_fee`: the maximum network fee of one payment, in the native currency, same format, see `client/fee_limit.py`.
        `budget`: the maximum sum of all payments in this store, same format; `session_budget`: the maximum sum that this client signs.
        `store_path`: the file of payments, shared by all processes of a wallet (default `~/.tollway/payments.sqlite3`). `before_signing`: called
        with each payment within these limits before it is signed; an exception stops it. `on_progress`: called with the progress of each signed payment. The
        asynchronous client calls both in a thread.

        `public_url`: the public URL of the gateway, where it is reached by another URL. `patience`: how long a call waits for its payment.
        `timeout`: as httpx has it, of one request to the gateway. `deadline_s`: the maximum duration of a call in seconds; of `stream`, until its
        head. `allow_http`: allows URLs without TLS that are not on loopback. `assets`: tokens besides the presets, whose symbol and decimals
        are then not read from a node. `transport`: of httpx. `now_ms` and `entropy`: clock and randomness, for tests.

        Raises ValueError for an invalid option.
        """
        options: ClientOptions = {
            "wallet": wallet,
            "rpc_urls": rpc_urls or {},
            "chains": chains,
            "rail": rail,
            "max_price": max_price,
            "max_fee": max_fee,
            "budget": budget,
            "session_budget": session_budget,
            "store_path": store_path,
            "before_signing": before_signing,
            "on_progress": on_progress,
            "public_url": public_url,
            "patience": patience or Patience(),
            "timeout": timeout,
            "deadline_s": deadline_s,
            "allow_http": allow_http,
            "assets": assets,
            "now_ms": now_ms,
            "entropy": entropy,
        }
        self._driver = Driver(gateway_url, options)
        self._is_resumed = False
        self._open(transport)

    def _open(self, transport: Transport | None) -> None:
        raise NotImplementedError

    def payments(self) -> tuple[Transfer, ...]:
        """Every payment in the store of this wallet, oldest first."""
        wallet = self._driver.wallet
        return () if wallet is None else self._driver.store.list_transfers(wallet.address)

    def authorizations(self) -> tuple[SignedAuthorization, ...]:
        """Every authorisation in the store of this wallet, oldest first."""
        wallet = self._driver.wallet
        return () if wallet is None else self._driver.store.list_authorizations(wallet.address)

    def abandon(self, transaction: str) -> bool:
        """Abandons an unresolved payment, by its hash, so that its payee can be paid again; or an open authorisation, by its nonce,
        so that its request can. If it is mined later, it has bought nothing. False where there is no such payment."""
        transaction_hash = TxHash.parse(transaction)
        return self._driver.store.abandon(transaction_hash) or self._driver.store.abandon_authorization(
            bytes(transaction_hash)
        )

    @property
    def address(self) -> Address | None:
        """The address of the wallet that pays."""
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

    keep_key = _keeping(Driver.plan_call)
    drop_key = _dropping(Driver.plan_call)


def _list_amounts(spent: Mapping[str, int]) -> tuple[SpentAmount, ...]:
    return tuple(SpentAmount(symbol=symbol, atto=atto) for symbol, atto in spent.items())


class TollwayClient(PayingClient[httpx.BaseTransport]):
    """The synchronous client. Safe to use from many threads. Close it, or use it in a `with`.

    Every method that needs the gateway raises `GatewayRefused` and `GatewayUnreachable`; one that must be signed raises `CannotPay` without a
    wallet."""

    call = _calling(Driver.plan_call)
    stream = _streaming(Driver.plan_call)
    search = _blocking(control.search)
    show = _blocking(control.show)
    describe = _blocking(control.describe)
    facets = _blocking(control.facets)
    stats = _blocking(control.stats)
    networks = _blocking(control.networks)
    status = _blocking(control.status)
    history = _blocking(control.history)
    spending_report = _blocking(control.spending_report)
    sales_report = _blocking(control.sales_report)
    find_call = _blocking(control.find_call)
    receipt = _blocking(control.receipt)
    payment = _blocking(control.payment)
    recorded_payments = _blocking(control.recorded_payments)
    viewers = _blocking(control.viewers)
    show_to = _blocking(control.show_to)
    hide_from = _blocking(control.hide_from)
    decline = _blocking(control.decline)
    webhooks = _blocking(control.webhooks)
    add_webhook = _blocking(control.add_webhook)
    remove_webhook = _blocking(control.remove_webhook)
    deliveries = _blocking(control.deliveries)
    resend = _blocking(control.resend)
    publish = _blocking(control.publish)
    update = _blocking(control.update)
    patch = _blocking(control.patch)
    try_out = _blocking(control.try_out)
    resolve = _blocking(control.resolve)
    retire = _blocking(control.retire)
    ownership = _blocking(control.ownership)
    check_ownership = _blocking(control.check_ownership)
    fetch_document = _blocking(control.fetch_document)
    fetch_agent_document = _blocking(control.fetch_agent_document)
    export_calls = _exporting(plan_calls, "export_calls")
    export_payments = _exporting(plan_payments, "export_payments")

    def _open(self, transport: httpx.BaseTransport | None) -> None:
        # trust_env False: a netrc entry would add an Authorization header to every call.
        self._http = httpx.Client(
            transport=transport or open_transport(), trust_env=False, follow_redirects=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def resume(self) -> None:
        """Broadcasts payments that an earlier process stored and perhaps never sent. The first call does it
        automatically. It waits for no confirmation and signs nothing."""
        self._drive(self._driver.begin_resume(), Exchange(None))

    # ---- Performing steps.

    def _call(self, plan: CallPlan) -> CallResponse:
        with within(self._driver.deadline_s), self._stream(plan) as response:
            if response.is_closed:
                return response
            try:
                content = self._read(response, bytes_max=RESPONSE_BYTES_MAX)
                return decode_response(response, content, bytes_max=RESPONSE_BYTES_MAX)
            except (httpx.TransportError, ResponseTooLong) as exc:
                raise build_unreachable(exc, transaction=response.payment.transaction) from exc

    @contextlib.contextmanager
    def _stream(self, plan: CallPlan) -> Iterator[CallResponse]:
        exchange = Exchange(plan)
        try:
            if not self._is_resumed:
                self._is_resumed = True
                self.resume()
            try:
                with within(self._driver.deadline_s):
                    paid = self._drive(self._driver.begin_call(plan), exchange)
            finally:
                self._driver.end_call(plan)
            assert exchange.response is not None
            yield wrap_response(exchange.response, paid, exchange.content)
        except BaseException:
            self._is_resumed = False  # a stored payment may not have been sent
            raise
        finally:
            if exchange.response is not None:
                exchange.response.close()

    def _drive(self, flow: Flow[T], exchange: Exchange) -> T:
        try:
            step = next(flow)
            while True:
                step = flow.send(self._perform(step, exchange))
        except StopIteration as end:
            result: T = end.value
            return result

    def _perform(self, step: Step, exchange: Exchange) -> StepOutcome:
        match step:
            case SendCall():
                return self._send(step, exchange)
            case ControlRequest():
                return self._send_control(step)
            case QueryNode():
                return self._query_node(step)
            case Pause(seconds=seconds):
                time.sleep(seconds)
                return None
            case _:
                return self._driver.perform_local(step, exchange.plan)

    def _send(self, step: SendCall, exchange: Exchange) -> GatewayResponse | NoResponse:
        assert exchange.plan is not None
        if exchange.response is not None:
            exchange.response.close()
        try:
            with within(CALL_DEADLINE_S):
                response = self._http.send(self._driver.build_call(exchange.plan, step), stream=True)
                exchange.response = response
                exchange.content = self._read_problem(response) if is_from_gateway(response) else None
        except (httpx.TransportError, ResponseTooLong) as exc:
            return describe_failure(exc)
        return read_response(step, response, exchange.content)

    def _read(self, response: httpx.Response, *, bytes_max: int) -> bytes:
        if response.is_stream_consumed:  # a transport that reads ahead, such as httpx.MockTransport
            return response.content
        chunks: list[bytes] = []
        size = 0
        try:
            for chunk in response.iter_raw():
                check_deadline()
                size += len(chunk)
                if size > bytes_max:
                    raise ResponseTooLong
                chunks.append(chunk)
        finally:
            response.close()
        return b"".join(chunks)

    def _read_problem(self, response: httpx.Response) -> bytes:
        return decode_problem(response, self._read(response, bytes_max=PROBLEM_BYTES_MAX))

    def _query_node(self, step: QueryNode) -> NodeOutcome:
        request = self._driver.build_node_request(step)
        if isinstance(request, NodeUnavailable):
            return request
        try:
            with within(NODE_DEADLINE_S):
                response = self._http.send(request, stream=True)
                content = self._read(response, bytes_max=NODE_BYTES_MAX)
        except (httpx.TransportError, ResponseTooLong) as exc:
            return describe_node_failure(str(request.url), exc)
        return read_node_response(str(request.url), response.status_code, content)

    def _send_control(self, step: ControlRequest) -> ControlResponse:
        request = self._driver.build_control(step)
        try:
            with within(CONTROL_DEADLINE_S):
                response = self._http.send(request, stream=True)
                content = self._read(response, bytes_max=RESPONSE_BYTES_MAX)
        except (httpx.TransportError, ResponseTooLong) as exc:
            raise build_unreachable(exc, transaction=None) from exc
        etag = response.headers.get("etag")
        return ControlResponse(status=response.status_code, content=content, etag=etag)


class AsyncTollwayClient(PayingClient[httpx.AsyncBaseTransport]):
    """`TollwayClient` for asyncio. Safe to use from many tasks. Close it, or use it in an `async with`. It has the methods of `TollwayClient`;
    those that need the gateway are awaited."""

    call = _calling_async(Driver.plan_call)
    stream = _streaming_async(Driver.plan_call)
    search = _awaited(control.search)
    show = _awaited(control.show)
    describe = _awaited(control.describe)
    facets = _awaited(control.facets)
    stats = _awaited(control.stats)
    networks = _awaited(control.networks)
    status = _awaited(control.status)
    history = _awaited(control.history)
    spending_report = _awaited(control.spending_report)
    sales_report = _awaited(control.sales_report)
    find_call = _awaited(control.find_call)
    receipt = _awaited(control.receipt)
    payment = _awaited(control.payment)
    recorded_payments = _awaited(control.recorded_payments)
    viewers = _awaited(control.viewers)
    show_to = _awaited(control.show_to)
    hide_from = _awaited(control.hide_from)
    decline = _awaited(control.decline)
    webhooks = _awaited(control.webhooks)
    add_webhook = _awaited(control.add_webhook)
    remove_webhook = _awaited(control.remove_webhook)
    deliveries = _awaited(control.deliveries)
    resend = _awaited(control.resend)
    publish = _awaited(control.publish)
    update = _awaited(control.update)
    patch = _awaited(control.patch)
    try_out = _awaited(control.try_out)
    resolve = _awaited(control.resolve)
    retire = _awaited(control.retire)
    ownership = _awaited(control.ownership)
    check_ownership = _awaited(control.check_ownership)
    fetch_document = _awaited(control.fetch_document)
    fetch_agent_document = _awaited(control.fetch_agent_document)
    export_calls = _exporting_async(plan_calls, "export_calls")
    export_payments = _exporting_async(plan_payments, "export_payments")

    def _open(self, transport: httpx.AsyncBaseTransport | None) -> None:
        self._http = httpx.AsyncClient(
            transport=transport or httpx.AsyncHTTPTransport(verify=open_tls(), trust_env=False),
            trust_env=False,
            follow_redirects=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def resume(self) -> None:
        """Broadcasts payments that an earlier process stored and perhaps never sent. The first call does it
        automatically. It waits for no confirmation and signs nothing."""
        flow = await asyncio.to_thread(self._driver.begin_resume)
        await self._drive(flow, Exchange(None))

    # ---- Performing steps.

    async def _call(self, plan: CallPlan) -> CallResponse:
        with within(self._driver.deadline_s):
            return await self._call_whole(plan)

    async def _call_whole(self, plan: CallPlan) -> CallResponse:
        async with self._stream(plan) as response:
            if response.is_closed:
                return response
            try:
                content = await self._read(response, bytes_max=RESPONSE_BYTES_MAX)
                return decode_response(response, content, bytes_max=RESPONSE_BYTES_MAX)
            except (httpx.TransportError, ResponseTooLong) as exc:
                raise build_unreachable(exc, transaction=response.payment.transaction) from exc

    @contextlib.asynccontextmanager
    async def _stream(self, plan: CallPlan) -> AsyncIterator[CallResponse]:
        exchange = Exchange(plan)
        try:
            if not self._is_resumed:
                self._is_resumed = True
                await self.resume()
            try:
                with within(self._driver.deadline_s):
                    paid = await self._drive(self._driver.begin_call(plan), exchange)
            finally:
                self._driver.end_call(plan)
            assert exchange.response is not None
            yield wrap_response(exchange.response, paid, exchange.content)
        except BaseException:
            self._is_resumed = False  # a stored payment may not have been sent
            raise
        finally:
            if exchange.response is not None:
                await exchange.response.aclose()

    async def _drive(self, flow: Flow[T], exchange: Exchange) -> T:
        try:
            step = next(flow)
            while True:
                step = flow.send(await self._perform(step, exchange))
        except StopIteration as end:
            result: T = end.value
            return result

    async def _perform(self, step: Step, exchange: Exchange) -> StepOutcome:
        match step:
            case SendCall():
                return await self._send(step, exchange)
            case ControlRequest():
                return await self._send_control(step)
            case QueryNode():
                return await self._query_node(step)
            case Pause(seconds=seconds):
                await asyncio.sleep(seconds)
                return None
            case _:
                # In a thread, because the store waits for the disk.
                return await asyncio.to_thread(self._driver.perform_local, step, exchange.plan)

    async def _send(self, step: SendCall, exchange: Exchange) -> GatewayResponse | NoResponse:
        assert exchange.plan is not None
        if exchange.response is not None:
            await exchange.response.aclose()
        try:
            with within(CALL_DEADLINE_S):
                async with interrupted():
                    response = await self._http.send(
                        self._driver.build_call(exchange.plan, step), stream=True
                    )
                exchange.response = response
                exchange.content = await self._read_problem(response) if is_from_gateway(response) else None
        except (httpx.TransportError, ResponseTooLong) as exc:
            return describe_failure(exc)
        return read_response(step, response, exchange.content)

    async def _read(self, response: httpx.Response, *, bytes_max: int) -> bytes:
        if response.is_stream_consumed:  # a transport that reads ahead, such as httpx.MockTransport
            return response.content
        chunks: list[bytes] = []
        size = 0
        try:
            async with interrupted():
                async for chunk in response.aiter_raw():
                    size += len(chunk)
                    if size > bytes_max:
                        raise ResponseTooLong
                    chunks.append(chunk)
        finally:
            await response.aclose()
        return b"".join(chunks)

    async def _read_problem(self, response: httpx.Response) -> bytes:
        return decode_problem(response, await self._read(response, bytes_max=PROBLEM_BYTES_MAX))

    async def _query_node(self, step: QueryNode) -> NodeOutcome:
        request = self._driver.build_node_request(step)
        if isinstance(request, NodeUnavailable):
            return request
        try:
            with within(NODE_DEADLINE_S):
                async with interrupted():
                    response = await self._http.send(request, stream=True)
                content = await self._read(response, bytes_max=NODE_BYTES_MAX)
        except (httpx.TransportError, ResponseTooLong) as exc:
            return describe_node_failure(str(request.url), exc)
        return read_node_response(str(request.url), response.status_code, content)

    async def _send_control(self, step: ControlRequest) -> ControlResponse:
        request = self._driver.build_control(step)
        try:
            with within(CONTROL_DEADLINE_S):
                async with interrupted():
                    response = await self._http.send(request, stream=True)
                content = await self._read(response, bytes_max=RESPONSE_BYTES_MAX)
        except (httpx.TransportError, ResponseTooLong) as exc:
            raise build_unreachable(exc, transaction=None) from exc
        etag = response.headers.get("etag")
        return ControlResponse(status=response.status_code, content=content, etag=etag)
