"""The JSON-RPC nodes of the chains: one node behind one URL, the pool of a chain's nodes, and the health of all of them.

`RpcNode` sends JSON-RPC batches, bounds the response and remembers failures. It never follows a redirect, uses a proxy from the
environment, keeps a cookie, or writes its URL (which may hold a key) to a log or an error. Every batch includes `eth_chainId`:
a response of a node that serves another chain does not count. A node that refuses a batch gets smaller ones, down to single calls.

`NodePool` decides the order of the nodes and when enough of them agree. It skips a node that fails, serves another chain or
contradicts itself, and raises `ChainUnavailable` when no node is left.
"""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

import aiohttp
import structlog

from tollway.chain.networks import describe_network
from tollway.chain.port import ChainReader, Quorum, WatchedChain
from tollway.chain.responses import (
    BatchRefused,
    BlockHeader,
    RpcFault,
    UnusableResponse,
    parse_batch,
    parse_quantity,
)
from tollway.errors import ChainMismatch, ChainUnavailable, NodesDisagree
from tollway.ids import ChainId, format_network
from tollway.limits import Limits
from tollway.observability.metric_table import NodeOutcome

BREAKER_S = 5.0
"""A node that failed comes last in the order for this long: longer than a short disturbance, shorter than a caller waits."""

BATCH_MAX_S = 600.0
"""A node that refused a batch gets smaller ones for this long: the refusal may have had a cause that passes."""

RpcCall = tuple[str, list[object]]

CHAIN_ID_CALL: RpcCall = ("eth_chainId", [])

_HTTP_OK = 200
_REFUSING_STATUSES = frozenset({400, 403, 413, 422})
"""The statuses with which nodes refuse a batch for its size, or because they take none. They may have other reasons: a smaller batch decides. A
status of 500 and more is of a node that is away, and it gets no further request."""
SENDS_MAX = 2
_request_ids = itertools.count(1)
_log = structlog.get_logger(__name__)


class NodeObserver(Protocol):
    """Receives the outcomes of requests to nodes. `position`: the number of the node in the settings, from 1."""

    def count_request(
        self,
        chain_id: ChainId,
        position: int,
        outcome: NodeOutcome,
        seconds: float,
        calls: "Sequence[RpcCall]",
    ) -> None:
        """`calls`: of the batch that ended; of a read that met its deadline, the batch that was under way."""
        ...

    def set_head_time(self, chain_id: ChainId, position: int, block_time_s: int) -> None: ...

    def count_disagreement(self, chain_id: ChainId, position: int) -> None: ...


class WrongChain(UnusableResponse):
    """The node serves another chain than the one it is configured for."""


