"""The image, the units and the alerts run on the chain and the gateways of `tests/system/live`."""

from tests.system.live.conftest import (
    anvil,
    caller,
    chain,
    cluster,
    forkserver,
    furnished,
    own_chain_cluster,
    playground,
    postgres_server,
    postgres_template,
    provider_account,
    scenarios,
    stranger,
)

__all__ = [
    "anvil",
    "caller",
    "chain",
    "cluster",
    "forkserver",
    "furnished",
    "own_chain_cluster",
    "playground",
    "postgres_server",
    "postgres_template",
    "provider_account",
    "scenarios",
    "stranger",
]
