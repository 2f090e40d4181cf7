"""The image, the units and the alerts run on the chain and the gateways of `tests/system/live`."""

from tests.system.live.conftest import (
    caller,
    chain,
    cluster,
    own_chain_cluster,
    playground,
    provider_account,
    scenarios,
    stranger,
)

__all__ = [
    "caller",
    "chain",
    "cluster",
    "own_chain_cluster",
    "playground",
    "provider_account",
    "scenarios",
    "stranger",
]