def open_session() -> aiohttp.ClientSession:
    """The nodes share it. In-flight caps are per node, so the pool itself has none."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        auto_decompress=False,  # a decompressed response would exceed the size limit; the header requests none
        timeout=aiohttp.ClientTimeout(total=None),  # each attempt has its own deadline
        headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """A node as its last requests left it. `position`: its number in the settings, from 1. `head_number`, `head_time_s`: its newest block, None before one was read.
    `failure`: the reason of its last outage, which began `failed_s` seconds ago; empty without one. `is_deferred`: it failed within the last `BREAKER_S` seconds.
    `batch_max`: the calls that it takes in one request, None where it has refused no batch."""

    position: int
    host: str
    head_number: int | None
    head_time_s: int | None
    failure: str
    failed_s: float | None
    is_deferred: bool
    batch_max: int | None = None


class ChainsWithNodes(WatchedChain, Protocol):
    """The chains of a gateway, and their nodes as the last requests left them."""

    def list_nodes(self, chain_id: ChainId) -> tuple[NodeStatus, ...]: ...


class RpcNode:
    """A client of one node. `clock`: monotonic seconds, for the breaker."""

    def __init__(
        self,
        url: str,
        *,
        chain_id: ChainId,
        position: int,
        limits: Limits,
        clock: Callable[[], float],
        on_request: Callable[[int], None] | None,
        observer: NodeObserver | None = None,
    ) -> None:
        self._observer = observer
        self._position = position
        self._url = url
        self._chain_id = chain_id
        self._limits = limits
        self._clock = clock
        self._on_request = on_request
        self._slots = asyncio.Semaphore(limits.rpc_in_flight_max)
        self._deferred_until: float | None = None
        self._head: BlockHeader | None = None
        self._failure = ""
        self._failed_since_s: float | None = None
        self._cut: Sequence[RpcCall] = ()
        self._batch_max: int | None = None
        self._batch_max_until = 0.0
        self._host = urlsplit(url).hostname or ""
        self.label = f"node {position} of {format_network(chain_id)} at {self._host}"

    def __repr__(self) -> str:
        return f"<{self.label}>"

    @property
    def is_deferred(self) -> bool:
        return self._deferred_until is not None and self._clock() < self._deferred_until

    @property
    def batch_max(self) -> int | None:
        """How many calls the node takes in one request; None where it has refused no batch within the last `BATCH_MAX_S` seconds."""
        return self._batch_max if self._clock() < self._batch_max_until else None

    @property
    def status(self) -> NodeStatus:
        head, since_s = self._head, self._failed_since_s
        return NodeStatus(
            position=self._position,
            host=self._host,
            head_number=None if head is None else head.number,
            head_time_s=None if head is None else head.time,
            failure=self._failure,
            failed_s=None if since_s is None else self._clock() - since_s,
            is_deferred=self.is_deferred,
            batch_max=self.batch_max,
        )

    @asynccontextmanager
    async def attempt(self, deadline_s: float) -> AsyncIterator[None]:
        """Bounds one read of any number of batches, and updates the breaker. Raises `UnusableResponse` on any failure."""
        if self._deferred_until is not None:
            # One task at a time tries whether the node is back; the other tasks use other nodes.
            self._deferred_until = self._clock() + BREAKER_S
        try:
            async with asyncio.timeout(deadline_s):
                yield
        except TimeoutError:
            self._observe("timeout", deadline_s, self._cut)
            self._record_failure("no response within the deadline")
            raise UnusableResponse("no response within the deadline") from None
        except UnusableResponse as exc:
            self._record_failure(str(exc))
            raise
        if self._deferred_until is not None:
            self._deferred_until = None
            _log.info("rpc_node_recovered", node=self.label)

    def _observe(self, outcome: NodeOutcome, seconds: float, calls: Sequence[RpcCall]) -> None:
        if self._observer is not None:
            self._observer.count_request(self._chain_id, self._position, outcome, seconds, calls)

    def note_head(self, head: BlockHeader) -> None:
        """Keeps the newest block that the node returned, and reports its time."""
        self._head = head
        if self._observer is not None:
            self._observer.set_head_time(self._chain_id, self._position, head.time)

    def note_disagreement(self) -> None:
        if self._observer is not None:
            self._observer.count_disagreement(self._chain_id, self._position)

    def _record_failure(self, reason: str) -> None:
        if self._deferred_until is None:  # once per outage, not once per call
            _log.warning("rpc_node_failed", node=self.label, reason=reason)
            self._failed_since_s = self._clock()
        self._failure = reason
        self._deferred_until = self._clock() + BREAKER_S

    async def send_batch(
        self, session: aiohttp.ClientSession, calls: Sequence[RpcCall], *, sends_max: int = SENDS_MAX
    ) -> list[object]:
        """Sends one batch, or several smaller ones to a node that refuses it. Returns the results in the order of `calls`: raw JSON values for
        `responses` to parse, or `RpcFault`.

        `sends_max` 1 is for transactions. Sending a transaction twice has no second effect, but the second response hides the first
        one ("nonce too low", because the transaction is mined already).
        """
        batch: list[RpcCall] = [*calls, CHAIN_ID_CALL]
        size = min(len(batch), self.batch_max or len(batch))
        try:
            if size == len(batch):
                results = await self._send_part(session, batch, sends_max=sends_max)
            else:
                results = await self._send_parts(session, batch, size=size, sends_max=sends_max)
        except BatchRefused as exc:
            results = await self._send_smaller(session, batch, exc, size=size // 2, sends_max=sends_max)
        return results[:-1]

    async def _send_smaller(
        self,
        session: aiohttp.ClientSession,
        batch: Sequence[RpcCall],
        refused: BatchRefused,
        *,
        size: int,
        sends_max: int,
    ) -> list[object]:
        """Halves the size of the batches until the node takes one, and remembers that size. Raises `refused` where the node refuses even a single
        call: the size was not its reason."""
        while size:
            try:
                results = await self._send_parts(session, batch, size=size, sends_max=sends_max)
            except BatchRefused:
                size //= 2
                continue
            self._batch_max, self._batch_max_until = size, self._clock() + BATCH_MAX_S
            _log.warning("rpc_batch_refused", node=self.label, reason=str(refused), batch_max=size)
            return results
        raise refused

    async def _send_parts(
        self, session: aiohttp.ClientSession, batch: Sequence[RpcCall], *, size: int, sends_max: int
    ) -> list[object]:
        """The results of batches of at most `size` calls. The last one, with `eth_chainId`, goes first and alone: a node that refuses the size or
        serves another chain gets nothing else."""
        parts = [batch[max(0, end - size) : end] for end in range(len(batch), 0, -size)]
        last = await self._send_part(session, parts[0], sends_max=sends_max)
        others = await asyncio.gather(
            *(self._send_part(session, part, sends_max=sends_max) for part in parts[1:]),
            return_exceptions=True,
        )
        results: list[object] = []
        for part in reversed(others):
            if isinstance(part, BaseException):
                raise part
            results += part
        return results + last

    async def _send_part(
        self, session: aiohttp.ClientSession, calls: Sequence[RpcCall], *, sends_max: int
    ) -> list[object]:
        """Sends one request. A single call is no batch. Raises `WrongChain` after an `eth_chainId` of another chain."""
        ids = [next(_request_ids) for _ in calls]
        messages = [
            {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            for number, (method, params) in zip(ids, calls, strict=True)
        ]
        body = json.dumps(messages if len(calls) > 1 else messages[0]).encode()
        served_id = self._chain_id
        try:
            async with self._slots:
                started_s = self._clock()
                try:
                    response = await self._send(session, body, calls_count=len(calls), sends_max=sends_max)
                    results = parse_batch(response, ids)
                    if calls[-1] is CHAIN_ID_CALL:
                        if len(calls) > 1 and isinstance(results[-1], RpcFault):
                            raise BatchRefused(f"the node returned error {results[-1].code} for eth_chainId")
                        served_id = ChainId(parse_quantity(results[-1]))
                except UnusableResponse:
                    self._observe("error", self._clock() - started_s, _without_chain_id(calls))
                    raise
        except asyncio.CancelledError:
            self._cut = _without_chain_id(calls)  # `attempt` reads it before any other task runs
            raise
        outcome: NodeOutcome = "ok" if served_id == self._chain_id else "other_chain"
        self._observe(outcome, self._clock() - started_s, _without_chain_id(calls))
        if served_id != self._chain_id:
            raise WrongChain(
                f"it serves {describe_network(served_id)}. Correct its URL in rpc_urls (in the environment: "
                "TOLLWAY_RPC_… with the name of the preset), or the preset or chain_id of the network"
            )
        return results

    async def _send(
        self, session: aiohttp.ClientSession, body: bytes, *, calls_count: int, sends_max: int
    ) -> bytes:
        """Sends a read once more when the node had closed its pooled connection: reads may be repeated."""
        for sends_left in reversed(range(sends_max)):
            if self._on_request is not None:
                self._on_request(calls_count)
            try:
                async with session.post(self._url, data=body, allow_redirects=False) as response:
                    return await self._read(response)
            except (aiohttp.ClientError, OSError, ValueError) as exc:
                # `from None`: the text of the exception may hold the URL, and the URL a key.
                if not (sends_left and _is_stale_connection(exc)):
                    raise UnusableResponse(f"the request failed ({type(exc).__name__})") from None
        raise UnusableResponse("the node keeps closing the connection")

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        if response.status != _HTTP_OK:
            response.close()
            kind = BatchRefused if response.status in _REFUSING_STATUSES else UnusableResponse
            raise kind(f"the node returned HTTP status {response.status}")
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > self._limits.rpc_response_bytes_max:
                response.close()
                raise UnusableResponse("the response is too large")
        return bytes(body)


def _without_chain_id(calls: Sequence[RpcCall]) -> Sequence[RpcCall]:
    return calls[:-1] if calls[-1] is CHAIN_ID_CALL else calls


def _is_stale_connection(exc: Exception) -> bool:
    return isinstance(exc, aiohttp.ServerDisconnectedError | ConnectionResetError | BrokenPipeError)


T = TypeVar("T")

NodeRead = Callable[[RpcNode], Awaitable[T]]


class NodePool:
    """The nodes of one chain. `agreement_min`: how many must return equal reports. `is_by_value`: small values need one node only (`Quorum.ONE`)."""

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
        """The nodes in the operator's order; nodes that failed recently come last."""
        return sorted(self._nodes, key=attrgetter("is_deferred"))

    @property
    def statuses(self) -> tuple[NodeStatus, ...]:
        return tuple(node.status for node in self._nodes)

    async def attempt(
        self, node: RpcNode, read: NodeRead[T], *, failures: list[str], deadline_s: float
    ) -> T | None:
        """Reads from one node. None when its response is unusable; the reason is added to `failures`."""
        try:
            async with node.attempt(deadline_s):
                return await read(node)
        except UnusableResponse as exc:
            failures.append(f"{node.label}: {exc}")
            return None

    async def read_first(self, read: NodeRead[T], *, deadline_s: float) -> T:
        """The first usable response of a node."""
        reports = await self.read_agreeing(
            read, compared=lambda report: None, quorum=Quorum.ONE, deadline_s=deadline_s
        )
        return reports[0]

    async def read_agreeing(
        self, read: NodeRead[T], *, compared: Callable[[T], object], quorum: Quorum, deadline_s: float
    ) -> list[T]:
        """Reads from the nodes in order until as many responses as `quorum` needs have the same `compared`; returns these."""
        count = self.count_needed(quorum)
        failures: list[str] = []
        reports: list[tuple[RpcNode, T]] = []
        for node in self.in_order:
            report = await self.attempt(node, read, failures=failures, deadline_s=deadline_s)
            if report is None:
                continue
            if count == 1:
                return [report]
            reports.append((node, report))
            equal = [other for _, other in reports if compared(other) == compared(report)]
            if len(equal) >= count:
                for other_node, other in reports:
                    if compared(other) != compared(report):
                        other_node.note_disagreement()
                return equal
        if reports:
            failures.append(f"{count} of the nodes must agree, and {len(reports)} responded")
        raise self.unavailable(failures)

    async def check(self, read: NodeRead[object], *, deadline_s: float) -> None:
        """Reads from all nodes at once. Raises `ChainUnavailable` when fewer nodes respond than the smallest payment needs, and
        `ChainMismatch` when a node serves another chain: fail-over would hide this mistake in the settings.
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
            mismatch = ChainMismatch(
                f"A node of {format_network(self._chain_id)} serves another chain. Send the same request later, or report it to the operator."
            )
            for wrong in wrong_chain:
                mismatch.add_note(wrong)
            raise mismatch
        if sum(task.result() for task in checks) < self.count_needed(self.least_quorum):
            raise self.unavailable(failures)

    def unavailable(self, failures: Sequence[str], *, is_disputed: bool = False) -> ChainUnavailable:
        """The error of this chain. Its detail is public, so names and faults of nodes are notes, which only the operator's log has."""
        kind = NodesDisagree if is_disputed else ChainUnavailable
        exc = kind(
            f"No node of {format_network(self._chain_id)} gave a usable response. Send the same request again after Retry-After."
        )
        for failure in failures or ["no node is configured"]:
            exc.add_note(failure)
        return exc


