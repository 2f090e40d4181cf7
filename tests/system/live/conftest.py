"""The fixtures of live tests. Each test starts from the same state of the chain of the test process (snapshot and revert). Ports are free ones.

`scenarios` makes the chain situations that the verification of payments decides about. Contracts of tests are in
`contracts/`.
"""

import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from eth_account import Account

from tests.kit.databases import create_database
from tests.kit.forkserver import Forkserver
from tests.kit.gateway_cluster import GatewayCluster, run_cluster
from tests.kit.payer import AUTHORIZATION_TYPES
from tests.kit.stranded_transactions import resend_stranded
from tollway.ids import Address, TxHash
from tollway.sandbox.chain import (
    Anvil,
    ChainDriver,
    Contract,
    FundedAccount,
    MinedReceipt,
    Playground,
    load_artifact,
    run_anvil,
)

CONTRACTS = Path(__file__).parent / "contracts"
HERE = Path(__file__).parent

_DATABASES = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test of this folder: it needs the chain."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.live)


@pytest.fixture
async def chain(anvil: Anvil, furnished: Playground) -> AsyncIterator[ChainDriver]:
    """The chain. After the test it returns to its state before the test, with an empty pool: a transaction that is left in the pool
    would make the node refuse the same nonce of the next test."""
    async with aiohttp.ClientSession() as session:
        driver = ChainDriver(session, anvil.rpc_url, anvil.chain_id)
        before = await driver.snapshot()
        try:
            async with resend_stranded(driver):
                yield driver
        finally:
            await driver.rpc("anvil_dropAllTransactions")
            await driver.revert(before)


@pytest.fixture
def playground(chain: ChainDriver, furnished: Playground) -> Playground:
    """Token, assets and funded accounts. It depends on `chain`, so its state is reverted too."""
    return furnished


@pytest.fixture
def provider_account(playground: Playground) -> FundedAccount:
    return playground.account("provider")


@pytest.fixture
def caller(playground: Playground) -> FundedAccount:
    return playground.account("caller")


