"""Which networks are served: the last answer counts, and a stray is told apart from an absence."""

from collections.abc import Callable

from structlog.testing import capture_logs

from tollway.chain.roll_call import RollCall
from tollway.errors import ChainMismatch, ChainUnavailable
from tollway.identifiers import ChainId

BASE, OTHER = ChainId(8453), ChainId(10)


class Chains:
    """Nodes that serve, are away, or serve another chain."""

    def __init__(self) -> None:
        self.faults: dict[ChainId, Callable[[], Exception]] = {}

    async def check_chain(self, chain_id: ChainId) -> None:
        if chain_id in self.faults:
            raise self.faults[chain_id]()


def stray() -> Exception:
    exc = ChainMismatch()
    exc.add_note("node 1 of eip155:8453: it serves chain 1")
    return exc


async def test_the_last_answer_of_each_network_counts() -> None:
    chains = Chains()
    call = RollCall(chains, [BASE, OTHER])  # type: ignore[arg-type]
    assert call.checks == {"chain_8453": False, "chain_10": False}
    chains.faults[OTHER] = ChainUnavailable
    with capture_logs() as logs:
        await call.ask()
    assert call.checks == {"chain_8453": True, "chain_10": False}
    assert [(line["event"], line["chain_id"]) for line in logs] == [("chain_not_ready", OTHER)]
    chains.faults = {BASE: ChainUnavailable}
    await call.ask()
    assert call.checks == {"chain_8453": False, "chain_10": True}


async def test_only_a_node_of_another_chain_is_a_stray() -> None:
    chains = Chains()
    chains.faults = {BASE: stray, OTHER: ChainUnavailable}
    call = RollCall(chains, [BASE, OTHER])  # type: ignore[arg-type]
    assert await call.find_strays() == ["node 1 of eip155:8453: it serves chain 1"]
    assert not any(call.checks.values())
