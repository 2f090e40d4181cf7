"""A listing whose gateway sells over payment channels, on a chain that a test breaks: `ChannelListing`, and `OwnChannel`, one channel of a new wallet.

The node of the gateway is behind a proxy; the test has the chain itself.
"""

import base64
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from eth_account import Account

from tests.kit.channel_payer import ChannelPayer, Json
from tests.kit.gateway_cluster import API, Reply, plain
from tests.kit.gateway_process import poll
from tests.kit.node_proxy import NodeProxy, run_node_proxy
from tests.kit.payer import encode_header
from tests.kit.signed_calls import LONG_LIVED, QUICK, balance_of, find_pending
from tollway.chain.channel_contract import (
    DEPOSITED_TOPIC,
    SETTLEMENT_CONTRACT,
    encode_channel_state,
    encode_finalize_withdraw,
    encode_initiate_withdraw,
    parse_channel_state,
)
from tollway.ids import Address, TxHash, keccak256
from tollway.ledger.channels import Channel
from tollway.sandbox.chain import START_USDC_UNITS, MinedReceipt
from tollway.storage.engine.database import connect_database
from tollway.storage.ledger.channel_store import ChannelStore

PRICE = 300
DELAY_S = 900
VALID_S = 20_000
"""A deposit is good for so long after the time of the chain, which tests move: less than a day, the most that the gateway takes."""
SETTINGS = {
    **QUICK,
    **LONG_LIVED,
    "TOLLWAY_CHANNELS": "true",
    "TOLLWAY_LIMIT_SETTLE_WAIT_S": "1.5",
    "TEST_LIMIT_WATCH_INTERVAL_S": "0.1",
    "TEST_LIMIT_GAS_REFRESH_S": "1",
    "TEST_LIMIT_CHANNEL_CLAIM_INTERVAL_S": "0.1",
}
UNCLAIMED = {"TEST_LIMIT_CHANNEL_CLAIM_INTERVAL_S": "86400"}
"""After the first round the gateway claims nothing."""
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class ChannelListing:
    cluster: Any
    gateway: Any
    provider: Any
    api_id: str
    dear_id: str
    gas: Any
    line: NodeProxy
    authorizer: Address

    @property
    def driver(self) -> Any:
        return self.cluster.driver

    async def earned(self) -> int:
        """Base units that the provider has got."""
        return await balance_of(self.cluster, self.provider.address) - START_USDC_UNITS

    async def wait_earned(self, base_units: int) -> None:
        async def is_paid() -> bool:
            return await self.earned() == base_units

        await poll(is_paid, what="the claim of the channels")

    async def wait_offered(self, *schemes: str) -> None:
        """Returns once a 402 of a dear call offers these; by default all, so that a deposit is taken too. Without gas it offers channels alone."""

        async def is_so() -> bool:
            reply = await self.cluster.call(self.gateway, self.dear_id, "/echo/offer")
            offered = read_accepts(reply) if "PAYMENT-REQUIRED" in reply.headers else []
            return [one["scheme"] for one in offered] == [*(schemes or ("exact", "batch-settlement"))]

        await poll(is_so, what="the offers of a 402")

    async def count_mined(self) -> int:
        """The mined transactions of the gateway."""
        address = str(self.gas.address)
        return int(await self.driver.rpc("eth_getTransactionCount", address, "latest"), 16)

    async def pending(self) -> list[TxHash]:
        """The gateway's transactions in the pool."""
        return await find_pending(self.cluster, self.gas.address)

    async def wait_pending(self) -> TxHash:
        hashes = await poll(self.pending, what="a transaction of the gateway in the pool")
        return TxHash(hashes[-1])

    async def read_transaction(self, tx_hash: TxHash) -> Json:
        found: Json = await self.driver.rpc("eth_getTransactionByHash", str(tx_hash))
        return found

    async def now_s(self) -> int:
        block = await self.driver.rpc("eth_getBlockByNumber", "latest", False)
        return int(block["timestamp"], 16)

    async def pass_time(self, seconds: int) -> None:
        """The next block of the chain is so much later; it is mined."""
        await self.driver.rpc("anvil_setNextBlockTimestamp", await self.now_s() + seconds)
        await self.driver.mine(1)

    async def publish_another(self) -> "ChannelListing":
        """Of another provider, at the same gateway."""
        provider = await self.cluster.wallet()
        api_id = await self.cluster.publish(self.gateway, provider, pricePerRequest="0.0003")
        return replace(self, provider=provider, api_id=api_id)

    async def open_channel(self, **signed: Any) -> "OwnChannel":
        """Of a new wallet; nothing is signed yet."""
        wallet = await self.cluster.wallet()
        (own,) = await self.open_channels([wallet], **signed)
        return own

    async def open_channels(self, wallets: list[Any], **signed: Any) -> "list[OwnChannel]":
        valid_before = await self.now_s() + VALID_S
        fields: dict[str, Any] = {
            "authorizer": SimpleNamespace(address=str(self.authorizer)),
            "receiver": self.provider.address,
            "asset": self.cluster.playground.usdc,
            "withdraw_delay": DELAY_S,
            "valid_before": valid_before,
            **signed,
        }
        return [
            OwnChannel(
                stall=self,
                wallet=wallet,
                signer=ChannelPayer(account=Account.from_key(wallet.key), **fields),
            )
            for wallet in wallets
        ]

    async def check_ledger(self) -> None:
        report = await self.cluster.audit(self.gateway)
        assert (report.wrong, report.held_calls) == ((), ())


