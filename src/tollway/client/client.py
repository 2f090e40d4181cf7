"""The synchronous and the asynchronous client: they perform the steps of the flow, with `httpx.Client` and `httpx.AsyncClient`, and
send the requests of the control plane. The other modules of this package make every decision.
"""

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Self, TypeVar, Unpack

import httpx

from tollway.client import requests
from tollway.client.deadline import check_deadline, interrupted, open_transport, within
from tollway.client.driver import (
    CALL_DEADLINE_S,
    CONTROL_DEADLINE_S,
    NODE_BYTES_MAX,
    NODE_DEADLINE_S,
    RESPONSE_BYTES_MAX,
    ClientOptions,
    Driver,
    Exchange,
)
from tollway.client.errors import GatewayRefused
from tollway.client.quote import Cap
from tollway.client.requests import CallOptions, ControlRequest, GatewayDocument
from tollway.client.responses import (
    PROBLEM_BYTES_MAX,
    CallResponse,
    ResponseTooLong,
    build_unreachable,
    decode_problem,
    decode_response,
    describe_failure,
    is_from_gateway,
    read_node_response,
    read_response,
    wrap_response,
)
from tollway.client.steps import (
    Flow,
    GatewayResponse,
    NodeOutcome,
    NodeUnavailable,
    NoResponse,
    Pause,
    QueryNode,
    SendCall,
    SignedAuthorization,
    Step,
    StepOutcome,
    Transfer,
)
from tollway.ids import Address, TxHash


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The limits of spending: per call, per network fee of a payment, per wallet in total, and per client. None: not set; for fees
    the presets then apply (`client/fee_limit.py`)."""

    max_price: Cap
    max_fee: Cap | None
    budget: Cap | None
    session_budget: Cap | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """The amounts spent, by currency, in 10^-18: by this wallet in total, and signed by this client."""

    total: Mapping[str, int]
    session: Mapping[str, int]


class LocalOperations:
    """The operations of both clients that need no network."""

    def __init__(self, gateway_url: str, options: ClientOptions) -> None:
        self._driver = Driver(gateway_url, options)
        self._is_resumed = False

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
        return Spending(total=MappingProxyType(total), session=MappingProxyType(dict(driver.session.spent())))

    def keep_key(self, api_id: str, path: str = "", **options: Unpack[CallOptions]) -> str | None:
        """The idempotency key for this request: the same key for the same request until `drop_key`, also after
        a crash. None without a wallet, which pays nothing."""
        driver = self._driver
        if driver.wallet is None:
            return None
        return driver.keep_key(driver.wallet.address, driver.plan_call(api_id, path, options))

    def drop_key(self, key: str, api_id: str, path: str = "", **options: Unpack[CallOptions]) -> None:
        """Drops the key of a request whose response was delivered: the same request is then another call."""
        driver = self._driver
        if driver.wallet is not None:
            driver.drop_key(driver.wallet.address, driver.plan_call(api_id, path, options), key)


class ControlPlane(ABC):
    """The requests of the control plane. Every method raises `GatewayRefused` and `GatewayUnreachable`; one that needs a signature
    raises `CannotPay` without a wallet."""

    @abstractmethod
    def _request(self, control_request: ControlRequest) -> GatewayDocument: ...

    def publish(self, draft: Mapping[str, object], *, dry_run: bool = False) -> GatewayDocument:
        """Creates a listing; returns it with its `id`."""
        return self._request(requests.publish_listing(draft, dry_run=dry_run))

    def update(self, api_id: str, draft: Mapping[str, object], *, etag: str | None = None) -> GatewayDocument:
        """Replaces a listing of this wallet."""
        return self._request(requests.update_listing(api_id, draft, etag=etag))

    def retire(self, api_id: str) -> None:
        """Retires a listing permanently."""
        self._request(requests.retire_listing(api_id))

    def ownership(self, api_id: str) -> GatewayDocument:
        """How the provider can prove the ownership of a listing's endpoint, and whether it is proved."""
        return self._request(requests.show_ownership(api_id))

    def check_ownership(self, api_id: str) -> GatewayDocument:
        """Requests a check of the ownership now; only for the provider of the listing."""
        return self._request(requests.check_ownership(api_id))

    def list(self, **query: object) -> GatewayDocument:
        """A page of the registry; the parameters are those of `GET /apis`."""
        return self._request(requests.list_apis(query))

    def show(self, api_id: str) -> GatewayDocument:
        """The details of a listing."""
        return self._request(requests.show_listing(api_id))

    def history(self, **query: object) -> GatewayDocument:
        """A page of this wallet's calls; the parameters are those of `GET /history`."""
        return self._request(requests.list_calls(query))

    def find_call(self, call_id: str) -> GatewayDocument:
        """One call of this wallet."""
        return self._request(requests.find_call(call_id))

    def payment(self, transaction: str) -> GatewayDocument:
        """The state of a payment in the gateway's ledger."""
        return self._request(requests.find_payment(transaction))

    def search(self, words: str | None = None, **query: object) -> GatewayDocument:
        """A page of listings, by relevance where `words` are given; each item then names the fields that
        matched (`match`). `query`: the parameters of `GET /apis`."""
        return self._request(requests.search_apis(words, query))

    def describe(self, api_id: str) -> GatewayDocument:
        """The agent document of a listing: its purpose, operations, payment, quality and ownership. The details where
        the gateway has no such document."""
        try:
            return self._request(requests.describe_listing(api_id))
        except GatewayRefused as refusal:
            if not requests.lacks_document(refusal):
                raise
            return self._request(requests.show_listing(api_id))


