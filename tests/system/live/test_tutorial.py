"""docs/tutorial.md runs as printed: a gateway, a provider and a caller, each in a folder of its own, on a chain with the id and the dollar of Base Sepolia.

Replaced: the URLs of the node, the gateway and the API, which lead to this machine, and `api_…` by the id of the listing. Not run: `NOT_RUN`.
"""

import re
import secrets
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from eth_account import Account

from tests.kit.page_blocks import Machine, PageBlock, read_blocks
from tests.kit.ports import find_low_ports
from tollway.config.settings import SETTING_NAMES, Settings
from tollway.ids import Address
from tollway.sandbox.chain import ChainDriver, Playground

PAGE = Path(__file__).parents[3] / "docs" / "tutorial.md"
BLOCKS = read_blocks(PAGE.read_text())
NOT_RUN = [
    ("pip install", "it installs from the package index"),
    ("caddy reverse-proxy", "it needs a public name and ports 80 and 443"),
    ("pip install", "it installs from the package index"),
]
"""The faucets are links in the text; the test funds the wallets on its chain instead."""
READY_DEADLINE_S = 60.0
API_ID = re.compile(r"api_[0-9a-z]{26}")


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[dict[str, Machine]]:
    operator = {
        "TOLLWAY_ALLOW_PRIVATE_ENDPOINTS": "true",
        "TOLLWAY_ADMIN_LISTEN": "off",
    }
    found = {
        "operator": Machine(folder=tmp_path / "operator", env=operator),
        "provider": Machine(folder=tmp_path / "provider"),
        "caller": Machine(folder=tmp_path / "caller"),
    }
    yield found
    for machine in found.values():
        machine.stop()


def test_every_block_runs_or_says_why_not() -> None:
    skipped = [block for block in BLOCKS if block.why_not_run]
    assert [block.why_not_run for block in skipped] == [why for _, why in NOT_RUN]
    assert all(command in block.text for block, (command, _) in zip(skipped, NOT_RUN, strict=True))
    marked = {"operator", "provider", "caller", "settings"}
    assert {block.machine for block in BLOCKS if not block.why_not_run} == marked


def test_settings_of_the_main_network_are_valid() -> None:
    (block,) = (block for block in BLOCKS if block.machine == "settings")
    table = tomllib.loads(block.text)
    assert set(table) <= {*SETTING_NAMES, "networks", "limits"}
    key = "0x" + "5e" * 32
    table["networks"] = [{**network, "gas_keys": [key]} for network in table["networks"]]
    settings = Settings.model_validate({**table, "secret_key": secrets.token_hex(32)})
    (network,) = settings.networks
    assert (network.rules.chain_id, network.agreement_min) == (8453, 2)


async def test_a_reader_reaches_the_first_dollar(
    machines: dict[str, Machine], chain: ChainDriver, playground: Playground
) -> None:
    gateway_port, api_port = find_low_ports(2)
    machines["operator"].env = {
        **machines["operator"].env,
        "TOLLWAY_LISTEN": f"127.0.0.1:{gateway_port}",
    }
    replaced = {
        "https://sepolia.base.org": chain.rpc_url,
        "https://gateway.example.com": f"http://127.0.0.1:{gateway_port}",
        "https://api.example.com": f"http://127.0.0.1:{api_port}",
        "api.py 9000": f"api.py {api_port}",
    }
    servers = {
        "operator": f"http://127.0.0.1:{gateway_port}/readyz",
        "provider": f"http://127.0.0.1:{api_port}/",
    }
    for block in BLOCKS:
        if block.why_not_run or block.machine == "settings":
            continue
        machine, text = machines[block.machine], block.text
        for old, new in replaced.items():
            text = text.replace(old, new)
        if found := API_ID.findall("".join(each.output for each in machines.values())):
            text = text.replace("api_…", found[-1])
        run_block(block, text, machine, server_url=servers.get(block.machine, ""))
        await fund_new_wallets(machines, chain, playground)
    caller = machines["caller"].output
    assert "1137.94" in caller
    assert "The year in prices" in caller
    provider = Address.parse(read_address(machines["provider"].folder / "provider.key"))
    assert await chain.call(playground.token, "balanceOf", provider) == 1_010_000


def run_block(block: PageBlock, text: str, machine: Machine, *, server_url: str) -> None:
    if block.file_name is not None:
        machine.write(block.file_name, text)
    elif block.keeps_running:
        server = machine.start(text.strip())
        deadline = time.monotonic() + READY_DEADLINE_S
        while not is_up(server_url):
            log = machine.folder / "server.log"
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
    else:
        machine.run(text)


def is_up(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False, timeout=5).status_code < 500
    except httpx.TransportError:
        return False


async def fund_new_wallets(machines: dict[str, Machine], chain: ChainDriver, playground: Playground) -> None:
    """What the faucets of the page do: a little ETH for the gas key, dollars for the caller and nothing for the provider."""
    gas, caller = machines["operator"].folder / "gas.key", machines["caller"].folder / "caller.key"
    if gas.exists():
        await chain.set_native_balance(Address.parse(read_address(gas)), 5 * 10**15)
    if caller.exists() and not await chain.call(
        playground.token, "balanceOf", Address.parse(read_address(caller))
    ):
        minter = playground.account("stranger").key
        minted = await chain.transact(
            playground.token, "mint", Address.parse(read_address(caller)), 2_000_000, key=minter
        )
        assert (await chain.wait_receipt(minted)).succeeded


def read_address(key_file: Path) -> str:
    return str(Account.from_key(key_file.read_text().strip()).address)