@dataclass(frozen=True, kw_only=True)
class OwnChannel:
    """`path`: its own, so that the log of the provider counts its calls."""

    stall: ChannelListing
    wallet: Any
    signer: ChannelPayer
    path: str = field(default_factory=lambda: f"/echo/channel-{next(_NUMBERS)}")

    def signs(self, **signed: Any) -> "OwnChannel":
        """The same wallet, with another deposit or another channel."""
        return replace(self, signer=replace(self.signer, **signed))

    # ---- Calls.

    async def pay(
        self, payload: Json, *headers: tuple[str, str], edit: Callable[[Json], object] = lambda content: None
    ) -> Reply:
        content = self.signer.payment(payload)
        edit(content)
        reply: Reply = await self.stall.cluster.call(
            self.stall.gateway,
            self.stall.api_id,
            self.path,
            headers=[("PAYMENT-SIGNATURE", encode_header(content).decode()), *headers],
        )
        return reply

    async def deposit(self, base_units: int, *, ceiling: int = PRICE) -> Reply:
        return await self.pay(self.signer.deposit(base_units, ceiling=ceiling))

    async def spend(self, ceiling: int) -> Reply:
        return await self.pay(self.signer.voucher(ceiling))

    async def show(self, wallet: Any, tx_hash: TxHash) -> Reply:
        """The call, paid by a transaction that this wallet signs for."""
        stall = self.stall
        reply: Reply = await stall.cluster.call(
            stall.gateway, stall.api_id, self.path, headers=plain(wallet, tx_hash)
        )
        return reply

    async def refund(self, *, ceiling: int) -> Reply:
        """At the refund URL of the channel."""
        stall, config = self.stall, self.signer.config
        parts = (self.signer.asset.network, config.token, config.receiver, config.receiver_authorizer)
        path = "/".join(map(str, ("channels", *parts)))
        value = encode_header(self.signer.payment(self.signer.refund(ceiling=ceiling))).decode()
        reply: Reply = await stall.cluster.send(
            f"{stall.gateway.base_url}{API}/{path}", headers=[("PAYMENT-SIGNATURE", value)]
        )
        return reply

    async def insist(self, send: Callable[[], Awaitable[Reply]]) -> Reply:
        """The response of the same request as soon as its outcome is known."""
        replies: list[Reply] = []

        async def is_decided() -> bool:
            replies.append(await send())
            return replies[-1].code != "payment_outcome_unknown"

        await poll(is_decided, what="the outcome of a deposit")
        return replies[-1]

    async def fill(self, base_units: int, *, calls: int = 1, before: int = 0) -> None:
        """A deposit and so many calls in all; `before`: those that were charged already."""
        first = await self.insist(lambda: self.deposit(base_units, ceiling=(before + 1) * PRICE))
        assert first.status == 200, first.body
        for number in range(before + 2, before + calls + 1):
            reply = await self.spend(number * PRICE)
            assert reply.status == 200, reply.body

    @property
    def seen(self) -> int:
        """How many of its calls have reached the provider."""
        return int(self.stall.cluster.provider.count(self.path))

    async def states(self) -> list[str]:
        """The payment states of its calls, oldest first."""
        calls = await self.stall.cluster.history(self.stall.gateway, self.wallet)
        return [call["payment"]["state"] for call in reversed(calls)]

    async def wait_states(self, *states: str) -> None:
        async def are_reached() -> bool:
            return await self.states() == list(states)

        await poll(are_reached, what=f"calls that are {states}")

    async def read(self) -> Channel:
        """The channel in the gateway's ledger."""
        database = connect_database(self.stall.gateway.env["TOLLWAY_DATABASE_URL"])
        try:
            found = await ChannelStore(database).find_channel(
                self.stall.driver.chain_id, self.signer.channel_id
            )
        finally:
            await database.close()
        assert found is not None
        return found

    # ---- The channel on its chain.

    async def escrow(self) -> tuple[int, int]:
        """Balance and claimed sum on the chain."""
        call = encode_channel_state(self.signer.channel_id)
        request = {"to": str(SETTLEMENT_CONTRACT), "data": "0x" + call.hex()}
        found = await self.stall.driver.rpc("eth_call", request, "latest")
        state = parse_channel_state(bytes.fromhex(found[2:]))
        return state.balance, state.total_claimed

    async def count_deposits(self) -> int:
        topics = ["0x" + DEPOSITED_TOPIC.hex(), "0x" + self.signer.channel_id.hex()]
        wanted = {"address": str(SETTLEMENT_CONTRACT), "fromBlock": "0x0", "topics": topics}
        return len(await self.stall.driver.rpc("eth_getLogs", wanted))

    async def find_transaction(self, topic: bytes) -> TxHash:
        """The newest one at the contract with an event of this kind for the receiver."""
        receiver = "0x" + self.signer.receiver.hex().zfill(64)
        wanted = {
            "address": str(SETTLEMENT_CONTRACT),
            "fromBlock": "0x0",
            "topics": ["0x" + topic.hex(), receiver],
        }
        return TxHash.parse((await self.stall.driver.rpc("eth_getLogs", wanted))[-1]["transactionHash"])

    async def deposit_directly(self, base_units: int) -> None:
        """By a transaction that the gateway has not sent."""
        signer = self.signs(deposit_salt=fresh_salt()).signer
        assert (await self.send(signer.encode_deposit(base_units))).succeeded

    async def withdraw(self, base_units: int) -> None:
        """Begins a withdrawal."""
        calldata = encode_initiate_withdraw(self.signer.config, base_units=base_units)
        assert (await self.send(calldata)).succeeded

    async def finalize(self) -> None:
        """Ends a withdrawal, once its delay is over."""
        await self.stall.pass_time(DELAY_S)
        assert (await self.send(encode_finalize_withdraw(self.signer.config))).succeeded

    async def send(self, calldata: bytes) -> MinedReceipt:
        """A transaction of the wallet at the contract, mined."""
        driver = self.stall.driver
        sent = await driver.send(key=self.wallet.key, to=SETTLEMENT_CONTRACT, payload=calldata)
        receipt: MinedReceipt = await driver.wait_receipt(sent)
        return receipt

    async def wallet_units(self) -> int:
        return await balance_of(self.stall.cluster, self.wallet.address)