class AsyncControlPlane(ABC):
    """The requests of the control plane for asyncio; see `ControlPlane`."""

    @abstractmethod
    async def _request(self, control_request: ControlRequest) -> GatewayDocument: ...

    async def publish(self, draft: Mapping[str, object], *, dry_run: bool = False) -> GatewayDocument:
        return await self._request(requests.publish_listing(draft, dry_run=dry_run))

    async def update(
        self, api_id: str, draft: Mapping[str, object], *, etag: str | None = None
    ) -> GatewayDocument:
        return await self._request(requests.update_listing(api_id, draft, etag=etag))

    async def retire(self, api_id: str) -> None:
        await self._request(requests.retire_listing(api_id))

    async def ownership(self, api_id: str) -> GatewayDocument:
        return await self._request(requests.show_ownership(api_id))

    async def check_ownership(self, api_id: str) -> GatewayDocument:
        return await self._request(requests.check_ownership(api_id))

    async def list(self, **query: object) -> GatewayDocument:
        return await self._request(requests.list_apis(query))

    async def show(self, api_id: str) -> GatewayDocument:
        return await self._request(requests.show_listing(api_id))

    async def history(self, **query: object) -> GatewayDocument:
        return await self._request(requests.list_calls(query))

    async def find_call(self, call_id: str) -> GatewayDocument:
        return await self._request(requests.find_call(call_id))

    async def payment(self, transaction: str) -> GatewayDocument:
        return await self._request(requests.find_payment(transaction))

    async def search(self, words: str | None = None, **query: object) -> GatewayDocument:
        return await self._request(requests.search_apis(words, query))

    async def describe(self, api_id: str) -> GatewayDocument:
        try:
            return await self._request(requests.describe_listing(api_id))
        except GatewayRefused as refusal:
            if not requests.lacks_document(refusal):
                raise
            return await self._request(requests.show_listing(api_id))


T = TypeVar("T")


