"""The nodes of one chain: in which order they are asked, and when their word is enough.

It never guesses: a node that fails, lies about its chain or contradicts itself is passed over for the next one, and
when none is left the answer is `ChainUnavailable`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tollway.chain.answers import UnusableResponse
from tollway.chain.node import RpcNode, WrongChain
from tollway.chain.reader import Quorum
from tollway.errors import ChainMismatch, ChainUnavailable, NodesDisagree
from tollway.identifiers import ChainId, format_network

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
