"""What the client library imports: a caller waits for it, and installs it, before a call is made."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tollway.client

GATEWAY_PARTS = {
    f"tollway.{name}"
    for name in (
        "app",
        "config",
        "discovery",
        "gateway",
        "ledger",
        "limits",
        "outbound",
        "registry",
        "storage",
        "telemetry",
        "web",
    )
}
OTHER_ROLES = {
    "aiohttp",
    "eth_account",
    "granian",
    "jsonschema",
    "mcp",
    "pydantic",
    "sqlalchemy",
    "starlette",
    "structlog",
    "web3",
}
HTTP_CLIENT = {"httpx", "httpcore", "asyncio"}


def list_imports(code: str) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(ran.stdout.split())


@pytest.mark.process
def test_the_package_alone_imports_nothing_of_itself() -> None:
    imported = {name for name in list_imports("import tollway.client") if name.startswith("tollway")}
    assert imported == {"tollway", "tollway.client"}


@pytest.mark.process
def test_a_wallet_imports_no_http_client() -> None:
    assert (
        list_imports("from tollway.client import Wallet, create_key_file") & (HTTP_CLIENT | OTHER_ROLES)
        == set()
    )


@pytest.mark.process
def test_the_whole_client_imports_nothing_of_the_gateway_and_of_other_extras() -> None:
    imported = list_imports("import tollway.client as c; [getattr(c, name) for name in c.__all__]")
    assert imported & (GATEWAY_PARTS | OTHER_ROLES) == set()


def test_every_exported_name_has_its_module() -> None:
    assert all(hasattr(tollway.client, name) for name in tollway.client.__all__)
    assert dir(tollway.client) == sorted(tollway.client.__all__)


def test_a_type_checker_sees_the_exported_names() -> None:
    """Each is imported there as itself, which makes it public."""
    source = Path(tollway.client.__file__).read_text()
    seen = re.findall(r"^    from tollway\.client\.\w+ import (\w+) as \1$", source, re.MULTILINE)
    assert sorted(seen) == tollway.client.__all__


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Purse'"):
        tollway.client.Purse  # noqa: B018
