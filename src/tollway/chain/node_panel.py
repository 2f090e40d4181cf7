"""The nodes of one chain: in which order they are asked, and when their word is enough.

It never guesses: a node that fails, lies about its chain or contradicts itself is passed over for the next one, and
when none is left the answer is `ChainUnavailable`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tollway.chain.answers import Unusable
from tollway.chain.node import Node, WrongChain
from tollway.chain.reader import Trust
from tollway.errors import ChainMismatch, ChainUnavailable, NodesDisagree
from tollway.identifiers import ChainId, format_network

T = TypeVar("T")

Read = Callable[[Node], Awaitable[T]]


class NodePanel:
    """Safe to use from many tasks at once. `agreement_min`: how many nodes must tell the same before it counts;
    `is_by_value`: only where much is at stake, and one is enough for all that does not say so."""

    def __init__(
        self, chain_id: ChainId, nodes: Sequence[Node], *, agreement_min: int = 1, is_by_value: bool = False
    ) -> None:
        self._chain_id = chain_id
        self._nodes = tuple(nodes)
        self._agreement_min = agreement_min
        self.least_trust = Trust.ONE if is_by_value else Trust.AGREED

    def count_needed(self, trust: Trust) -> int:
        return self._agreement_min if trust is Trust.AGREED else 1

    @property
    def in_order(self) -> list[Node]:
        """In the operator's order; those that failed within the last seconds come last."""
        return sorted(self._nodes, key=lambda node: node.is_last_choice)

    async def attempt(self, node: Node, read: Read[T], *, failures: list[str], deadline_s: float) -> T | None:
        """None when the node's answer cannot be used; the reason joins `failures`."""
        try:
            async with node.attempt(deadline_s):
                return await read(node)
        except Unusable as exc:
            failures.append(f"{node.label}: {exc}")
            return None

    async def ask_first(self, read: Read[T], *, deadline_s: float) -> T:
        """The first usable answer decides."""
        return (await self._ask_some(read, lambda answer: None, count=1, deadline_s=deadline_s))[0]

    async def ask_alike(
        self, read: Read[T], *, essence: Callable[[T], object], trust: Trust, deadline_s: float
    ) -> list[T]:
        """As many answers with one `essence` as `trust` takes. Nodes are asked until there are as many."""
        return await self._ask_some(read, essence, count=self.count_needed(trust), deadline_s=deadline_s)

    async def _ask_some(
        self, read: Read[T], essence: Callable[[T], object], *, count: int, deadline_s: float
    ) -> list[T]:
        failures: list[str] = []
        told: list[T] = []
        for node in self.in_order:
            answer = await self.attempt(node, read, failures=failures, deadline_s=deadline_s)
            if answer is None:
                continue
            told.append(answer)
            alike = [other for other in told if essence(other) == essence(answer)]
            if len(alike) >= count:
                return alike
        if told:
            failures.append(f"{count} of the nodes must agree, and {len(told)} answered")
        raise self.unavailable(failures)

    async def check(self, ask: Read[object], *, deadline_s: float) -> None:
        """Asks all nodes at once. Raises `ChainUnavailable` when too few answer for the least payment, and `ChainMismatch`
        when any of them serves another chain: that is a mistake in the settings which fail-over would hide.
        """
        failures: list[str] = []
        strays: list[str] = []

        async def check(node: Node) -> bool:
            try:
                async with node.attempt(deadline_s):
                    await ask(node)
            except WrongChain as exc:
                strays.append(f"{node.label}: {exc}")
            except Unusable as exc:
                failures.append(f"{node.label}: {exc}")
            else:
                return True
            return False

        async with asyncio.TaskGroup() as group:
            checks = [group.create_task(check(node)) for node in self._nodes]
        if strays:
            mismatch = ChainMismatch(f"a node of {format_network(self._chain_id)} serves another chain")
            for stray in strays:
                mismatch.add_note(stray)
            raise mismatch
        if sum(task.result() for task in checks) < self.count_needed(self.least_trust):
            raise self.unavailable(failures)

    def unavailable(self, failures: Sequence[str], *, is_disputed: bool = False) -> ChainUnavailable:
        """The detail is public, so the nodes' names and faults go into notes, which only the operator's log shows."""
        kind = NodesDisagree if is_disputed else ChainUnavailable
        exc = kind(f"no node of {format_network(self._chain_id)} gave a usable answer")
        for failure in failures or ["no node is configured"]:
            exc.add_note(failure)
        return exc
