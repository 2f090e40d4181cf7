"""A facilitator by URL: whether it would settle an authorisation, the order to settle, and whether it answers at all.

Its report of the outcome decides nothing: only the token's own state and the chain's logs do. It sees the
authorisation, never the request that is paid with it. The transport is a port with one adapter: one request, a deadline, a
maximum; no environment proxies, no redirects, no cookies. The operator names the URL, so no outbound policy applies.
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
    """One bounded request to a facilitator. Safe to use from many tasks at once."""

    async def post(self, url: str, content: bytes, *, headers: tuple[tuple[str, str], ...]) -> bytes:
        """The body of the answer within a deadline and a maximum. Raises `ChainUnavailable`, also for an error of the
        server's own (5xx); any other status is as good as 200."""
        ...

    async def fetch_status(self, url: str, *, headers: tuple[tuple[str, str], ...]) -> int:
        """The status that a GET is answered with. Raises `ChainUnavailable` as `post` does."""
        ...


class FacilitatorClient:
    """Safe to use from many tasks at once."""

    def __init__(self, rules: FacilitatorRules, transport: FacilitatorTransport) -> None:
        self._rules = rules
        self._transport = transport
        self._is_healthy = False

    @property
    def is_healthy(self) -> bool:
        """Whether it answered the last request; False before the first one. The content of the answer does not count, or one
        caller's faulty payment could close the rail for others. Nor does the time that it takes to settle."""
        return self._is_healthy

    async def probe(self, *, deadline_s: float) -> None:
        """Where it is not healthy: checks again, by any answer to `GET /supported` but a server error (5xx). Never raises."""
        if self._is_healthy:
            return
        with contextlib.suppress(ChainUnavailable, TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._transport.fetch_status(
                    self._locate("supported"), headers=self._rules.verify_headers
                )
            self._is_healthy = True

    async def verify(self, authorization: Authorization, asset: Asset, *, timeout_s: int) -> str | None:
        """The facilitator's reason to refuse, or None when it would settle. Raises `ChainUnavailable` without a usable answer."""
        content = _encode(authorization, asset, timeout_s)
        try:
            answer = await self._transport.post(
                self._locate("verify"), content, headers=self._rules.verify_headers
            )
        except ChainUnavailable:
            self._is_healthy = False
            raise
        self._is_healthy = True
        response = _parse(answer)
        if response.get("isValid") is True:
            return None
        if response.get("isValid") is not False:
            raise ChainUnavailable("the facilitator gave no usable answer")
        return _text(response.get("invalidReason")) or "facilitator_refused"

    async def settle(self, authorization: Authorization, asset: Asset, *, timeout_s: int) -> TxHash | None:
        """Requests the settlement. Returns the transaction that the facilitator names, which proves nothing; None when it names
        none. Never raises for the facilitator's failures: from here on money can move."""
        content = _encode(authorization, asset, timeout_s)
        try:
            answer = await self._transport.post(
                self._locate("settle"), content, headers=self._rules.settle_headers
            )
            response = _parse(answer)
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


def _parse(answer: bytes) -> dict[str, Any]:
    """Raises `ChainUnavailable` on what is no JSON object."""
    try:
        response = from_json(answer, allow_inf_nan=False)  # it refuses deep nesting by itself
    except ValueError as exc:
        raise ChainUnavailable("the facilitator gave no usable answer") from exc
    if not isinstance(response, dict):
        raise ChainUnavailable("the facilitator gave no usable answer")
    return response


def facilitator_request_json(authorization: Authorization, asset: Asset, *, timeout_s: int) -> dict[str, Any]:
    """The body of `/verify` and `/settle` (x402 v2, scheme `exact`, EIP-3009), whatever dialect the caller spoke."""
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
    """The facilitator's text, short and printable."""
    text = raw if isinstance(raw, str) else ""
    return "".join(c for c in text[:REASON_LENGTH_MAX] if c.isascii() and c.isprintable())


_SERVER_ERROR = 500
_ACCEPT = {"Accept": "application/json", "Content-Type": "application/json"}


class HttpFacilitatorTransport:
    """Open it inside the loop that uses it: `open` and `close`."""

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
            # A POST is never repeated by itself, but nothing here rests on what the library thinks is safe.
            self._session._retry_connection = False

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def post(self, url: str, content: bytes, *, headers: tuple[tuple[str, str], ...]) -> bytes:
        answer_max = self._limits.facilitator_answer_bytes_max
        async with self._request("POST", url, headers=headers, content=content) as response:
            answer = await response.content.read(answer_max + 1)
            while len(answer) <= answer_max and (more := await response.content.read(answer_max)):
                answer += more
        if len(answer) > answer_max:
            raise ChainUnavailable("the facilitator answers at too great a length")
        return answer

    async def fetch_status(self, url: str, *, headers: tuple[tuple[str, str], ...]) -> int:
        async with self._request("GET", url, headers=headers) as response:
            return response.status

    @asynccontextmanager
    async def _request(
        self, method: str, url: str, *, headers: tuple[tuple[str, str], ...], content: bytes | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None, "the line is not open"
        try:
            async with self._session.request(
                method, url, data=content, headers={**dict(headers), **_ACCEPT}, allow_redirects=False
            ) as response:
                if response.status >= _SERVER_ERROR:
                    raise ChainUnavailable("the facilitator has an error of its own")
                yield response
        except (aiohttp.ClientError, TimeoutError, asyncio.LimitOverrunError, ValueError) as exc:
            raise ChainUnavailable("the facilitator does not answer") from exc