HEADS_DEADLINE_S = 5.0
"""The longest time for which an edit waits for the heads of its networks."""


async def read_head_times(
    chains: WatchedChain, chain_ids: Iterable[ChainId], *, deadline_s: float = HEADS_DEADLINE_S
) -> dict[ChainId, int]:
    """Reads the newest block of each chain at once: unix seconds. A chain without a response in time is left out. Never raises."""
    found: dict[ChainId, int] = {}

    async def read(chain_id: ChainId) -> None:
        with contextlib.suppress(ChainUnavailable, TimeoutError):
            async with asyncio.timeout(deadline_s):
                found[chain_id] = (await chains.fetch_tip(chain_id)).head_time

    async with asyncio.TaskGroup() as group:
        for chain_id in frozenset(chain_ids) & frozenset(chains.chain_ids):
            group.create_task(read(chain_id))
    return found


AWAY_INTERVAL_S = 10.0

_NEVER_SERVED = float("-inf")


class NodeHealth:
    """Checks which networks have working nodes. A network counts as away until its first check. `clock`: monotonic seconds."""

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
        """`chain_8453` -> whether its nodes served it at the last check."""
        return {f"chain_{chain_id}": since is None for chain_id, since in self._away_since.items()}

    def away_s(self, chain_id: ChainId) -> float | None:
        """How long a network has been away, in seconds: None while its nodes serve it, infinity where they never did."""
        since = self._away_since[chain_id]
        return None if since is None else self._clock() - since

    def count_lost(self) -> int:
        """The number of networks that have been away for so long that another gateway may reach them. A network that was never
        reached counts at once: a gateway that starts without its nodes must not take over from others."""
        longest = self._clock() - self._limits.chain_away_s
        return sum(since is not None and since <= longest for since in self._away_since.values())

    async def check_due(self) -> None:
        """Checks the networks that are away, and all networks every `chain_check_interval_s`. Call it every `AWAY_INTERVAL_S`."""
        if self._clock() - self._checked_s >= self._limits.chain_check_interval_s:
            await self.find_wrong_chain_nodes()
            return
        for chain_id in [chain_id for chain_id, since in self._away_since.items() if since is not None]:
            await self._check(chain_id)

    async def find_wrong_chain_nodes(self) -> list[str]:
        """A line for each node that serves another chain than the configured one. A network that is away is only logged."""
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
