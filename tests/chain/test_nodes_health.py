"""The health of networks: the last check counts; a node of another chain, an absence and a lasting absence are distinguished."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from structlog.testing import capture_logs

from tests.kit.chain import MemoryChain
from tollway.chain.nodes import NodeHealth, read_head_times
from tollway.errors import ChainMismatch, ChainUnavailable
from tollway.ids import ChainId
from tollway.limits import DEFAULT_LIMITS

BASE, OTHER = ChainId(8453), ChainId(10)
LIMITS = replace(DEFAULT_LIMITS, chain_away_s=30.0)


class Chains:
    """Nodes that serve, are away, or serve another chain."""

    def __init__(self) -> None:
        self.faults: dict[ChainId, Callable[[], Exception]] = {}
        self.asked: list[ChainId] = []
        self.now_s = 1_000.0

    def make_call(self) -> NodeHealth:
        return NodeHealth(self, [BASE, OTHER], limits=LIMITS, clock=lambda: self.now_s)  # type: ignore[arg-type]

    async def check_chain(self, chain_id: ChainId) -> None:
        self.asked.append(chain_id)
        if chain_id in self.faults:
            raise self.faults[chain_id]()


def stray() -> Exception:
    exc = ChainMismatch()
    exc.add_note("node 1 of eip155:8453: it serves chain 1")
    return exc


async def test_the_last_check_of_each_network_counts() -> None:
    chains = Chains()
    call = chains.make_call()
    assert call.checks == {"chain_8453": False, "chain_10": False}
    chains.faults[OTHER] = ChainUnavailable
    with capture_logs() as logs:
        await call.find_wrong_chain_nodes()
    assert call.checks == {"chain_8453": True, "chain_10": False}
    assert [(line["event"], line["chain_id"]) for line in logs] == [
        ("chain_ready", BASE),
        ("chain_not_ready", OTHER),
    ]
    chains.faults = {BASE: ChainUnavailable}
    await call.find_wrong_chain_nodes()
    assert call.checks == {"chain_8453": False, "chain_10": True}


async def test_only_nodes_of_another_chain_are_listed() -> None:
    chains = Chains()
    chains.faults = {BASE: stray, OTHER: ChainUnavailable}
    call = chains.make_call()
    assert await call.find_wrong_chain_nodes() == ["node 1 of eip155:8453: it serves chain 1"]
    assert not any(call.checks.values())


async def test_a_network_counts_as_lost_once_it_was_away_for_so_long() -> None:
    chains = Chains()
    call = chains.make_call()
    await call.find_wrong_chain_nodes()
    chains.faults[OTHER] = ChainUnavailable
    for now_s, lost in ((1_000.0, 0), (1_029.9, 0), (1_030.0, 1), (1_300.0, 1)):
        chains.now_s = now_s
        await call.find_wrong_chain_nodes()
        assert call.count_lost() == lost, now_s
    chains.faults[BASE] = stray  # nodes of another chain read nothing of this one
    await call.find_wrong_chain_nodes()
    chains.now_s += 30
    assert call.count_lost() == 2
    chains.faults = {}
    await call.check_due()
    assert call.count_lost() == 0


async def test_an_interrupted_absence_starts_again() -> None:
    chains = Chains()
    call = chains.make_call()
    for now_s, faults in ((1_000.0, {}), (1_010.0, {OTHER: ChainUnavailable}), (1_020.0, {})):
        chains.now_s, chains.faults = now_s, dict(faults)
        await call.find_wrong_chain_nodes()
    chains.now_s, chains.faults = 1_030.0, {OTHER: ChainUnavailable}
    await call.find_wrong_chain_nodes()
    chains.now_s = 1_045.0
    assert call.count_lost() == 0


async def test_a_network_that_was_never_served_is_lost_from_the_start() -> None:
    chains = Chains()
    call = chains.make_call()
    assert call.count_lost() == 2
    chains.faults[OTHER] = ChainUnavailable
    await call.find_wrong_chain_nodes()
    assert call.count_lost() == 1


async def test_between_full_checks_only_networks_that_are_away_are_checked() -> None:
    chains = Chains()
    call = chains.make_call()
    chains.faults[OTHER] = ChainUnavailable
    await call.check_due()
    assert chains.asked == [BASE, OTHER]
    chains.faults = {BASE: ChainUnavailable}
    with capture_logs() as logs:
        for now_s, asked in ((1_010.0, [OTHER]), (1_020.0, []), (1_059.9, []), (1_060.0, [BASE, OTHER])):
            chains.now_s = now_s
            chains.asked.clear()
            await call.check_due()
            assert chains.asked == asked, now_s
    assert [(line["event"], line["chain_id"]) for line in logs] == [
        ("chain_ready", OTHER),
        ("chain_not_ready", BASE),
    ]
    assert call.checks == {"chain_8453": False, "chain_10": True}


async def test_the_time_away_begins_with_the_first_failed_check() -> None:
    chains = Chains()
    health = chains.make_call()
    assert health.away_s(BASE) == float("inf")
    await health.find_wrong_chain_nodes()
    assert health.away_s(BASE) is None
    chains.faults[BASE] = ChainUnavailable
    for now_s, away_s in ((1_010.0, 0.0), (1_040.0, 30.0)):
        chains.now_s = now_s
        await health.find_wrong_chain_nodes()
        assert health.away_s(BASE) == away_s
    assert health.away_s(OTHER) is None


async def test_the_heads_of_networks_that_respond_are_read_at_once() -> None:
    chains = MemoryChain(BASE, OTHER)
    for chain_id, time in ((BASE, 1_900_000_000), (OTHER, 1_800_000_000)):
        chains.mine(chain_id, time=time)
    strange = ChainId(1)
    assert await read_head_times(chains, (BASE, OTHER, BASE, strange)) == {
        BASE: 1_900_000_000,
        OTHER: 1_800_000_000,
    }
    chains.disconnect(OTHER)
    assert await read_head_times(chains, (BASE, OTHER)) == {BASE: 1_900_000_000}
    chains.barrier = asyncio.Event()
    assert await read_head_times(chains, (BASE, OTHER), deadline_s=0) == {}
