"""Contract wallets before their deployment, on a real node: the code of Multicall3 at its address, and factories that make
wallets at known addresses. Loaded by tests of payments that deploy a wallet (ERC-6492)."""

import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.payer import wrap
from tollway.chain.multicall import MULTICALL3
from tollway.ids import Address
from tollway.sandbox.chain import Artifact, ChainDriver, Contract, load_artifact

ROOT = Path(__file__).parents[2]
CONTRACTS = ROOT / "tests/system/live/contracts"
_CONSTANTS = ROOT / "node_modules/viem/_cjs/constants/contracts.js"
_BYTECODE = re.compile(r"exports\.multicall3Bytecode = '0x([0-9a-f]+)'")


async def install_multicall(driver: ChainDriver, *, key: bytes) -> None:
    """Puts the code of Multicall3, as viem ships it, at its address. A new chain does not have it."""
    found = _BYTECODE.search(_CONSTANTS.read_text())
    assert found is not None, "viem ships the code of Multicall3"
    artifact = Artifact(
        name="Multicall3",
        functions=(),
        constructor_inputs=(),
        creation_code=bytes.fromhex(found[1]),
        runtime_code=b"",
    )
    deployed = await driver.deploy(artifact, key=key)
    code = await driver.rpc("eth_getCode", str(deployed.address), "latest")
    await driver.set_code(MULTICALL3, bytes.fromhex(code[2:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeployedWallet:
    """A wallet that `calldata` of `factory` makes at `address`. `made_of`: the code and the salt, of an `OpenFactory`."""

    driver: ChainDriver
    address: Address
    factory: Address
    calldata: bytes
    made_of: tuple[bytes, bytes] = (b"", b"")

    def calling(self, factory: Contract, to: Address, payload: bytes) -> bytes:
        """Calldata of an `OpenFactory` that makes the wallet and then calls that contract."""
        return factory.artifact.function("createAndCall").encode((*self.made_of, str(to), payload))

    def wrap(self, inner: bytes, **changes: Any) -> bytes:
        return wrap(inner, **{"factory": self.factory, "calldata": self.calldata, **changes})

    async def has_code(self) -> bool:
        return bool(await self.driver.rpc("eth_getCode", str(self.address), "latest") != "0x")

    async def deploy(self, *, key: bytes) -> None:
        """Makes it, as any other account can."""
        sent = await self.driver.send(key=key, to=self.factory, payload=self.calldata)
        assert (await self.driver.wait_receipt(sent)).succeeded


async def plan_owned_wallet(driver: ChainDriver, factory: Contract, owner: Address) -> UndeployedWallet:
    """An `OwnedWallet` of an `OwnedWalletFactory`, each time another one."""
    arguments = (str(owner), secrets.token_bytes(32))
    return UndeployedWallet(
        driver=driver,
        address=Address.parse(await driver.call(factory, "addressOf", *arguments)),
        factory=factory.address,
        calldata=factory.artifact.function("create").encode(arguments),
    )


async def plan_open_wallet(
    driver: ChainDriver, factory: Contract, name: str, *arguments: object, by: str = "create"
) -> UndeployedWallet:
    """A wallet of that code, by that function of an `OpenFactory`, which takes the code and a salt."""
    code = load_artifact(CONTRACTS / f"{name}.json").encode_creation(arguments)
    salt = secrets.token_bytes(32)
    return UndeployedWallet(
        driver=driver,
        address=Address.parse(await driver.call(factory, "addressOf", code, salt)),
        factory=factory.address,
        calldata=factory.artifact.function(by).encode((code, salt)),
        made_of=(code, salt),
    )
