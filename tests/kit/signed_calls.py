"""Calls paid by authorisation, for live tests of crashes and races: each can be sent again unchanged, and the logs of
the chain show its transfers. Loaded by `conftest.py`."""

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tests.kit.authorization_payer import V2, AuthorizationPayer, Quote, undress
from tests.kit.fault_injection import DATABASE_DEADLINE
from tests.kit.gateway_cluster import plain
from tests.kit.payer import Header
from tollway.chain.signer import GasKey
from tollway.chain.tokens import encode_transfer_with_authorization
from tollway.ids import Address, TxHash, keccak256
from tollway.sandbox.chain import START_USDC_UNITS, FundedAccount

QUICK = {
    "TEST_LIMIT_RECOVERY_INTERVAL_S": "0.2",
    "TEST_LIMIT_SWEEP_INTERVAL_S": "0.1",
    DATABASE_DEADLINE: "60",
}
LEASE_S = 600
RENEWS_OFTEN = {
    "TEST_LIMIT_OWNER_LEASE_S": str(LEASE_S),
    "TEST_LIMIT_OWNER_RENEW_S": "0.1",
    DATABASE_DEADLINE: "60",
}
"""Where a gateway dies: a lease that no pause of the machine ends. The clock of the database lets it pass (`databases.pass_lease`)."""
LONG_LIVED = {"TEST_LIMIT_OWNER_LEASE_S": "3600"}
"""Where no gateway dies: a call is not sent once half of the lease is over, and the machine may pause for that long."""
NO_TERMS = {(409, "idempotency_in_progress"), (409, "payment_already_used"), (503, "payment_outcome_unknown")}
"""What a repeat may hear as long as its money may move or has moved."""

