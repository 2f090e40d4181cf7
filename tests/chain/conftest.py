"""Chain nodes on loopback, and what a node reports about its requests."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.kit.scripted_node import ScriptedNode
from tollway.chain.nodes import RpcCall
from tollway.ids import ChainId


@pytest.fixture
async def make_node() -> AsyncIterator[Callable[[], Awaitable[tuple[ScriptedNode, str]]]]:
    """Starts a node; gives its script and its URL."""
    servers: list[TestServer] = []

    async def make() -> tuple[ScriptedNode, str]:
        node = ScriptedNode()
        app = web.Application()
        app.router.add_post("/{tail:.*}", node.serve)
        server = TestServer(app)
        await server.start_server(shutdown_timeout=0.01)
        servers.append(server)
        return node, str(server.make_url("/"))

    yield make
    for server in servers:
        await server.close()


@pytest.fixture
async def node(make_node) -> tuple[ScriptedNode, str]:
    return await make_node()


@pytest.fixture
def script(node: tuple[ScriptedNode, str]) -> ScriptedNode:
    """The script of one node, which `url` leads to."""
    return node[0]


@pytest.fixture
def url(node: tuple[ScriptedNode, str]) -> str:
    return node[1]


class SeenNode:
    """Records what a node reports about its requests."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[ChainId, int, str]] = []
        self.seconds: list[float] = []
        self.head_times: list[int] = []
        self.disagreements: list[int] = []
        self.methods: list[tuple[str, ...]] = []

    def count_request(
        self, chain_id: ChainId, position: int, outcome: str, seconds: float, calls: Sequence[RpcCall]
    ) -> None:
        self.outcomes.append((chain_id, position, outcome))
        self.seconds.append(seconds)
        self.methods.append(tuple(method for method, _ in calls))

    def set_head_time(self, chain_id: ChainId, position: int, block_time_s: int) -> None:
        self.head_times.append(block_time_s)

    def count_disagreement(self, chain_id: ChainId, position: int) -> None:
        self.disagreements.append(position)


@pytest.fixture
def seen() -> SeenNode:
    return SeenNode()
