"""Parses responses of the gateway and of nodes: builds the outcomes of steps, and the response that the caller gets.

The client requests no content coding. Where a whole response has one all the same, gzip and deflate are decoded up to
a maximum. A body with another coding, or one that does not match its coding, stays undecoded, because it is paid for.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import httpx
from pydantic_core import from_json

from tollway.body_text import CHARSETS, Undecoded, decode_body
from tollway.client.call_io import (
    PAYMENT_STATES,
    PRICE_MAX_HEADER,
    PROOF_HEADERS,
    GatewayResponse,
    HeaderPairs,
    NodeError,
    NodeOutcome,
    NodeResult,
    NodeUnavailable,
    NoResponse,
)
from tollway.client.errors import GatewayProblem, GatewayUnreachable, ResponseUnreadable
from tollway.client.fee_limit import format_fee
from tollway.client.response_rules import CallResult
from tollway.client.x402 import SettlementReceipt, read_receipt
from tollway.ids import TxHash

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentInfo:
    """The payment of a call by the headers of its response. `state`: none, charged, released or held. A call whose response names no state has
    none: its request carried no payment (`read_response`).

    `price`: what the call cost, such as `0.01 USDC`. None for a metered call whose response is not measured yet, or which cost nothing: then `price_max` is
    its maximum. `find_call(call_id)` gives the price once the body has ended.
    `rail`: `tx` (a payment's first call), `credit` (a later one), `x402`, `channel`, or None.
    `channel`: the id of the channel that paid; `transaction` is then that of a deposit.
    `fee_max`: the maximum network fee of a new transaction.
    `transaction`: the one that paid, where it is known. `receipt`: the gateway's `PAYMENT-RESPONSE`.
    """

    state: str
    price: str | None
    credit_remaining: str | None
    call_id: str | None
    transaction: str | None
    network: str | None
    rail: str | None = None
    receipt: SettlementReceipt | None = None
    fee_max: str | None = None
    price_max: str | None = None
    channel: str | None = None


class CallResponse(httpx.Response):
    """The response to a call: an httpx response with its `payment`. Its `text` never fails: a charset that is not in `CHARSETS`
    counts as UTF-8, and invalid bytes become U+FFFD."""

    payment: PaymentInfo

    @property
    def problem(self) -> GatewayProblem | None:
        """The gateway's own refusal; None for every response of the provider. The body must have been read, as after `call`."""
        if not is_from_gateway(self):
            return None
        try:
            document = read_json(self.content)
        except ValueError:
            document = None
        return GatewayProblem.read(self.status_code, document if isinstance(document, dict) else {})

    @property
    def charset_encoding(self) -> str | None:
        """The charset of `Content-Type`, where it is in `CHARSETS`."""
        named = super().charset_encoding
        return named if named is not None and named.strip().lower() in CHARSETS else None

    def iter_bytes(self, chunk_size: int | None = None) -> Iterator[bytes]:
        """As httpx, but raises `ResponseUnreadable` for a body that does not match its content coding."""
        with _translated_decoding():
            yield from super().iter_bytes(chunk_size)

    async def aiter_bytes(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:
        """See `iter_bytes`."""
        with _translated_decoding():
            async for chunk in super().aiter_bytes(chunk_size):
                yield chunk


@contextlib.contextmanager
def _translated_decoding() -> Iterator[None]:
    try:
        yield
    except httpx.DecodingError as exc:
        raise ResponseUnreadable(
            "The body of the response does not match its Content-Encoding. Use iter_raw to read its bytes."
        ) from exc


def is_from_gateway(response: httpx.Response) -> bool:
    """Whether the response is the gateway's own problem. A response of the upstream has `received-status` (RFC 9209 §2.4) in a header
    that only the gateway can write: a provider's response must never make a caller pay."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/problem+json" and "received-status" not in response.headers.get(
        "proxy-status", ""
    )


def is_retryable_response(response: httpx.Response) -> bool:
    """Whether the same request can succeed later, without another payment: by the gateway's own problem, or by the status
    of a proxy before the gateway. A response of the provider is final. The body must have been read."""
    if is_from_gateway(response):
        try:
            problem = from_json(response.content)
        except ValueError:
            return False
        return isinstance(problem, dict) and problem.get("retryable") is True
    is_relayed = "received-status" in response.headers.get("proxy-status", "")
    return not is_relayed and response.status_code in (429, 503)


def read_response(
    sent: HeaderPairs, response: httpx.Response, content: bytes | None
) -> GatewayResponse | NoResponse:
    """The outcome of a request of a call. `sent`: the headers that were added to it. `content`: the body of the gateway's own problem, None for every other response.

    The gateway names the payment state in every response to a call. A response without one, of any status, is of a proxy before the
    gateway: where the request carried a payment, the gateway may have sent it on and charged it, so its outcome is unknown."""
    answered = parse_response(response, content)
    carries_payment = any(name.lower() in PROOF_HEADERS for name, _ in sent)
    if carries_payment and answered.payment_state not in PAYMENT_STATES:
        detail = (
            f"A response with status {answered.status} arrived without a payment state, so it is not the gateway's: a proxy before the gateway may have sent it. "
            "Whether the call was served and charged is unknown."
        )
        return NoResponse(is_sent=True, detail=detail)
    return answered


def parse_response(response: httpx.Response, content: bytes | None) -> GatewayResponse:
    """The head of a response of the gateway. `content`: the body of its own problem."""
    problem: object = None
    if content is not None:
        try:
            problem = from_json(content)  # deep nesting is an error here, where json.loads could crash
        except ValueError:
            problem = None
    return GatewayResponse(
        status=response.status_code,
        headers={name.lower(): value for name, value in response.headers.items()},
        problem=problem if isinstance(problem, dict) else None,
    )


def describe_host(url: str) -> str:
    """The host and port of a node, for messages. The rest of its URL can hold keys. Raises `httpx.InvalidURL`."""
    return httpx.URL(url).netloc.decode("ascii") or "the node"


def describe_node_failure(url: str, exc: Exception) -> NodeUnavailable:
    """The outcome of a request to a node without a complete response."""
    return NodeUnavailable(detail=f"{describe_host(url)} does not answer ({type(exc).__name__})")


def read_node_response(url: str, status: int, content: bytes) -> NodeOutcome:
    """Parses a JSON-RPC response of the node at this URL."""
    try:
        response = from_json(content)
    except ValueError:
        response = None
    if not isinstance(response, dict):
        return NodeUnavailable(detail=f"{describe_host(url)} answers HTTP {status} without JSON-RPC")
    error = response.get("error")
    if isinstance(error, dict):
        code = error.get("code")
        return NodeError(
            code=code if isinstance(code, int) else 0, message=str(error.get("message", "refused"))[:500]
        )
    if "result" not in response:
        return NodeUnavailable(detail=f"{describe_host(url)} answers HTTP {status} without a result")
    return NodeResult(result=response["result"])


class ResponseTooLong(Exception):
    """A response is longer than a client keeps in memory."""


def describe_failure(exc: httpx.TransportError | ResponseTooLong) -> NoResponse:
    """The outcome of a failed request. It holds no URL, because URLs of nodes hold keys."""
    if isinstance(exc, ResponseTooLong):
        return NoResponse(is_sent=True, detail="The response is too long to be kept in memory. Use stream.")
    detail = f"No complete response arrived from the gateway ({type(exc).__name__})."
    return NoResponse(is_sent=not isinstance(exc, _NOT_SENT), detail=detail)


def read_payment(response: httpx.Response, paid: CallResult) -> PaymentInfo:
    headers = response.headers
    state = (paid.response.problem or {}).get("paymentState")
    transfer, authorization = paid.transfer, paid.authorization
    receipt = read_receipt(paid.response.headers)
    transaction, network, rail, fee_max = None, None, None, None
    if transfer is not None:
        transaction, network = str(transfer.tx_hash), transfer.asset.network
        rail = "tx" if transfer.rest == transfer.amount else "credit"
        if rail == "tx" and transfer.fee_max_wei is not None:
            fee_max = format_fee(transfer.chain_id, transfer.fee_max_wei)
    elif paid.voucher is not None:
        network, rail = paid.voucher.channel.asset.network, "channel"
        if receipt is not None and receipt.is_success and receipt.transaction is not None:
            transaction = str(receipt.transaction)
    elif authorization is not None:
        network, rail = authorization.asset.network, "x402"
        if receipt is not None and receipt.is_success and receipt.transaction is not None:
            transaction = str(receipt.transaction)
    return PaymentInfo(
        state=headers.get("tollway-payment-state") or (state if isinstance(state, str) else "none"),
        price=headers.get("tollway-price"),
        credit_remaining=headers.get("tollway-credit-remaining"),
        call_id=headers.get("tollway-call-id"),
        transaction=transaction,
        network=network,
        rail=rail,
        receipt=receipt,
        fee_max=fee_max,
        price_max=headers.get(PRICE_MAX_HEADER),
        channel=None if paid.voucher is None else paid.voucher.name(),
    )


def wrap_response(response: httpx.Response, paid: CallResult, content: bytes | None) -> CallResponse:
    """The response for the caller. `content` None: the body is still to be streamed."""
    wrapped = CallResponse(
        response.status_code,
        headers=response.headers,
        content=content,
        stream=response.stream if content is None else None,
        request=response.request,
        extensions=response.extensions,
    )
    wrapped.payment = read_payment(response, paid)
    return wrapped


def build_unreachable(
    exc: httpx.TransportError | ResponseTooLong, *, transaction: str | None
) -> GatewayUnreachable:
    broken = describe_failure(exc)
    return GatewayUnreachable(
        broken.detail,
        is_sent=broken.is_sent,
        transaction=None if transaction is None else TxHash.parse(transaction),
    )


PROBLEM_BYTES_MAX = 512 * 1024


def decode_response(response: CallResponse, content: bytes, *, bytes_max: int) -> CallResponse:
    """Decodes the body of a response. `content`: its raw bytes. `Content-Encoding` is removed where it was decoded. Raises
    `ResponseTooLong`."""
    coding = _find_coding(response)
    inflated = None if not coding else _inflate(content, coding, bytes_max=bytes_max)
    headers = response.headers.copy()
    if coding:  # httpx would decode the body itself, without a limit, and raise where it does not match
        del headers["content-encoding"]
        headers.pop("content-length", None)
    whole = CallResponse(
        response.status_code, headers=headers, content=content if inflated is None else inflated
    )
    if coding and inflated is None:
        whole.headers["content-encoding"] = coding
    whole.request, whole.payment = response.request, response.payment
    return whole


def decode_problem(response: httpx.Response, content: bytes) -> bytes:
    """Decodes the body of a gateway's own problem, up to `PROBLEM_BYTES_MAX`; empty where that fails. A gateway uses no coding, so a proxy
    has added it. Removes `Content-Encoding` from the response."""
    coding = _find_coding(response)
    if not coding:
        return content
    for name in ("content-encoding", "content-length"):
        response.headers.pop(name, None)
    try:
        return _inflate(content, coding, bytes_max=PROBLEM_BYTES_MAX) or b""
    except ResponseTooLong:
        return b""


def read_json(content: bytes) -> object:
    """The JSON value of a body, which can be written as JSON again. Raises ValueError, also for `NaN` and for numbers
    with more digits than Python can write."""
    value: object = from_json(content, allow_inf_nan=False)
    json.dumps(value, allow_nan=False)
    return value


def _find_coding(response: httpx.Response) -> str:
    """The content coding; empty without one."""
    coding = str(response.headers.get("content-encoding", "")).strip().lower()
    return "" if coding == "identity" else coding


def _inflate(content: bytes, coding: str, *, bytes_max: int) -> bytes | None:
    """Decodes a body; None for an unknown coding, and for a body that does not match. Raises `ResponseTooLong`."""
    decoded = decode_body(content, coding, bytes_max=bytes_max)
    if decoded is Undecoded.TOO_LARGE:
        raise ResponseTooLong
    return None if isinstance(decoded, Undecoded) else decoded
