"""Reads responses of the gateway and of nodes: real responses -> the outcomes that flows understand, and the response that the caller gets.

The client asks for no content coding. Where a response that is read whole has one all the same, gzip and deflate are decoded within
a maximum; every other coding, and a body that is not what its coding says, stays the bytes that came, because they are paid for.
"""

import contextlib
import json
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import httpx
from pydantic_core import from_json

from tollway.client.errors import AnswerUnreadable, GatewayUnreachable
from tollway.client.fee_limit import format_fee
from tollway.client.response_rules import CallResult
from tollway.client.steps import (
    GatewayResponse,
    NodeError,
    NodeOutcome,
    NodeResult,
    NodeUnavailable,
    NoResponse,
)
from tollway.client.x402 import SettlementReceipt, read_receipt
from tollway.ids import TxHash

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentInfo:
    """What an answer says about money, in the words of its headers. `state`: none, charged, released or held.

    `rail`: what was shown with the call: `tx` (a payment's first call), `credit` (a later one), `x402`, or None.
    `fee_max`: the most that a new transaction may cost in network fees.
    `transaction`: what paid, where it is known. `receipt`: the gateway's `PAYMENT-RESPONSE`.
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


CHARSETS = frozenset(
    {
        "utf-8", "utf8", "utf-16le", "utf-16be", "us-ascii", "ascii", "latin1", "iso-8859-1",
        "iso-8859-2", "iso-8859-5", "iso-8859-7", "iso-8859-9", "iso-8859-15", "windows-1250",
        "windows-1251", "windows-1252", "windows-1253", "windows-1254", "windows-1255", "windows-1256",
        "windows-1257", "windows-1258", "koi8-r", "koi8-u", "shift_jis", "euc-jp", "iso-2022-jp",
        "euc-kr", "gb2312", "gbk", "gb18030", "big5"
    }
)  # fmt: skip
"""Character sets of text on the web. Python knows codecs that are none (`zlib`, `idna`, `unicode_escape`), and that a
provider may name to make a reader fail or compute for long."""


class CallResponse(httpx.Response):
    """The answer to a call: an httpx response that also knows its `payment`. Its `text` never fails: a charset that is
    none of the web's counts as UTF-8, and bytes that are no characters become U+FFFD."""

    payment: PaymentInfo

    @property
    def charset_encoding(self) -> str | None:
        """The charset that `Content-Type` names, where it is one of the web's."""
        named = super().charset_encoding
        return named if named is not None and named.strip().lower() in CHARSETS else None

    def iter_bytes(self, chunk_size: int | None = None) -> Iterator[bytes]:
        """As httpx, but for a content coding that is not what it says: `AnswerUnreadable`."""
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
        raise AnswerUnreadable(
            "The answer's Content-Encoding is not what it says; iter_raw gives its bytes."
        ) from exc


def is_from_gateway(response: httpx.Response) -> bool:
    """True for the gateway's own problem. An upstream's is relayed with `received-status` (RFC 9209 §2.4), a header
    that the gateway writes and no upstream can: what a provider answers must never make a caller pay."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/problem+json" and "received-status" not in response.headers.get(
        "proxy-status", ""
    )


def is_retryable_response(response: httpx.Response) -> bool:
    """Whether the same request can succeed later, without another payment: by the gateway's own problem, or by the status
    of something before the gateway. What a provider answered is its last word. The body must be read."""
    if is_from_gateway(response):
        try:
            problem = from_json(response.content)
        except ValueError:
            return False
        return isinstance(problem, dict) and problem.get("retryable") is True
    is_relayed = "received-status" in response.headers.get("proxy-status", "")
    return not is_relayed and response.status_code in (429, 503)


def read_response(response: httpx.Response, content: bytes | None) -> GatewayResponse:
    """`content`: the body of a gateway's own problem, None for every other answer."""
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


def read_node_response(status: int, content: bytes) -> NodeOutcome:
    """A JSON-RPC answer. Node URLs carry keys, so no message names one."""
    try:
        response = from_json(content)
    except ValueError:
        response = None
    if not isinstance(response, dict):
        return NodeUnavailable(detail=f"HTTP {status} without JSON-RPC")
    error = response.get("error")
    if isinstance(error, dict):
        code = error.get("code")
        return NodeError(
            code=code if isinstance(code, int) else 0, message=str(error.get("message", "refused"))[:500]
        )
    if "result" not in response:
        return NodeUnavailable(detail=f"HTTP {status} without a result")
    return NodeResult(result=response["result"])


class ResponseTooLong(Exception):
    """An answer is longer than a client keeps in memory."""


def describe_failure(exc: httpx.TransportError | ResponseTooLong) -> NoResponse:
    """What a failure means. It names no URL: those of nodes carry keys."""
    if isinstance(exc, ResponseTooLong):
        return NoResponse(is_sent=True, detail="The answer is longer than is kept in memory; stream it.")
    detail = f"No whole answer came from the gateway ({type(exc).__name__})."
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
    )


def wrap_response(response: httpx.Response, paid: CallResult, content: bytes | None) -> CallResponse:
    """The answer as the caller gets it. `content` None: the body is still to be streamed."""
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


_GZIP = zlib.MAX_WBITS | 16
_WINDOW_BITS: Mapping[str, int] = MappingProxyType(
    {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": zlib.MAX_WBITS}
)
_GZIP_MAGIC = b"\x1f\x8b"
_PIECE_BYTES = 64 * 1024
PROBLEM_BYTES_MAX = 512 * 1024
MEMBERS_MAX = 1_000
"""A gzip stream may have several members (RFC 1952 §2.2); more of them than this are not taken apart."""


def decode_response(response: CallResponse, content: bytes, *, bytes_max: int) -> CallResponse:
    """`content`: the bytes as they came. A coding that is off is no longer named. Raises `ResponseTooLong`."""
    coding = _find_coding(response)
    inflated = None if not coding else _inflate(content, coding, bytes_max=bytes_max)
    headers = response.headers.copy()
    if coding:  # httpx would take it off by itself, without a bound, and raise where it is not what it says
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
    """The body of a gateway's own problem. A coding that it has is taken off within the bound of what came, or leaves
    nothing to read: a gateway codes none of its own. The response then names none."""
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
    with more digits than Python writes."""
    value: object = from_json(content, allow_inf_nan=False)
    json.dumps(value, allow_nan=False)
    return value


def _find_coding(response: httpx.Response) -> str:
    """Empty without one."""
    coding = str(response.headers.get("content-encoding", "")).strip().lower()
    return "" if coding == "identity" else coding


def _inflate(content: bytes, coding: str, *, bytes_max: int) -> bytes | None:
    """None: not a coding that is known here, or not what it says. Bytes behind the last member are dropped."""
    if coding not in _WINDOW_BITS:
        return None
    inflated = bytearray()
    start = 0
    for _ in range(MEMBERS_MAX):
        inflater = zlib.decompressobj(_WINDOW_BITS[coding])
        while not inflater.eof:
            piece = content[start : start + _PIECE_BYTES]
            if not piece:
                return None
            try:
                inflated += inflater.decompress(piece, bytes_max + 1 - len(inflated))
            except zlib.error:
                return None
            if len(inflated) > bytes_max:
                raise ResponseTooLong
            start += len(piece) - len(inflater.unused_data)
        if not content.startswith(_GZIP_MAGIC, start):
            return bytes(inflated)
    return None
