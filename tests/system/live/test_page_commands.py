"""The commands that docs/providers.md, docs/callers.md, docs/accounting.md and docs/operators.md print, as a provider, a caller and an operator run them: the blocks with
`<!-- run by: tests/system/live/test_page_commands.py -->`, against one gateway with paid calls.

Replaced: ids and hosts by those of the test, the path of the sample API, and dates by dates around today.
"""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.kit.gateway_cluster import PRICE_UNITS, GatewayCluster, plain
from tests.kit.page_blocks import Machine, PageBlock, read_blocks
from tests.kit.ports import find_low_ports
from tollway.sandbox.chain import FundedAccount

DOCS = Path(__file__).parents[3] / "docs"
NAME = "tests/system/live/test_page_commands.py"
PAGES = ("providers.md", "callers.md", "accounting.md", "operators.md")
BLOCKS = [(page, block) for page in PAGES for block in read_blocks((DOCS / page).read_text()) if block.runner == NAME]  # fmt: skip
STEPS = (
    ("providers.md", "listing test", "provider"),
    ("providers.md", "listing earnings", "provider"),
    ("callers.md", "wallet spending", "caller"),
    ("accounting.md", "calls.csv", "caller"),
    ("accounting.md", "--receipt", "caller"),
    ("accounting.md", "receipt verify", "caller"),
    ("operators.md", "admin link", "operator"),
    ("providers.md", "listing retire", "provider"),
)
"""Page, words of the block, and its machine, in the order of the run."""

pytestmark = pytest.mark.asyncio(loop_scope="module")


def find_block(page: str, words: str) -> PageBlock:
    (block,) = [block for name, block in BLOCKS if name == page and words in block.text]
    return block


def adapt(text: str, replaced: dict[str, str]) -> str:
    today = datetime.now(UTC).date()
    dates = {"2026-11-01": today - timedelta(days=1), "2026-12-01": today + timedelta(days=1)}
    for old, new in {**replaced, **{old: new.isoformat() for old, new in dates.items()}}.items():
        text = re.sub(rf"(?<![\w-]){re.escape(old)}", new, text)
    return text


async def test_the_commands_of_the_pages_run(cluster: GatewayCluster, tmp_path: Path) -> None:
    provider, caller = await cluster.wallets(2)
    (admin_port,) = find_low_ports(1)
    settings = {"TOLLWAY_ADMIN_LISTEN": f"127.0.0.1:{admin_port}"}
    async with cluster.gateway(settings=settings) as gateway:

        def make_machine(name: str, account: FundedAccount) -> Machine:
            machine = Machine(folder=tmp_path / name, env={"TOLLWAY_GATEWAY": gateway.base_url, "TOLLWAY_KEY_FILE": "w.key"})  # fmt: skip
            machine.write("w.key", f"0x{account.key.hex()}\n")
            (machine.folder / "w.key").chmod(0o600)
            return machine

        given = {name: value for name, value in gateway.env.items() if name.startswith("TOLLWAY_")}
        machines = {
            "provider": make_machine("provider", provider),
            "caller": make_machine("caller", caller),
            "operator": Machine(folder=tmp_path / "operator", env=given),
        }
        api_id = await cluster.publish(gateway, provider)
        tx_hash = await cluster.send_tokens(caller, provider.address, 10 * PRICE_UNITS)
        reply = await cluster.call(gateway, api_id, "/quote/ETH", headers=plain(caller, tx_hash))
        assert reply.state == "charged"
        replaced = {
            "ID": api_id,
            "/cities/Vienna": "/quote/ETH",
            "call_…": reply.headers["Tollway-Call-Id"],
            "https://gateway.example": gateway.base_url,
        }
        printed = {}
        for page, words, name in STEPS:
            text = adapt(find_block(page, words).text, replaced)
            printed[words] = await asyncio.to_thread(machines[name].run, text)
    folder = machines["caller"].folder
    assert (folder / "calls.csv").read_text().count("\n") == 2  # the header, and one call
    assert '"valid": true' in printed["receipt verify"]
    assert f"http://127.0.0.1:{admin_port}/enter?code=" in printed["admin link"]
    assert '"charged"' in printed["wallet spending"]
    assert '"retired"' in printed["listing retire"]


async def test_every_block_of_this_file_is_run() -> None:
    run = [(page, find_block(page, words)) for page, words, _ in STEPS]
    assert sorted(run, key=str) == sorted(BLOCKS, key=str)
