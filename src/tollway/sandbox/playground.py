"""Furnishes a fresh test chain: the token where clients expect it, and wallets with fresh keys and something to spend.

Must never take a key from outside: each playground makes its own, and they are worth nothing elsewhere.
"""

import asyncio
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from eth_account import Account

from tollway.ids import Address, keccak256
from tollway.money import Asset, TokenDomain
from tollway.sandbox.artifacts import Contract, load_test_usdc
from tollway.sandbox.chain_driver import ChainDriver

USDC_ADDRESS = Address.parse("0x036CbD53842c5426634e7929541eC2318f3dCF7e")
"""Base Sepolia's USDC."""

ROLES = ("provider", "caller", "stranger", "gas")
START_ETH_WEI = 10 * 10**18
START_USDC_UNITS = 1_000 * 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class FundedAccount:
    """A funded wallet of the practice ground. `key` is its private key, 32 bytes."""

    role: str
    address: Address
    key: bytes = field(repr=False)

    @property
    def private_key(self) -> str:
        """As wallets and the sandbox file write it: `0x` + 64 hex digits."""
        return "0x" + self.key.hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class Playground:
    """A furnished chain. `token` is the contract, `usdc` and `native` the assets as the books know them."""

    rpc_url: str
    token: Contract
    usdc: Asset
    native: Asset
    accounts: tuple[FundedAccount, ...]

    def account(self, role: str) -> FundedAccount:
        """Raises LookupError for a role that was not asked for."""
        for account in self.accounts:
            if account.role == role:
                return account
        raise LookupError(f"no account with the role {role}")


def make_account(role: str) -> FundedAccount:
    """A wallet with a fresh key and no funds."""
    key = secrets.token_bytes(32)
    return FundedAccount(role=role, address=Address.parse(Account.from_key(key).address), key=key)


async def prepare_playground(driver: ChainDriver, *, roles: Iterable[str] = ROLES) -> Playground:
    """Places the token and gives each role a new wallet with 10 ETH and 1,000 USDC. Waits until all of it is mined."""
    token = Contract(artifact=load_test_usdc(), address=USDC_ADDRESS)
    await driver.set_code(token.address, token.artifact.runtime_code)
    accounts = tuple(make_account(role) for role in roles)
    await fund_accounts(driver, token, accounts)
    chain_id = driver.chain_id
    return Playground(
        rpc_url=driver.rpc_url,
        token=token,
        usdc=Asset(
            chain_id=chain_id,
            token=token.address,
            symbol="USDC",
            decimals=6,
            domain=TokenDomain(name="USDC", version="2"),
        ),
        native=Asset(chain_id=chain_id, token=None, symbol="ETH", decimals=18),
        accounts=accounts,
    )


async def fund_accounts(driver: ChainDriver, token: Contract, accounts: Iterable[FundedAccount]) -> None:
    """10 ETH and 1,000 USDC for each. A wallet's share of dollars is minted by a key of its own that then is forgotten,
    so that its nonce stays at zero and all can be served at once."""

    async def fund(account: FundedAccount) -> None:
        minter = keccak256(account.key)
        await driver.set_native_balance(account.address, START_ETH_WEI)
        await driver.set_native_balance(Address.parse(Account.from_key(minter).address), START_ETH_WEI)
        minted = await driver.transact(token, "mint", account.address, START_USDC_UNITS, key=minter)
        receipt = await driver.wait_receipt(minted)
        if not receipt.succeeded:
            raise RuntimeError(f"no dollars for {account.address}")

    async with asyncio.TaskGroup() as group:
        for account in accounts:
            group.create_task(fund(account))
