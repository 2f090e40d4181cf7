"""The implementation of `CallIo` for both clients. `Exchange` performs every step of a flow over `Http`, of which there are two: one for `httpx.Client`,
which never suspends, and one for `httpx.AsyncClient`. The flows and this class are the same for both.
"""

import asyncio
import contextlib
import contextvars
import functools
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import httpx

from tollway.client.call_io import (
    AuthorizationState,
    ChannelLease,
    ControlRequest,
    ControlResponse,
    GatewayResponse,
    HeaderPairs,
    NodeOutcome,
    NodeUnavailable,
    NoResponse,
    OverBudget,
    OwnVoucher,
    PaidAlready,
    PaymentProgress,
    PaymentQuote,
    PolicyBinding,
    SignedAuthorization,
    SignedTransfer,
    Stored,
    StoreOutcome,
    Transfer,
    TransferState,
    UnsignedTransfer,
)
from tollway.client.channel_offer import OfferedChannel
from tollway.client.deadline import check_deadline, interrupted, within
from tollway.client.driver import Driver
from tollway.client.errors import CallerFailure
from tollway.client.own_channel import CHANNEL_SALT, OwnChannel, VoucherPlan
from tollway.client.record_reader import read_record
from tollway.client.records import BudgetList, ListingDetails
from tollway.client.requests import CallPlan, GatewayDocument, read_document, show_budgets, show_listing
from tollway.client.responses import (
    PROBLEM_BYTES_MAX,
    ResponseTooLong,
    build_unreachable,
    decode_problem,
    describe_failure,
    describe_node_failure,
    is_from_gateway,
    parse_response,
    read_node_response,
    read_response,
)
from tollway.client.wallet import Wallet
from tollway.client.x402 import X402Offer
from tollway.ids import Address, ChainId, TxHash
from tollway.money import Asset
from tollway.payments.channels import channel_id
from tollway.spending_policy import name_targets

P = ParamSpec("P")
T = TypeVar("T")

RESPONSE_BYTES_MAX = 64 * 1024 * 1024
NODE_BYTES_MAX = 1024 * 1024
"""The largest response of a node is a transaction receipt."""
CALL_DEADLINE_S = 420.0
"""One exchange of a call, to the end of a problem or to the head of another response: a provider may take 300 s."""
CONTROL_DEADLINE_S = 60.0
POLICY_DEADLINE_S = 5.0
"""What a gateway has to say what the owner of the wallet allows; then the call pays, and its claim decides."""
NODE_DEADLINE_S = 20.0


DEPOSIT_MARGIN_S = 10
"""A deposit in flight is not sent again so shortly before its end: it must be mined before it."""


class BlockingHttp:
    """The operations in which the clients differ, for the synchronous one: each blocks in place of suspending."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Sends a request, up to the head of its response."""
        return self._client.send(request, stream=True)

    async def read(self, response: httpx.Response, *, bytes_max: int) -> bytes:
        """Reads the raw body, and closes the response. Raises `ResponseTooLong`."""
        if response.is_stream_consumed:  # a transport that reads ahead, such as httpx.MockTransport
            return response.content
        body = bytearray()
        try:
            for chunk in response.iter_raw():
                check_deadline()
                _add_bounded(body, chunk, bytes_max)
        finally:
            response.close()
        return bytes(body)

    async def close(self, response: httpx.Response) -> None:
        response.close()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this client has no event loop

    async def run(self, work: Callable[[], T]) -> T:
        """Runs work that may wait for the disk."""
        return work()

    async def call_back(self, callback: Callable[[], T]) -> T:
        """Runs a function of the caller, which may wait for a person."""
        return callback()


