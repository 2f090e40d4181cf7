"""The JSON-RPC nodes of the chains: one node behind one URL, the pool of a chain's nodes, and the health of all of them.

A node sends a JSON-RPC batch, bounds the response and remembers failures. It never follows a redirect, uses a proxy from the
environment, keeps a cookie, or lets its URL (which may hold a key) into a log or an error. Every batch also asks
`eth_chainId`: no response counts from a node that serves another chain.

A pool decides in which order nodes are asked and when enough of them agree. It never guesses: a node that fails, serves another
chain or contradicts itself is passed over for the next one, and when none is left it raises `ChainUnavailable`.
"""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import structlog

from tollway.chain.port import ChainReader, Quorum
from tollway.chain.responses import UnusableResponse, parse_batch, parse_quantity
from tollway.errors import ChainMismatch, ChainUnavailable, NodesDisagree
from tollway.ids import ChainId, format_network
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


T = TypeVar("T")

NodeRead = Callable[[RpcNode], Awaitable[T]]


class NodePool:
    """Safe to use from many tasks at once. `agreement_min`: how many nodes must tell the same before it counts;
    `is_by_value`: only where much is at stake, and one is enough for all that does not say so."""

    def __init__(
        self,
        chain_id: ChainId,
        nodes: Sequence[RpcNode],
        *,
        agreement_min: int = 1,
        is_by_value: bool = False,
    ) -> None:
        self._chain_id = chain_id
        self._nodes = tuple(nodes)
        self._agreement_min = agreement_min
        self.least_quorum = Quorum.ONE if is_by_value else Quorum.AGREED

    def count_needed(self, quorum: Quorum) -> int:
        return self._agreement_min if quorum is Quorum.AGREED else 1

    @property
    def in_order(self) -> list[RpcNode]:
        """In the operator's order; those that failed within the last seconds come last."""
        return sorted(self._nodes, key=lambda node: node.is_deferred)

    async def attempt(
        self, node: RpcNode, read: NodeRead[T], *, failures: list[str], deadline_s: float
    ) -> T | None:
        """None when the node's answer cannot be used; the reason joins `failures`."""
        try:
            async with node.attempt(deadline_s):
                return await read(node)
        except UnusableResponse as exc:
            failures.append(f"{node.label}: {exc}")
            return None

    async def read_first(self, read: NodeRead[T], *, deadline_s: float) -> T:
        """The first usable answer decides."""
        return (await self._read_some(read, lambda answer: None, count=1, deadline_s=deadline_s))[0]

    async def read_agreeing(
        self, read: NodeRead[T], *, compared: Callable[[T], object], quorum: Quorum, deadline_s: float
    ) -> list[T]:
        """As many answers with one `compared` as `quorum` takes. Nodes are asked until there are as many."""
        return await self._read_some(read, compared, count=self.count_needed(quorum), deadline_s=deadline_s)

    async def _read_some(
        self, read: NodeRead[T], compared: Callable[[T], object], *, count: int, deadline_s: float
    ) -> list[T]:
        failures: list[str] = []
        reports: list[T] = []
        for node in self.in_order:
            answer = await self.attempt(node, read, failures=failures, deadline_s=deadline_s)
            if answer is None:
                continue
            reports.append(answer)
            alike = [other for other in reports if compared(other) == compared(answer)]
            if len(alike) >= count:
                return alike
        if reports:
            failures.append(f"{count} of the nodes must agree, and {len(reports)} answered")
        raise self.unavailable(failures)

    async def check(self, read: NodeRead[object], *, deadline_s: float) -> None:
        """Asks all nodes at once. Raises `ChainUnavailable` when too few answer for the least payment, and `ChainMismatch`
        when any of them serves another chain: that is a mistake in the settings which fail-over would hide.
        """
        failures: list[str] = []
        wrong_chain: list[str] = []

        async def check(node: RpcNode) -> bool:
            try:
                async with node.attempt(deadline_s):
                    await read(node)
            except WrongChain as exc:
                wrong_chain.append(f"{node.label}: {exc}")
            except UnusableResponse as exc:
                failures.append(f"{node.label}: {exc}")
            else:
                return True
            return False

        async with asyncio.TaskGroup() as group:
            checks = [group.create_task(check(node)) for node in self._nodes]
        if wrong_chain:
            mismatch = ChainMismatch(f"a node of {format_network(self._chain_id)} serves another chain")
            for wrong in wrong_chain:
                mismatch.add_note(wrong)
            raise mismatch
        if sum(task.result() for task in checks) < self.count_needed(self.least_quorum):
            raise self.unavailable(failures)

    def unavailable(self, failures: Sequence[str], *, is_disputed: bool = False) -> ChainUnavailable:
        """The detail is public, so the nodes' names and faults go into notes, which only the operator's log shows."""
        kind = NodesDisagree if is_disputed else ChainUnavailable
        exc = kind(f"no node of {format_network(self._chain_id)} gave a usable answer")
        for failure in failures or ["no node is configured"]:
            exc.add_note(failure)
        return exc


CHECK_INTERVAL_S = 60.0
AWAY_INTERVAL_S = 10.0

_NEVER_SERVED = float("-inf")


class NodeHealth:
    """Until a network was asked it counts as away. `clock` is monotonic seconds."""

    def __init__(
        self,
        chains: ChainReader,
        chain_ids: Iterable[ChainId],
        *,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._chains = chains
        self._limits = limits
        self._clock = clock
        self._checked_s = _NEVER_SERVED
        self._away_since: dict[ChainId, float | None] = dict.fromkeys(chain_ids, _NEVER_SERVED)

    @property
    def checks(self) -> Mapping[str, bool]:
        """`chain_8453` -> whether nodes served it when they were last asked."""
        return {f"chain_{chain_id}": since is None for chain_id, since in self._away_since.items()}

    def count_lost(self) -> int:
        """How many networks are away for so long that another gateway may do better. One that was never served is lost
        from the start: who begins without its nodes is not to take over from others."""
        longest = self._clock() - self._limits.chain_away_s
        return sum(since is not None and since <= longest for since in self._away_since.values())

    async def check_due(self) -> None:
        """To be called every `AWAY_INTERVAL_S`: most times it asks only those that are away."""
        if self._clock() - self._checked_s >= CHECK_INTERVAL_S:
            await self.find_wrong_chain_nodes()
            return
        for chain_id in [chain_id for chain_id, since in self._away_since.items() if since is not None]:
            await self._check(chain_id)

    async def find_wrong_chain_nodes(self) -> list[str]:
        """Asks every network. A line for each node that serves another chain than the one it is configured for; a node
        that is away is only noted."""
        wrong_chain: list[str] = []
        self._checked_s = self._clock()
        for chain_id in self._away_since:
            exc = await self._check(chain_id)
            if exc is not None:
                _log.warning("chain_not_ready", chain_id=chain_id, detail=str(exc))
            if isinstance(exc, ChainMismatch):
                wrong_chain += getattr(exc, "__notes__", [])
        return wrong_chain

    async def _check(self, chain_id: ChainId) -> ChainUnavailable | None:
        try:
            await self._chains.check_chain(chain_id)
        except ChainUnavailable as exc:
            if self._away_since[chain_id] is None:
                self._away_since[chain_id] = self._clock()
            return exc
        if self._away_since[chain_id] is not None:
            _log.info("chain_ready", chain_id=chain_id)
        self._away_since[chain_id] = None
        return None
