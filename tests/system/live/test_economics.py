"""The gas that the documentation states is what the transactions of the demo use on the sandbox's chain."""

from typing import Any

import pytest

from docsite.economics import CLAIM, DEPOSIT, MEASURED, SETTLEMENT, TRANSFER
from tollway.chain.abi_words import compute_selector
from tollway.chain.channel_contract import SETTLEMENT_CONTRACT
from tollway.cli.demo_run import DemoOptions, open_environment
from tollway.sandbox.tour import Tour

pytestmark = pytest.mark.live
REST_BYTES = 110
TOLERANCE = 0.05
"""Addresses, sums and signatures differ in each run, and a zero byte costs less; a balance that was zero costs more."""


async def test_the_gas_in_the_documentation_is_what_the_sandbox_uses() -> None:
    options = DemoOptions(is_once=True, port=0, chain_port=0, sandbox_file=None)
    async with open_environment(options) as environment:
        tour = Tour(
            gateway_url=environment.gateway_url,
            upstream_url=environment.provider.base_url,
            put_file=environment.provider.put_file,
            driver=environment.driver,
            playground=environment.playground,
            http=environment.http,
            report=lambda event: None,
            claim=environment.claim,
        )
        await tour.run()
        found = await list_transactions(environment.driver)
    token = str(environment.playground.token.address).lower()
    places = {
        TRANSFER.name: (token, "transfer(address,uint256)"),
        SETTLEMENT.name: (
            token,
            "transferWithAuthorization(address,address,uint256,uint256,uint256,bytes32,uint8,bytes32,bytes32)",
        ),
        DEPOSIT.name: (
            str(SETTLEMENT_CONTRACT).lower(),
            "deposit((address,address,address,address,address,uint40,bytes32),uint128,address,bytes)",
        ),
        CLAIM.name: (str(SETTLEMENT_CONTRACT).lower(), "multicall(bytes[])"),
    }
    measured = {}
    for name, (to, signature) in places.items():
        selector = "0x" + compute_selector(signature).hex()
        own = [one for one in found if (one["to"] or "").lower() == to and one["input"][:10] == selector]
        assert own, name
        # The last one: the balance of its receiver is not zero any more.
        measured[name] = (int(own[-1]["gasUsed"], 16), len(own[-1]["input"]) // 2 - 1 + REST_BYTES)
    stated = {one.name: (one.gas, one.size_bytes) for one in MEASURED}
    for name, numbers in measured.items():
        assert numbers == pytest.approx(stated[name], rel=TOLERANCE), measured


async def list_transactions(driver: Any) -> list[dict[str, Any]]:
    """Those of all blocks, the oldest first, with what they used."""
    head = int(await driver.rpc("eth_blockNumber"), 16)
    found = []
    for number in range(head + 1):
        block = await driver.rpc("eth_getBlockByNumber", hex(number), True)
        for one in block["transactions"]:
            receipt = await driver.rpc("eth_getTransactionReceipt", one["hash"])
            found.append({**one, "gasUsed": receipt["gasUsed"]})
    return found
