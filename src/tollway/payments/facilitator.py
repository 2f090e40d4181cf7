"""The client of an x402 facilitator: `/verify`, `/settle`, and a health probe.

The facilitator's report of an outcome decides nothing: only the token's state and the chain's logs do. The facilitator receives
the authorisation, never the request that it pays for. The transport is a port with one adapter: one request, a deadline, a
maximum size; no environment proxies, no redirects, no cookies. The operator configures the URL, so no outbound policy applies.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import aiohttp
import structlog
from pydantic_core import from_json

from tollway.errors import ChainUnavailable
from tollway.ids import TxHash
from tollway.ledger.records import Authorization
from tollway.limits import Limits
from tollway.money import Asset
from tollway.payments.settlement_rules import FacilitatorRules

X402_VERSION = 2
REASON_LENGTH_MAX = 100

_log = structlog.get_logger(__name__)


class FacilitatorTransport(Protocol):
    """A port for one bounded request to a facilitator."""

    async def post(self, url: str, content: bytes, *, headers: tuple[tuple[str, str], ...]) -> bytes:
        """Bounded in time and size. Raises `ChainUnavailable`, also for a server error (5xx); every other status is treated as 200."""
        ...

    async def fetch_status(self, url: str, *, headers: tuple[tuple[str, str], ...]) -> int:
        """The status of the response to a GET. Raises `ChainUnavailable` as `post` does."""
        ...


class FacilitatorClient:
    def __init__(self, rules: FacilitatorRules, transport: FacilitatorTransport) -> None:
        self._rules = rules
        self._transport = transport
        self._is_healthy = False

    @property
    def is_healthy(self) -> bool:
        """Whether the facilitator responded to the last request; False before the first one. The content of the response does not
        count, or one caller's faulty payment could close the rail for others. The time to settle does not count either."""
        return self._is_healthy

    async def probe(self, *, deadline_s: float) -> None:
        """Checks an unhealthy facilitator again: any response to `GET /supported` below 500 makes it healthy. Never raises."""
        if self._is_healthy:
            return
        with contextlib.suppress(ChainUnavailable, TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._transport.fetch_status(
                    self._locate("supported"), headers=self._rules.verify_headers
                )
            self._is_healthy = True

    async def verify(self, authorization: Authorization, asset: Asset, *, timeout_s: int) -> str | None:
        """The facilitator's reason to refuse, or None. Raises `ChainUnavailable` without a usable response."""
        content = _encode(authorization, asset, timeout_s)
        try:
            body = await self._transport.post(
                self._locate("verify"), content, headers=self._rules.verify_headers
            )
        except ChainUnavailable:
            self._is_healthy = False
            raise
        self._is_healthy = True
        response = _parse(body)
        if response.get("isValid") is True:
            return None
        if response.get("isValid") is not False:
            raise ChainUnavailable("the facilitator gave no usable response")
        return _text(response.get("invalidReason")) or "facilitator_refused"

    async def settle(self, authorization: Authorization, asset: Asset, *, timeout_s: int) -> TxHash | None:
        """Returns the transaction that the facilitator names, which proves nothing. Never raises for its failure: from this request on money can
        move."""
        content = _encode(authorization, asset, timeout_s)
        try:
            body = await self._transport.post(
                self._locate("settle"), content, headers=self._rules.settle_headers
            )
            response = _parse(body)
            tx_hash = TxHash.parse(str(response.get("transaction")))
        except (ChainUnavailable, ValueError) as exc:
            _log.warning("facilitator_unclear", detail=str(exc)[:REASON_LENGTH_MAX])
            return None
        if response.get("success") is not True:
            _log.warning("facilitator_says_failed", reason=_text(response.get("errorReason")))
        return tx_hash

    def _locate(self, verb: str) -> str:
        return f"{self._rules.url.rstrip('/')}/{verb}"


def _encode(authorization: Authorization, asset: Asset, timeout_s: int) -> bytes:
    return json.dumps(facilitator_request_json(authorization, asset, timeout_s=timeout_s)).encode()


def _parse(body: bytes) -> dict[str, Any]:
    """Raises `ChainUnavailable` when the body is not a JSON object."""
    try:
        response = from_json(body, allow_inf_nan=False)  # refuses deep nesting by itself
    except ValueError as exc:
        raise ChainUnavailable("the facilitator gave no usable response") from exc
    if not isinstance(response, dict):
        raise ChainUnavailable("the facilitator gave no usable response")
    return response


def facilitator_request_json(authorization: Authorization, asset: Asset, *, timeout_s: int) -> dict[str, Any]:
    """The body of `/verify` and `/settle` (x402 v2, scheme `exact`, EIP-3009), for every dialect of the caller."""
    assert asset.domain is not None
    requirements = {
        "scheme": "exact",
        "network": asset.network,
        "amount": str(authorization.base_units),
        "asset": str(authorization.token),
        "payTo": str(authorization.payee),
        "maxTimeoutSeconds": timeout_s,
        "extra": {"name": asset.domain.name, "version": asset.domain.version},
    }
    signed = {
        "from": str(authorization.payer),
        "to": str(authorization.payee),
        "value": str(authorization.base_units),
        "validAfter": str(authorization.valid_after),
        "validBefore": str(authorization.valid_before),
        "nonce": "0x" + authorization.nonce.hex(),
    }
    return {
        "x402Version": X402_VERSION,
        "paymentPayload": {
            "x402Version": X402_VERSION,
            "payload": {"signature": "0x" + authorization.signature.hex(), "authorization": signed},
            "accepted": requirements,
        },
        "paymentRequirements": requirements,
    }


def _text(raw: object) -> str:
    """The facilitator's text, cut to its maximum and to printable ASCII."""
    text = raw if isinstance(raw, str) else ""
    return "".join(c for c in text[:REASON_LENGTH_MAX] if c.isascii() and c.isprintable())


_SERVER_ERROR = 500
_ACCEPT = {"Accept": "application/json", "Content-Type": "application/json"}


class HttpFacilitatorTransport:
    """The transport by aiohttp. `open` and `close` run in the event loop that uses it."""

    def __init__(self, *, limits: Limits) -> None:
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=self._limits.facilitator_deadline_s),
            )
            # Never send a request twice: aiohttp repeats the methods that it considers safe.
            self._session._retry_connection = False

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def post(self, url: str, content: bytes, *, headers: tuple[tuple[str, str], ...]) -> bytes:
        body_bytes_max = self._limits.facilitator_response_bytes_max
        async with self._request("POST", url, headers=headers, content=content) as response:
            body = await response.content.read(body_bytes_max + 1)
            while len(body) <= body_bytes_max and (more := await response.content.read(body_bytes_max)):
                body += more
        if len(body) > body_bytes_max:
            raise ChainUnavailable("the facilitator's response is too long")
        return body

    async def fetch_status(self, url: str, *, headers: tuple[tuple[str, str], ...]) -> int:
        async with self._request("GET", url, headers=headers) as response:
            return response.status

    @asynccontextmanager
    async def _request(
        self, method: str, url: str, *, headers: tuple[tuple[str, str], ...], content: bytes | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None, "the transport is not open"
        try:
            async with self._session.request(
                method, url, data=content, headers={**dict(headers), **_ACCEPT}, allow_redirects=False
            ) as response:
                if response.status >= _SERVER_ERROR:
                    raise ChainUnavailable("the facilitator returned a server error")
                yield response
        except (aiohttp.ClientError, TimeoutError, asyncio.LimitOverrunError, ValueError) as exc:
            raise ChainUnavailable("the facilitator does not respond") from exc