_AUTHORIZATION_USED = keccak256(b"AuthorizationUsed(address,bytes32)")
_DEAR_TIP_WEI = 400 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedCall:
    """One request with one signed payment. `send` sends exactly the same each time."""

    payer: AuthorizationPayer
    path: str
    header: Header
    method: str = "GET"
    body: bytes | None = None

    @property
    def wallet(self) -> FundedAccount:
        return self.payer.signer

    async def send(self, gateway: Any = None, *, headers: list[Header] | None = None, **options: Any) -> Any:
        """`headers`: sent instead of the signed payment."""
        payer = self.payer
        return await payer.cluster.call(
            gateway or payer.gateway,
            payer.api_id,
            self.path,
            method=self.method,
            headers=[self.header] if headers is None else headers,
            content=self.body,
            **options,
        )

    async def spend(self, tx_hash: TxHash, gateway: Any = None) -> Any:
        """The same request, paid by a transaction instead."""
        return await self.send(gateway, headers=plain(self.wallet, tx_hash))

    @property
    def seen(self) -> int:
        """How often it has reached the upstream."""
        return int(self.payer.cluster.provider.count(self.path.partition("?")[0], method=self.method))

    async def transfers(self) -> list[TxHash]:
        """What its wallet's authorisations have moved."""
        return await transfers_of(self.payer.cluster, self.wallet.address)

    async def record(self, gateway: Any = None) -> Any:
        """The one call of its path in its wallet's history."""
        calls = await self.payer.cluster.history(gateway or self.payer.gateway, self.wallet)
        (call,) = (call for call in calls if call["path"] == self.path.partition("?")[0])
        return call

    @property
    def calldata(self) -> bytes:
        """The calldata with which any account can send it to the token."""
        payload = undress(self.header)["payload"]
        signed = payload["authorization"]
        return encode_transfer_with_authorization(
            payer=Address.parse(signed["from"]),
            payee=Address.parse(signed["to"]),
            base_units=int(signed["value"]),
            valid_after=int(signed["validAfter"]),
            valid_before=int(signed["validBefore"]),
            nonce=bytes.fromhex(signed["nonce"][2:]),
            signature=bytes.fromhex(payload["signature"][2:]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidListing:
    """One listing of one or more gateways on one database; `quote` is what its 402 asks for."""

    cluster: Any
    gateways: list[Any]
    provider: FundedAccount
    api_id: str
    quote: Quote

    @classmethod
    async def open(cls, cluster: Any, gateways: list[Any], **fields: Any) -> "PaidListing":
        provider = await cluster.wallet()
        api_id = await cluster.publish(gateways[0], provider, **fields)
        quote = Quote.read(await cluster.call(gateways[0], api_id, "/echo/quote"))
        return cls(cluster=cluster, gateways=gateways, provider=provider, api_id=api_id, quote=quote)

    def sign(self, wallet: FundedAccount, path: str, **options: Any) -> SignedCall:
        """Good for an hour: on a busy machine what a 402 asks for may be over before the last repeat."""
        payer = AuthorizationPayer(
            cluster=self.cluster, gateway=self.gateways[0], api_id=self.api_id, signer=wallet
        )
        header = payer.show(self.quote, V2, valid_before=int(time.time()) + 3_600)
        return SignedCall(payer=payer, path=path, header=header, **options)

    async def earned(self) -> int:
        """Base units that its provider has got."""
        return await balance_of(self.cluster, self.provider.address) - START_USDC_UNITS

    async def check_ledger(self) -> None:
        report = await self.cluster.audit(self.gateways[0])
        assert (report.wrong, report.held_calls) == ((), ())


async def transfers_of(cluster: Any, payer: Address) -> list[TxHash]:
    topics = ["0x" + _AUTHORIZATION_USED.hex(), "0x" + payer.hex().zfill(64)]
    wanted = {"address": str(cluster.playground.token.address), "fromBlock": "0x0", "topics": topics}
    return [TxHash.parse(log["transactionHash"]) for log in await cluster.driver.rpc("eth_getLogs", wanted)]


async def balance_of(cluster: Any, address: Address) -> int:
    return int(await cluster.driver.call(cluster.playground.token, "balanceOf", str(address)))


async def count_sent(cluster: Any, account: FundedAccount) -> int:
    """How many of its transactions are mined; none is waiting."""
    counts = [
        int(await cluster.driver.rpc("eth_getTransactionCount", str(account.address), tag), 16)
        for tag in ("latest", "pending")
    ]
    assert counts[0] == counts[1], "something waits in the pool"
    return counts[0]


@contextlib.asynccontextmanager
async def unmined(driver: Any) -> AsyncIterator[None]:
    """Inside, nothing is mined until the test mines; at the end everything is mined."""
    await driver.rpc("evm_setAutomine", False)
    try:
        yield
    finally:
        await driver.rpc("evm_setAutomine", True)
        await driver.mine(1)


async def find_pending(cluster: Any, sender: Address) -> list[TxHash]:
    """The hashes of an account's transactions in the pool, by nonce."""
    pool = (await cluster.driver.rpc("txpool_content"))["pending"]
    mine: dict[str, Any] = next(
        (sent for address, sent in pool.items() if Address.parse(address) == sender), {}
    )
    return [TxHash.parse(mine[nonce]["hash"]) for nonce in sorted(mine, key=int)]


async def send_dearly(cluster: Any, account: FundedAccount, token: Address, calldata: bytes) -> TxHash:
    """Sends the transaction of another account with a high fee, so that it comes first in its block."""
    key = GasKey.parse(account.private_key)
    count = await cluster.driver.rpc("eth_getTransactionCount", str(key.address), "pending")
    signed = key.sign(
        chain_id=cluster.driver.chain_id,
        nonce=int(count, 16),
        to=token,
        calldata=calldata,
        gas=200_000,
        max_fee_wei=_DEAR_TIP_WEI + 100 * 10**9,
        tip_wei=_DEAR_TIP_WEI,
    )
    await cluster.driver.rpc("eth_sendRawTransaction", "0x" + signed.raw.hex())
    return signed.tx_hash
