"""Gateways in forked processes, for the attacks."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest

from tests.kit.forkserver import Forkserver
from tests.system.attack.attacked_gateway import AttackedGateway, run_attacked_gateway


@pytest.fixture(scope="session")
def run_gateway(
    forkserver: Forkserver,
) -> Callable[..., AbstractAsyncContextManager[AttackedGateway]]:
    """`run_attacked_gateway` in a process that has everything imported."""
    return partial(run_attacked_gateway, forkserver=forkserver)
