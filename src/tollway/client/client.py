"""The two clients, synchronous and asynchronous. Thin twins: they carry out the steps of the payer's flow, one with
`httpx.Client`, one with `httpx.AsyncClient`. Every decision is made in the modules beside this one.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self, TypeVar, Unpack

import httpx

from tollway.client import control
from tollway.client.call_plan import CallOptions
from tollway.client.control import ControlRequest, GatewayDocument
from tollway.client.control_plane import AsyncControlPlane, ControlPlane
from tollway.client.deadline import check_deadline, interrupted, open_transport, within
from tollway.client.desk import (
    CALL_DEADLINE_S,
    CONTROL_DEADLINE_S,
    NODE_BYTES_MAX,
    NODE_DEADLINE_S,
    RESPONSE_BYTES_MAX,
    ClientOptions,
    Exchange,
)
from tollway.client.own_books import LocalOperations
from tollway.client.reply import (
    CallResponse,
    ResponseTooLong,
    build_unreachable,
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
    Step,
    StepOutcome,
)
from tollway.client.whole_answer import PROBLEM_BYTES_MAX, decode_problem, decode_response

T = TypeVar("T")


class TollwayClient(LocalOperations, ControlPlane):
    """Calls and pays. Safe to use from many threads; close it, or use it in a `with`."""

    def __init__(
        self,
        gateway_url: str,
        *,
        transport: httpx.BaseTransport | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(gateway_url, options)
        # No environment: a netrc entry would put an Authorization header on every call.
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
        """Calls a listing and pays for it when it has to. The answer is read whole; its status is not judged.

        Raises a `CallerFailure` (`client/failures.py`) when money stands in the way.
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
        """As `call`, for an answer that is read while it comes: `with client.stream(…) as response`."""
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
            self._is_resumed = False  # it may have left a payment on disk that nobody has sent
            raise
        finally:
            if exchange.response is not None:
                exchange.response.close()

    def resume(self) -> None:
        """Broadcasts payments that an earlier process stored and perhaps never sent. Done by itself before the first
        call; waits for nothing and signs nothing."""
        self._drive(self._driver.begin_resume(), Exchange(None))

    # ---- Carrying out steps.

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
        return control.read_document(control_request, response.status_code, content)


class AsyncTollwayClient(LocalOperations, AsyncControlPlane):
    """`TollwayClient` for asyncio. Safe to use from many tasks; close it, or use it in an `async with`."""

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
            self._is_resumed = False  # it may have left a payment on disk that nobody has sent
            raise
        finally:
            if exchange.response is not None:
                await exchange.response.aclose()

    async def resume(self) -> None:
        """See `TollwayClient.resume`."""
        flow = await asyncio.to_thread(self._driver.begin_resume)
        await self._drive(flow, Exchange(None))

    # ---- Carrying out steps.

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
                # The store waits for the disk; a loop must not.
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
        return control.read_document(control_request, response.status_code, content)
