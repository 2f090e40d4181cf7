"""One chain node behind one URL: sends a JSON-RPC batch, bounds it, remembers failures.

It never follows a redirect, uses a proxy from the environment, keeps a cookie, or lets its URL (which may hold a key)
into a log or an error. Every batch also asks `eth_chainId`: no answer counts from a node that serves another chain.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
import structlog

from tollway.chain.answers import UnusableResponse, parse_batch, parse_quantity
from tollway.identifiers import ChainId, format_network
from tollway.limits import Limits

BREAKER_S = 5.0
"""A node that failed is asked last for this long: longer than a blip, shorter than anybody's patience."""

RpcCall = tuple[str, list[object]]
"""A method and its parameters."""

_HTTP_OK = 200
SENDS_MAX = 2
_request_ids = itertools.count(1)
_log = structlog.get_logger(__name__)


class WrongChain(UnusableResponse):
    """The node serves another chain than the one it is configured for."""


def open_session() -> aiohttp.ClientSession:
    """The HTTP session that nodes share. In-flight caps are per node, so the pool itself has none."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        auto_decompress=False,  # an inflated answer would escape the size cap; we ask for none
        timeout=aiohttp.ClientTimeout(total=None),  # each attempt has its own deadline
        headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
    )


class RpcNode:
    """Safe to use from many tasks at once. `clock`: a monotonic one, for the breaker alone."""

    def __init__(
        self,
        url: str,
        *,
        chain_id: ChainId,
        position: int,
        limits: Limits,
        clock: Callable[[], float],
        on_request: Callable[[int], None] | None,
    ) -> None:
        self._url = url
        self._chain_id = chain_id
        self._limits = limits
        self._clock = clock
        self._on_request = on_request
        self._slots = asyncio.Semaphore(limits.rpc_in_flight_max)
        self._deferred_until: float | None = None
        self.label = f"node {position} of {format_network(chain_id)} at {urlsplit(url).hostname}"

    def __repr__(self) -> str:
        return f"<{self.label}>"

    @property
    def is_deferred(self) -> bool:
        """It failed within the last `BREAKER_S` seconds."""
        return self._deferred_until is not None and self._clock() < self._deferred_until

    @asynccontextmanager
    async def attempt(self, deadline_s: float) -> AsyncIterator[None]:
        """Bounds one read, however many batches it takes, and feeds the breaker. Raises Unusable on any failure."""
        if self._deferred_until is not None:
            # One asker at a time finds out whether the node is back; the others keep to its siblings.
            self._deferred_until = self._clock() + BREAKER_S
        try:
            async with asyncio.timeout(deadline_s):
                yield
        except TimeoutError:
            self._record_failure("no answer within the deadline")
            raise UnusableResponse("no answer within the deadline") from None
        except UnusableResponse as exc:
            self._record_failure(str(exc))
            raise
        if self._deferred_until is not None:
            self._deferred_until = None
            _log.info("rpc_node_recovered", node=self.label)

    def _record_failure(self, reason: str) -> None:
        if self._deferred_until is None:  # once per outage, not once per call
            _log.warning("rpc_node_failed", node=self.label, reason=reason)
        self._deferred_until = self._clock() + BREAKER_S

    async def send_batch(
        self, session: aiohttp.ClientSession, calls: Sequence[RpcCall], *, sends_max: int = SENDS_MAX
    ) -> list[object]:
        """One round trip. The results in the order of `calls`: raw JSON values for `answers` to parse, or faults.

        `sends_max` 1 is for transactions. Sending one twice moves nothing twice, its hash stands for it; but the second
        answer would hide the first ("nonce too low", because the first was taken and is mined already).
        """
        batch: list[RpcCall] = [*calls, ("eth_chainId", [])]
        ids = [next(_request_ids) for _ in batch]
        body = json.dumps(
            [
                {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
                for number, (method, params) in zip(ids, batch, strict=True)
            ]
        ).encode()
        async with self._slots:
            answer = await self._send(session, body, calls_count=len(batch), sends_max=sends_max)
        *results, chain_id = parse_batch(answer, ids)
        if parse_quantity(chain_id) != self._chain_id:
            raise WrongChain("the node serves another chain")
        return results

    async def _send(
        self, session: aiohttp.ClientSession, body: bytes, *, calls_count: int, sends_max: int
    ) -> bytes:
        """Reads may be repeated, so a pooled connection that the node had closed meanwhile gets one more try."""
        for sends_left in reversed(range(sends_max)):
            if self._on_request is not None:
                self._on_request(calls_count)
            try:
                async with session.post(self._url, data=body, allow_redirects=False) as response:
                    return await self._read(response)
            except (aiohttp.ClientError, OSError, ValueError) as exc:
                # `from None`: the foreign text may hold the URL, and the URL a key.
                if not (sends_left and _is_stale_connection(exc)):
                    raise UnusableResponse(f"the request failed ({type(exc).__name__})") from None
        raise UnusableResponse("the node keeps closing the connection")

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        if response.status != _HTTP_OK:
            response.close()
            raise UnusableResponse(f"the node answered with HTTP status {response.status}")
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > self._limits.rpc_answer_bytes_max:
                response.close()
                raise UnusableResponse("the answer is too large")
        return bytes(body)


def _is_stale_connection(exc: Exception) -> bool:
    return isinstance(exc, aiohttp.ServerDisconnectedError | ConnectionResetError | BrokenPipeError)