def fresh_salt() -> bytes:
    return keccak256(b"%d %d" % (next(_NUMBERS), time.monotonic_ns()))


def list_offers(reply: Reply) -> list[Json]:
    """The channel entries of a 402."""
    return [one for one in read_accepts(reply) if one["scheme"] == "batch-settlement"]


def read_accepts(reply: Reply) -> list[Json]:
    accepts: list[Json] = json.loads(base64.b64decode(reply.headers["PAYMENT-REQUIRED"]))["accepts"]
    return accepts


def find_offer(reply: Reply) -> Json:
    (found,) = list_offers(reply)
    return found


def read_receipt(reply: Reply) -> Json:
    found: Json = json.loads(base64.b64decode(reply.headers["PAYMENT-RESPONSE"]))
    return found


@asynccontextmanager
async def open_channel_listing(cluster: Any, **settings: str) -> AsyncIterator[ChannelListing]:
    gas = await cluster.wallet()
    async with run_node_proxy(cluster.session, cluster.driver.rpc_url) as line:
        env = {"TOLLWAY_RPC_SANDBOX": line.url, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}
        async with cluster.gateway(settings={**SETTINGS, **env, **settings}) as gateway:
            provider = await cluster.wallet()
            api_id = await cluster.publish(gateway, provider, pricePerRequest="0.0003")
            dear_id = await cluster.publish(gateway, provider, pricePerRequest="1")
            offer = find_offer(await cluster.call(gateway, api_id, "/echo/offer"))
            yield ChannelListing(
                cluster=cluster,
                gateway=gateway,
                provider=provider,
                api_id=api_id,
                dear_id=dear_id,
                gas=gas,
                line=line,
                authorizer=Address.parse(offer["extra"]["receiverAuthorizer"]),
            )