class AsyncHttp:
    """As `BlockingHttp`, for the asynchronous client: suspends for the event loop, which ends each operation at its deadline."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def send(self, request: httpx.Request) -> httpx.Response:
        async with interrupted():
            return await self._client.send(request, stream=True)

    async def read(self, response: httpx.Response, *, bytes_max: int) -> bytes:
        if response.is_stream_consumed:  # see BlockingHttp
            return response.content
        body = bytearray()
        try:
            async with interrupted():
                async for chunk in response.aiter_raw():
                    _add_bounded(body, chunk, bytes_max)
        finally:
            await response.aclose()
        return bytes(body)

    async def close(self, response: httpx.Response) -> None:
        await response.aclose()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def run(self, work: Callable[[], T]) -> T:
        """A thread cannot be cancelled: the work stores and reserves payments after its call has been cancelled. So a cancelled call ends after its
        work, and then gives back what the work reserved."""
        context = contextvars.copy_context()
        done = asyncio.get_running_loop().run_in_executor(None, lambda: context.run(work))
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            while not done.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([done])
            done.exception()
            raise

    async def call_back(self, callback: Callable[[], T]) -> T:
        """A cancelled call does not wait for its end: a function of the caller reserves nothing."""
        return await asyncio.to_thread(callback)


Http = BlockingHttp | AsyncHttp


def _add_bounded(body: bytearray, chunk: bytes, bytes_max: int) -> None:
    body += chunk
    if len(body) > bytes_max:
        raise ResponseTooLong


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine over `BlockingHttp` to its end. Raises RuntimeError where it suspends, because nothing would resume it."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine of the synchronous client has suspended")


class StepFailed(BaseException):
    """Carries an exception of the wallet, the store or the caller's own function past the `except` clauses of a flow: no flow handles it, and it
    ends the call as it is."""

    def __init__(self, failure: Exception) -> None:
        super().__init__()
        self.failure = failure


async def perform(flow: Coroutine[Any, Any, T]) -> T:
    """Runs a flow. Raises what the flow raises, and the exception of a step as it is."""
    try:
        return await flow
    except StepFailed as failed:
        failure = failed.failure
    try:
        raise failure
    finally:
        del failure  # its traceback has this frame


Step = Callable[Concatenate["Exchange", P], T]
AwaitedStep = Callable[Concatenate["Exchange", P], Coroutine[Any, Any, T]]


def local(step: Step[P, T]) -> AwaitedStep[P, T]:
    """Makes a step of work that needs no network and may wait for the disk."""
    return _make_step(step, lambda http: http.run)


def callback(step: Step[P, T]) -> AwaitedStep[P, T]:
    """Makes a step of a function of the caller, which changes nothing of the client."""
    return _make_step(step, lambda http: http.call_back)


def _make_step(
    step: Step[P, T], find_operation: Callable[[Http], Callable[[Callable[[], T]], Coroutine[Any, Any, T]]]
) -> AwaitedStep[P, T]:
    @functools.wraps(step)
    async def run(exchange: "Exchange", /, *args: P.args, **options: P.kwargs) -> T:
        try:
            return await find_operation(exchange.http)(functools.partial(step, exchange, *args, **options))
        except Exception as exc:
            raise StepFailed(exc) from exc

    return run


class Exchange:
    """The steps of one call, of one request to the control plane, or of a resumption. `plan`: the call. `response`: the last response of the gateway to
    it, and `content` its body where that has been read."""

    def __init__(self, driver: Driver, http: Http, plan: CallPlan | None = None) -> None:
        self.http = http
        self.response: httpx.Response | None = None
        self.content: bytes | None = None
        self._driver = driver
        self._plan = plan

    @property
    def plan(self) -> CallPlan:
        assert self._plan is not None, "only a call has this step"
        return self._plan

    @property
    def wallet(self) -> Wallet:
        assert self._driver.wallet is not None, "a flow without a wallet does not sign or store"
        return self._driver.wallet

    async def close(self) -> None:
        """Closes the response of the call."""
        if self.response is not None:
            await self.http.close(self.response)

    # ---- The network.

    async def send_call(
        self, headers: HeaderPairs = (), *, method: str | None = None
    ) -> GatewayResponse | NoResponse:
        return await self._send(headers, method, lambda head, content: read_response(headers, head, content))

    async def send_refund(self, proof: str | None) -> GatewayResponse | NoResponse:
        """See `ChannelIo`. The plan is that of the refund URL, whose responses name no payment state."""
        headers: HeaderPairs = () if proof is None else (("PAYMENT-SIGNATURE", proof),)
        return await self._send(headers, None, parse_response)

    async def _send(
        self,
        headers: HeaderPairs,
        method: str | None,
        read: Callable[[httpx.Response, bytes | None], GatewayResponse | NoResponse],
    ) -> GatewayResponse | NoResponse:
        await self.close()
        try:
            with within(CALL_DEADLINE_S):
                request = self._driver.build_call(self.plan, headers, method)
                self.response = response = await self.http.send(request)
                self.content = None
                if is_from_gateway(response):
                    content = await self.http.read(response, bytes_max=PROBLEM_BYTES_MAX)
                    self.content = decode_problem(response, content)
        except (httpx.TransportError, ResponseTooLong) as exc:
            return describe_failure(exc)
        return read(response, self.content)

    async def query_node(self, chain_id: ChainId, method: str, *params: object) -> NodeOutcome:
        request = self._driver.build_node_request(chain_id, method, params)
        if isinstance(request, NodeUnavailable):
            return request
        try:
            with within(NODE_DEADLINE_S):
                response = await self.http.send(request)
                content = await self.http.read(response, bytes_max=NODE_BYTES_MAX)
        except (httpx.TransportError, ResponseTooLong) as exc:
            return describe_node_failure(str(request.url), exc)
        return read_node_response(str(request.url), response.status_code, content)

    async def send_control(
        self, control_request: ControlRequest, *, deadline_s: float = CONTROL_DEADLINE_S
    ) -> ControlResponse:
        request = self._driver.build_control(control_request)
        try:
            with within(deadline_s):
                response = await self.http.send(request)
                content = await self.http.read(response, bytes_max=RESPONSE_BYTES_MAX)
        except (httpx.TransportError, ResponseTooLong) as exc:
            raise build_unreachable(exc, transaction=None) from exc
        etag = response.headers.get("etag")
        return ControlResponse(status=response.status_code, content=content, etag=etag)

    async def fetch_binding(self) -> PolicyBinding | None:
        """A second request reads the names of the listing, where the policy has lists of them."""
        try:
            found = read_record(BudgetList, await self._fetch(show_budgets(str(self.wallet.address)))).bound
        except CallerFailure:
            return None
        if found is None or found.policy is None or not (found.policy.allow or found.policy.deny):
            return None if found is None else PolicyBinding(budget=found)
        try:
            listing = read_record(ListingDetails, await self._fetch(show_listing(self.plan.api_id)))
        except CallerFailure:
            return PolicyBinding(budget=found)
        targets = name_targets(self.plan.api_id, listing.provider, listing.tags)
        return PolicyBinding(budget=found, targets=targets)

    async def _fetch(self, control_request: ControlRequest) -> GatewayDocument:
        """A document on the way to a payment, which does not wait for it long."""
        response = await self.send_control(control_request, deadline_s=POLICY_DEADLINE_S)
        return read_document(control_request, response.status, response.content)

    async def sleep(self, seconds: float) -> None:
        await self.http.sleep(seconds)

    # ---- The caller and the wallet.

    @callback
    def report_progress(self, progress: PaymentProgress) -> None:
        self._driver.on_progress(progress)

    @callback
    def approve_payment(self, quote: PaymentQuote) -> OverBudget | None:
        driver = self._driver
        over = driver.session.find_quote_excess(quote) or driver.store.find_excess(
            quote, payer=self.wallet.address, gateway=driver.gateway, budget=driver.budget
        )
        if over is None:
            driver.before_signing(quote)
        return over

    @local
    def sign_call(self, transfer: Transfer) -> HeaderPairs:
        driver, plan = self._driver, self.plan
        return self.wallet.sign_call(
            chain_id=transfer.chain_id,
            tx_hash=transfer.tx_hash,
            gateway=driver.gateway,
            api_id=plan.api_id,
            method=plan.method,
            target=plan.target,
            body=plan.body,
            now_s=driver.now_ms() // 1000,
            nonce=driver.entropy(32),
        )

    @local
    def sign_request(self) -> HeaderPairs:
        return self._driver.sign_free_call(self.plan)

    @local
    def end_free_calls(self, per_s: int | None) -> None:
        self._driver.end_free_calls(self.plan, per_s)

    @local
    def sign_transfer(self, unsigned: UnsignedTransfer) -> SignedTransfer:
        return self.wallet.sign_transfer(unsigned)

    @local
    def sign_authorization(self, offer: X402Offer, asset: Asset) -> SignedAuthorization:
        driver = self._driver
        return self.wallet.sign_authorization(
            offer, asset, gateway=driver.gateway, now_s=driver.now_ms() // 1000, nonce=driver.entropy(32)
        )

    # ---- The store. Only the call that stored a payment reserves it: two concurrent calls can sign the same transaction.

    @local
    def find_payments(self, payees: tuple[Address, ...] = ()) -> tuple[Transfer, ...]:
        driver, plan, payer = self._driver, self.plan, self.wallet.address
        with driver.reservation_lock:
            # Before the read of the store: a call that ends in between has stored what is left.
            others = driver.reserved_by_others(plan)
            known = driver.store.find_payments(
                payer=payer, gateway=driver.gateway, api_id=plan.api_id, payees=payees
            )
            if plan.idempotency_key in driver.repeated_keys and not payees:
                # The payment of the earlier run may be spent, and its response still be stored. The key finds it, and any
                # payment of this wallet that counts there proves the payer. It comes first, so that nothing is paid again.
                exhausted = driver.store.find_last_exhausted(
                    payer=payer, gateway=driver.gateway, api_id=plan.api_id
                )
                known = (*exhausted, *known)
        return tuple(transfer for transfer in known if transfer.tx_hash not in others)

    @local
    def find_next_nonce(self, chain_id: ChainId, pending: int) -> int:
        return self._driver.store.next_nonce(payer=self.wallet.address, chain_id=chain_id, pending=pending)

    @local
    def find_unsent_transfers(self, chain_id: ChainId) -> tuple[Transfer, ...]:
        unresolved = self._driver.store.unresolved(self.wallet.address)
        return tuple(transfer for transfer in unresolved if transfer.chain_id == chain_id)

    @local
    def store_transfer(
        self, transfer: Transfer, price: int, tried: frozenset[TxHash] = frozenset()
    ) -> StoreOutcome:
        driver, plan, tx_hash = self._driver, self.plan, transfer.tx_hash
        with driver.reservation_lock:
            others = driver.reserved_by_others(plan)
            outcome = driver.session.store(
                tx_hash,
                transfer.asset,
                transfer.amount,
                store=lambda: driver.store.store(transfer, budget=driver.budget, price=price, tried=tried),
            )
            if isinstance(outcome, Stored) and plan.rules.prepay == 1:
                driver.reserved_by[tx_hash] = plan
        if isinstance(outcome, PaidAlready):
            return replace(outcome, is_reserved=outcome.transfer.tx_hash in others)
        return outcome

    @local
    def record_transfer_state(
        self, tx_hash: TxHash, state: TransferState, rest: int | None = None, *, is_served: bool = False
    ) -> None:
        self._driver.store.record_state(tx_hash, state, rest, is_served=is_served)

    @local
    def count_served_calls(self, tx_hash: TxHash) -> int:
        return self._driver.store.count_served(tx_hash)

    @local
    def lease_authorization(self) -> SignedAuthorization | OwnChannel | None:
        driver, plan = self._driver, self.plan
        with driver.reservation_lock:
            found = driver.store.lease_authorization(
                payer=self.wallet.address,
                request=plan.digest(driver.gateway),
                left=tuple(driver.left_open),
            )
            if isinstance(found, OwnChannel):
                return driver.lease_pending(found.id, plan)
            if found is not None:
                driver.left_open.discard(found.nonce)
                driver.submitted[found.nonce] = plan
        return found

    @local
    def find_lapsed_authorizations(self, nonce: bytes | None = None) -> tuple[SignedAuthorization, ...]:
        return self._driver.store.find_lapsed_authorizations(
            payer=self.wallet.address, chains=self._driver.rpc_urls, nonce=nonce
        )

    @local
    def store_authorization(self, authorization: SignedAuthorization) -> StoreOutcome:
        driver, request = self._driver, self.plan.digest(self._driver.gateway)
        driver.submitted[authorization.nonce] = self.plan
        return driver.session.store(
            authorization.nonce,
            authorization.asset,
            authorization.amount,
            store=lambda: driver.store.store_authorization(
                authorization, request=request, budget=driver.budget
            ),
        )

    @local
    def record_authorization_state(
        self,
        nonce: bytes,
        state: AuthorizationState,
        tx_hash: TxHash | None = None,
        *,
        is_sent_again: bool = False,
    ) -> None:
        driver = self._driver
        is_recorded = driver.store.record_authorization(nonce, state, tx_hash, is_sent_again=is_sent_again)
        driver.submitted.pop(nonce, None)
        if is_recorded and state is AuthorizationState.UNSENT:
            driver.session.release(nonce)

    # ---- Channels.

    @local
    def count_calls(self, pay_to: Address) -> int:
        return self._driver.store.count_calls(self.wallet.address, pay_to)

    @local
    def lease_channel(self, offer: OfferedChannel, asset: Asset) -> ChannelLease | None:
        config = offer.build_config(self.wallet.address, CHANNEL_SALT)
        key = channel_id(config, offer.terms.chain_id)
        driver, plan = self._driver, self.plan
        if not driver.lock_channel(key, plan):
            return None
        found = driver.store.find_channel(key)
        if found is None:
            fresh = OwnChannel(id=key, config=config, asset=asset, gateway=driver.gateway)
            return ChannelLease(channel=fresh, is_uncertain=True)
        request, held = plan.digest(driver.gateway), found.deposit
        is_lapsed = held is not None and held.valid_before < driver.now_ms() // 1000 + DEPOSIT_MARGIN_S
        return ChannelLease(
            channel=replace(found, deposit=None) if is_lapsed else found,
            is_own_request=found.pending is not None and found.pending.request == request,
            is_uncertain=not found.is_certain,
        )

    @local
    def sign_voucher(self, offer: OfferedChannel, channel: OwnChannel, plan: VoucherPlan) -> OwnVoucher:
        driver = self._driver
        return self.wallet.sign_voucher(
            offer,
            channel,
            plan,
            request=self.plan.digest(driver.gateway),
            now_s=driver.now_ms() // 1000,
            salt=driver.entropy(32),
        )

    @local
    def sign_refund(self, offer: OfferedChannel, channel: OwnChannel) -> str:
        return self.wallet.sign_refund(offer, channel)

    @local
    def store_voucher(self, voucher: OwnVoucher) -> StoreOutcome:
        driver, deposit = self._driver, voucher.deposit
        request = self.plan.digest(driver.gateway)

        def store() -> StoreOutcome:
            return driver.store.store_voucher(voucher.channel, deposit, request=request, budget=driver.budget)

        return driver.session.store_voucher(voucher, store=store)

    @local
    def drop_voucher(self, voucher: OwnVoucher) -> None:
        driver, deposit = self._driver, voucher.deposit
        channel = replace(voucher.channel, pending=None)
        if deposit is None:
            driver.store.record_channel(channel)
            return
        unsent = replace(channel, deposit=None)
        driver.store.record_channel(unsent, deposit=deposit.nonce, state=AuthorizationState.UNSENT)
        driver.session.release_deposit(unsent, deposit.amount)

    @local
    def record_channel(
        self,
        channel: OwnChannel,
        *,
        deposit: bytes | None = None,
        tx_hash: TxHash | None = None,
    ) -> None:
        self._driver.store.record_channel(channel, deposit=deposit, tx_hash=tx_hash)