class TollwayClient(LocalOperations, ControlPlane):
    """The synchronous client. Safe to use from many threads. Close it, or use it in a `with`."""

    def __init__(
        self,
        gateway_url: str,
        *,
        transport: httpx.BaseTransport | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(gateway_url, options)
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
        self._http.close()

    def call(self, api_id: str, path: str = "", **options: Unpack[CallOptions]) -> CallResponse:
        """Calls a listing, and pays where that is required. Reads the whole response, of any status.

        Raises a `CallerFailure` (`client/errors.py`) where the call cannot be paid or its outcome is unknown.
        """
        with within(self._driver.deadline_s), self.stream(api_id, path, **options) as response:
            if response.is_closed:
                return response
            try:
                content = self._read(response, bytes_max=RESPONSE_BYTES_MAX)
                return decode_response(response, content, bytes_max=RESPONSE_BYTES_MAX)
            except (httpx.TransportError, ResponseTooLong) as exc:
                raise build_unreachable(exc, transaction=response.payment.transaction) from exc

    @contextlib.contextmanager
    def stream(self, api_id: str, path: str = "", **options: Unpack[CallOptions]) -> Iterator[CallResponse]:
        """As `call`, with a streamed response: `with client.stream(…) as response`."""
        exchange = Exchange(self._driver.plan_call(api_id, path, options))
        assert exchange.plan is not None
        try:
            if not self._is_resumed:
                self._is_resumed = True
                self.resume()
            try:
                with within(self._driver.deadline_s):
                    paid = self._drive(self._driver.begin_call(exchange.plan), exchange)
            finally:
                self._driver.end_call(exchange.plan)
            assert exchange.response is not None
            yield wrap_response(exchange.response, paid, exchange.content)
        except BaseException:
            self._is_resumed = False  # a stored payment may not have been sent
            raise
        finally:
            if exchange.response is not None:
                exchange.response.close()

    def resume(self) -> None:
        """Broadcasts payments that an earlier process stored and perhaps never sent. The first call does it
        automatically. It waits for no confirmation and signs nothing."""
        self._drive(self._driver.begin_resume(), Exchange(None))

    # ---- Performing steps.

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
        return read_response(response, exchange.content)

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
            return NodeUnavailable(detail=type(exc).__name__)
        return read_node_response(response.status_code, content)

    def _request(self, control_request: ControlRequest) -> GatewayDocument:
        request = self._driver.build_control(control_request)
        try:
            with within(CONTROL_DEADLINE_S):
                response = self._http.send(request, stream=True)
                content = self._read(response, bytes_max=RESPONSE_BYTES_MAX)
        except (httpx.TransportError, ResponseTooLong) as exc:
            raise build_unreachable(exc, transaction=None) from exc
        return requests.read_document(control_request, response.status_code, content)


class AsyncTollwayClient(LocalOperations, AsyncControlPlane):
    """`TollwayClient` for asyncio. Safe to use from many tasks. Close it, or use it in an `async with`."""

    def __init__(
        self,
        gateway_url: str,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(gateway_url, options)
        self._http = httpx.AsyncClient(transport=transport, trust_env=False, follow_redirects=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def call(self, api_id: str, path: str = "", **options: Unpack[CallOptions]) -> CallResponse:
        """See `TollwayClient.call`."""
        with within(self._driver.deadline_s):
            return await self._call(api_id, path, options)

    async def _call(self, api_id: str, path: str, options: CallOptions) -> CallResponse:
        async with self.stream(api_id, path, **options) as response:
            if response.is_closed:
                return response
            try:
                content = await self._read(response, bytes_max=RESPONSE_BYTES_MAX)
                return decode_response(response, content, bytes_max=RESPONSE_BYTES_MAX)
            except (httpx.TransportError, ResponseTooLong) as exc:
                raise build_unreachable(exc, transaction=response.payment.transaction) from exc

    @contextlib.asynccontextmanager
    async def stream(
        self, api_id: str, path: str = "", **options: Unpack[CallOptions]
    ) -> AsyncIterator[CallResponse]:
        """See `TollwayClient.stream`."""
        exchange = Exchange(self._driver.plan_call(api_id, path, options))
        assert exchange.plan is not None
        try:
            if not self._is_resumed:
                self._is_resumed = True
                await self.resume()
            try:
                with within(self._driver.deadline_s):
                    paid = await self._drive(self._driver.begin_call(exchange.plan), exchange)
            finally:
                self._driver.end_call(exchange.plan)
            assert exchange.response is not None
            yield wrap_response(exchange.response, paid, exchange.content)
        except BaseException:
            self._is_resumed = False  # a stored payment may not have been sent
            raise
        finally:
            if exchange.response is not None:
                await exchange.response.aclose()

    async def resume(self) -> None:
        """See `TollwayClient.resume`."""
        flow = await asyncio.to_thread(self._driver.begin_resume)
        await self._drive(flow, Exchange(None))

    # ---- Performing steps.

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
        return read_response(response, exchange.content)

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
            return NodeUnavailable(detail=type(exc).__name__)
        return read_node_response(response.status_code, content)

    async def _request(self, control_request: ControlRequest) -> GatewayDocument:
        request = self._driver.build_control(control_request)
        try:
            with within(CONTROL_DEADLINE_S):
                async with interrupted():
                    response = await self._http.send(request, stream=True)
                content = await self._read(response, bytes_max=RESPONSE_BYTES_MAX)
        except (httpx.TransportError, ResponseTooLong) as exc:
            raise build_unreachable(exc, transaction=None) from exc
        return requests.read_document(control_request, response.status_code, content)