@pytest.fixture
def stranger(playground: Playground) -> FundedAccount:
    return playground.account("stranger")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(
    anvil: Anvil,
    furnished: Playground,
    forkserver: Forkserver,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> AsyncIterator[object]:
    """Chain, sample provider and gateways in processes of their own, for all tests of one file."""
    folder = tmp_path_factory.mktemp("cluster")
    async with open_cluster(anvil, furnished, forkserver, folder=folder, request=request) as cluster:
        yield cluster


@contextlib.asynccontextmanager
async def open_cluster(
    anvil: Anvil,
    furnished: Playground,
    forkserver: Forkserver,
    *,
    folder: Path,
    request: pytest.FixtureRequest,
) -> AsyncIterator[GatewayCluster]:
    """A cluster on the chain of the session. `request` finds the PostgreSQL server, when a test makes a database in it."""

    async def make_postgres() -> str:
        server = request.getfixturevalue("postgres_server")
        template = request.getfixturevalue("postgres_template")
        return await create_database(server, f"live_{next(_DATABASES)}", template=template)

    async with run_cluster(
        anvil, furnished, folder=folder, forkserver=forkserver, make_postgres=make_postgres
    ) as cluster:
        # A revert to a snapshot sets the chain's clock back too. No snapshot is made here: a cluster has wallets of its own.
        await cluster.driver.rpc("evm_setTime", int(time.time()))
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def own_chain_cluster(
    forkserver: Forkserver, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[object]:
    """A cluster on its own chain, whose clock the tests of one file set."""
    folder = tmp_path_factory.mktemp("quiet")
    async with run_anvil() as anvil, run_cluster(anvil, folder=folder, forkserver=forkserver) as cluster:
        yield cluster


@pytest.fixture
def scenarios(chain: ChainDriver, playground: Playground) -> "ChainScenarios":
    return ChainScenarios(chain=chain, playground=playground)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainScenarios:
    """Makes transactions for the verification. Each is mined when its method returns; amounts are base units."""

    chain: ChainDriver
    playground: Playground
    _deployed: dict[str, Contract] = field(default_factory=dict)

    async def deploy(self, name: str, *arguments: object) -> Contract:
        """A new test-only contract."""
        artifact = load_artifact(CONTRACTS / f"{name}.json")
        return await self.chain.deploy(artifact, *arguments, key=self.playground.account("gas").key)

    async def standing(self, name: str) -> Contract:
        """A test-only contract without arguments, made once per test."""
        if name not in self._deployed:
            self._deployed[name] = await self.deploy(name)
        return self._deployed[name]

    async def mined(self, tx_hash: TxHash) -> MinedReceipt:
        return await self.chain.wait_receipt(tx_hash)

    async def pay_token(self, payer: FundedAccount, to: Address, amount: int) -> MinedReceipt:
        token = self.playground.token
        return await self.mined(await self.chain.send_token(key=payer.key, token=token, to=to, amount=amount))

    async def pay_native(self, payer: FundedAccount, to: Address, value: int) -> MinedReceipt:
        return await self.mined(await self.chain.send_native(key=payer.key, to=to, value=value))

    async def pay_native_inside(self, payer: FundedAccount, to: Address, value: int) -> MinedReceipt:
        """Pays by an internal transfer: `tx.to` is a contract."""
        forwarder = await self.standing("NativeForwarder")
        return await self.mined(
            await self.chain.transact(forwarder, "forward", str(to), key=payer.key, value=value)
        )

    async def fail(self, payer: FundedAccount, value: int = 0) -> MinedReceipt:
        """Makes a transaction with status 0, for any value."""
        forwarder = await self.standing("NativeForwarder")
        return await self.mined(await self.chain.transact(forwarder, "refuse", key=payer.key, value=value))

    async def fail_token(self, payer: FundedAccount, to: Address) -> MinedReceipt:
        """A token transfer above the balance: mined with status 0 and no log."""
        return await self.pay_token(payer, to, 2**128)

    async def pay_other_token(self, payer: FundedAccount, to: Address, amount: int) -> MinedReceipt:
        """Pays in a token with the same code at another address, which no listing accepts."""
        artifact = self.playground.token.artifact
        other = self._deployed.get("other") or await self.chain.deploy(artifact, key=payer.key)
        self._deployed["other"] = other
        await self.mined(await self.chain.transact(other, "mint", str(payer.address), amount, key=payer.key))
        return await self.mined(await self.chain.send_token(key=payer.key, token=other, to=to, amount=amount))

    async def spoof(self, sender: FundedAccount, *, payer: Address, to: Address, amount: int) -> MinedReceipt:
        """Makes a `Transfer` log of the right shape from a contract that is no token."""
        spoofer = await self.standing("TransferSpoofer")
        arguments = (str(payer), str(to), amount, 1)
        return await self.mined(
            await self.chain.transact(spoofer, "spoofTransfer", *arguments, key=sender.key)
        )

    async def bundle(
        self, sender: FundedAccount, transfers: list[tuple[FundedAccount, Address, int]]
    ) -> MinedReceipt:
        """Makes several transfers (payer, to, amount) in one transaction of `sender`: of two payers, or several of
        one payer, or there and back."""
        bundler = await self.standing("TransferBundler")
        for payer in {payer.address: payer for payer, _, _ in transfers}.values():
            await self.approve(payer, bundler.address)
        payers, tos = [str(payer.address) for payer, _, _ in transfers], [str(to) for _, to, _ in transfers]
        arguments = (str(self.playground.token.address), payers, tos, [amount for _, _, amount in transfers])
        return await self.mined(
            await self.chain.transact(bundler, "transferMany", *arguments, key=sender.key)
        )

    async def relay(
        self, relayer: FundedAccount, payer: FundedAccount, to: Address, amount: int, *, extra: int = 0
    ) -> MinedReceipt:
        """Makes an authorised (EIP-3009) transfer of `payer`, sent by another account; with `extra` also an ordinary
        transfer of the same payer in the same receipt."""
        bundler = await self.standing("TransferBundler")
        await self.approve(payer, bundler.address)
        message = self.authorization(payer.address, to, amount, nonce=b"\x07" * 32)
        signature = self.sign_authorization(payer, message)
        token = str(self.playground.token.address)
        arguments = (token, str(payer.address), str(to), amount, message["validBefore"], message["nonce"])
        tx_hash = await self.chain.transact(
            bundler, "relayAndTransfer", *arguments, signature, extra, key=relayer.key
        )
        return await self.mined(tx_hash)

    async def approve(self, owner: FundedAccount, spender: Address, amount: int = 2**256 - 1) -> MinedReceipt:
        token = self.playground.token
        return await self.mined(
            await self.chain.transact(token, "approve", str(spender), amount, key=owner.key)
        )

    async def pay_token_as_wallet(
        self, wallet: Contract, owner: FundedAccount, to: Address, amount: int
    ) -> MinedReceipt:
        """Pays from the contract wallet; `owner` sends the transaction. The wallet is funded first."""
        token = self.playground.token
        await self.mined(await self.chain.transact(token, "mint", str(wallet.address), amount, key=owner.key))
        payload = token.artifact.function("transfer").encode((str(to), amount))
        return await self.mined(
            await self.chain.transact(wallet, "execute", str(token.address), 0, payload, key=owner.key)
        )

    def authorization(
        self, payer: Address, to: Address, amount: int, *, nonce: bytes, valid_before: int = 2**48
    ) -> dict[str, object]:
        """The message of an EIP-3009 TransferWithAuthorization."""
        return {
            "from": str(payer),
            "to": str(to),
            "value": amount,
            "validAfter": 0,
            "validBefore": valid_before,
            "nonce": nonce,
        }

    def sign_authorization(self, signer: FundedAccount, message: dict[str, object]) -> bytes:
        domain = {
            "name": "USDC",
            "version": "2",
            "chainId": self.chain.chain_id,
            "verifyingContract": str(self.playground.token.address),
        }
        signed = Account.sign_typed_data(signer.key, domain, AUTHORIZATION_TYPES, message)
        return bytes(signed.signature)
