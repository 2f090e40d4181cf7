"""Calls paid over a channel, for live tests of crashes: `PaidChannel` is a caller with one channel of a running gateway. It keeps its sums as stock clients do, signs again
after a corrective 402, and holds the laws of the wire with each response. `ChannelShop` is a listing that sells over channels.
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from eth_account import Account

from tests.kit.channel_payer import ChannelPayer, Json
from tests.kit.gateway_cluster import API
from tests.kit.gateway_process import poll
from tests.kit.payer import Header, decode_header, encode_header
from tests.kit.signed_calls import balance_of
from tests.kit.waits import DEADLINE_S
from tollway.chain.channel_contract import SETTLEMENT_CONTRACT
from tollway.ids import Address, keccak256
from tollway.money import Asset, TokenDomain
from tollway.sandbox.chain import START_USDC_UNITS, FundedAccount

PRICE_UNITS = 300
DEPOSIT_UNITS = 3_000
MISMATCH = "cumulative_amount_mismatch"
_CHANNELS = keccak256(b"channels(bytes32)")[:4]
_SALTS = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelShop:
    """A listing of one or more gateways on one database. `offer`: the channel of its 402."""

    cluster: Any
    gateways: list[Any]
    provider: FundedAccount
    api_id: str
    offer: Json

    @classmethod
    async def open(cls, cluster: Any, gateways: list[Any], **fields: Any) -> "ChannelShop":
        provider = await cluster.wallet()
        api_id = await cluster.publish(gateways[0], provider, **{"pricePerRequest": "0.0003", **fields})
        reply = await cluster.call(gateways[0], api_id, "/echo/quote")
        accepts = decode_header(reply.headers["PAYMENT-REQUIRED"].encode())["accepts"]
        offer = next(one for one in accepts if one["scheme"] == "batch-settlement")
        return cls(cluster=cluster, gateways=gateways, provider=provider, api_id=api_id, offer=offer)

    def channel(self, wallet: FundedAccount, *, path: str = "") -> "PaidChannel":
        """`path`: the text of its salt, which names the point of its claims and refunds (`fault_injection`)."""
        now_s = int(time.time())
        asset = Asset(
            chain_id=self.cluster.driver.chain_id,
            token=Address.parse(self.offer["asset"]),
            symbol="USDC",
            decimals=6,
            domain=TokenDomain(name=self.offer["extra"]["name"], version=self.offer["extra"]["version"]),
        )
        authorizer: Any = SimpleNamespace(address=self.offer["extra"]["receiverAuthorizer"])
        signer = ChannelPayer(
            account=Account.from_key(wallet.key),
            authorizer=authorizer,
            receiver=Address.parse(self.offer["payTo"]),
            asset=asset,
            withdraw_delay=self.offer["extra"]["withdrawDelay"],
            salt=path.encode().ljust(32, b"\0"),
            valid_before=now_s + 3_600,
        )
        return PaidChannel(shop=self, wallet=wallet, signer=signer, path=path)

    async def earned(self) -> int:
        """Base units that its provider has got."""
        return await balance_of(self.cluster, self.provider.address) - START_USDC_UNITS

    async def wait_claimed(
        self, charged: Sequence[tuple["PaidChannel", int]], *, deadline_s: float = DEADLINE_S
    ) -> list[int]:
        """Waits until the contract has claimed of each channel what its calls cost, no more at any time, and the provider has the sum. Gives the balances of the channels.

        Each channel is looked at until it agrees, and not once after the sum does: anvil 1.7.1 answers `latest` with the state after the block that it mines, and then
        once more with the state before."""
        owed = sum(units for _, units in charged)
        looks: list[tuple[int, int]] = []

        async def is_claimed() -> bool:
            looks[:] = [await channel.read_chain() for channel, _ in charged]
            earned = await self.earned()
            pairs = [(claimed, units) for (_, claimed), (_, units) in zip(looks, charged, strict=True)]
            is_beyond = earned > owed or any(claimed > units for claimed, units in pairs)
            assert not is_beyond, "claimed beyond what was charged"
            return earned == owed and all(claimed == units for claimed, units in pairs)

        try:
            await poll(is_claimed, what="the claim of every channel", deadline_s=deadline_s)
        except AssertionError as exc:
            for (channel, units), (_, claimed) in zip(charged, looks, strict=True):
                if claimed != units:
                    exc.add_note(f"{channel.signer.channel_id}: claimed {claimed}, charged {units}")
            raise
        assert all(claimed <= balance for balance, claimed in looks)
        return [balance for balance, _ in looks]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCall:
    """One request with one signed payment. `send` sends exactly the same each time."""

    channel: "PaidChannel"
    path: str
    header: Header
    ceiling: int
    deposit: int = 0
    method: str = "GET"
    body: bytes | None = None
    key: str | None = None

    async def send(self, gateway: Any = None, *, query: str = "", **options: Any) -> Any:
        shop = self.channel.shop
        headers = [self.header, *([("Idempotency-Key", self.key)] if self.key else [])]
        return await shop.cluster.call(
            gateway or shop.gateways[0],
            shop.api_id,
            self.path + query,
            method=self.method,
            headers=headers,
            content=self.body,
            **options,
        )

    @property
    def seen(self) -> int:
        """How often it has reached the upstream."""
        return int(self.channel.shop.cluster.provider.count(self.path, method=self.method))

    async def records(self, gateway: Any) -> list[Any]:
        """The calls of its path in its wallet's history, the newest first."""
        calls = await self.channel.shop.cluster.history(gateway, self.channel.wallet)
        return [call for call in calls if call["path"] == self.path]


@dataclass(slots=True, kw_only=True)
class PaidChannel:
    """A caller and what it knows of its channel: what it was charged, its deposits, and how often it was corrected. `path`: see `ChannelShop.channel`."""

    shop: ChannelShop
    wallet: FundedAccount
    signer: ChannelPayer
    path: str = ""
    charged: int = 0
    balance: int = 0
    corrected: int = 0
    signed: dict[int, str] = field(default_factory=dict)

    # ---- Sign.

    def sign(
        self, path: str, *, price: int = PRICE_UNITS, deposit: int | None = None, **options: Any
    ) -> ChannelCall:
        """The next call as the caller knows its channel; it deposits where its money is used up, unless `deposit` says otherwise."""
        ceiling = self.charged + price
        if deposit is None:
            deposit = DEPOSIT_UNITS if ceiling > self.balance else 0
        signer = self._with_salt() if deposit else self.signer
        payload = signer.deposit(deposit, ceiling=ceiling) if deposit else signer.voucher(ceiling)
        self.signed[ceiling] = payload["voucher"]["signature"]
        header = self._dress(payload, price)
        return ChannelCall(
            channel=self, path=path, header=header, ceiling=ceiling, deposit=deposit, **options
        )

    def _with_salt(self) -> ChannelPayer:
        """With a nonce that no deposit before has."""
        self.signer = replace(self.signer, deposit_salt=next(_SALTS).to_bytes(32, "big"))
        return self.signer

    def _dress(self, payload: Json, price: int) -> Header:
        content = self.signer.payment(payload, amount=price)
        return "PAYMENT-SIGNATURE", encode_header(content).decode()

    # ---- Pay, as a stock client does.

    async def pay(self, path: str, gateway: Any = None, **options: Any) -> Any:
        """One call, which is signed once more after a corrective 402. The last response."""
        call = self.sign(path, **options)
        reply = await call.send(gateway)
        if reply.status == 402:
            await self.heal(reply)
            call = self.sign(path, **options)
            reply = await call.send(gateway)
        self.take(reply, call)
        return reply

    def take(self, reply: Any, call: ChannelCall) -> None:
        """Counts what a response says."""
        if "PAYMENT-RESPONSE" not in reply.headers:
            return
        told = decode_header(reply.headers["PAYMENT-RESPONSE"].encode())
        assert told["success"] is True, told
        charged = int(told["extra"]["chargedAmount"])
        assert 0 <= charged <= call.ceiling - self.charged, (told, self.charged)
        if told["transaction"]:
            self.balance += call.deposit
        self.charged += charged
        assert int(told["extra"]["channelState"]["chargedCumulativeAmount"]) == self.charged, told

    async def heal(self, reply: Any) -> bool:
        """Reads a corrective 402. It is about money that is in the channel already; the announced sum is one that this caller has signed for. False: without a voucher
        that proves it, the caller takes what the chain says."""
        assert "PAYMENT-RESPONSE" not in reply.headers
        required = decode_header(reply.headers["PAYMENT-REQUIRED"].encode())
        assert required["error"].endswith((MISMATCH, "cumulative_below_claimed")), required
        (offered,) = required["accepts"]
        state, voucher = offered["extra"]["channelState"], offered["extra"].get("voucherState")
        balance, claimed = await self.read_chain()
        assert state["channelId"] == str(self.signer.channel_id)
        announced = int(state["chargedCumulativeAmount"])
        if voucher is None:
            announced = claimed
        else:
            assert self.signed[int(voucher["signedMaxClaimable"])] == voucher["signature"]
            assert claimed <= announced <= int(voucher["signedMaxClaimable"]), required
        self.charged, self.balance = announced, balance
        self.corrected += 1
        return voucher is not None

    # ---- Refund.

    @property
    def refund_path(self) -> str:
        offer = self.shop.offer
        path = f"{offer['network']}/{offer['asset']}/{offer['payTo']}/{offer['extra']['receiverAuthorizer']}"
        return f"{API}/channels/{path}"

    async def refund(self, gateway: Any = None) -> Any:
        """Asks for the rest of the channel, as far as this caller knows what it was charged."""
        header = self._dress(self.signer.refund(ceiling=self.charged), 1)
        base_url = (gateway or self.shop.gateways[0]).base_url
        return await self.shop.cluster.send(base_url + self.refund_path, headers=[header])

    # ---- The chain.

    async def read_chain(self) -> tuple[int, int]:
        """Its balance and what is claimed, in the contract."""
        calldata = "0x" + (_CHANNELS + self.signer.channel_id).hex()
        answer = await self.shop.cluster.driver.rpc(
            "eth_call", {"to": str(SETTLEMENT_CONTRACT), "data": calldata}, "latest"
        )
        words = bytes.fromhex(answer[2:])
        return int.from_bytes(words[:32], "big"), int.from_bytes(words[32:64], "big")

    async def paid_in(self) -> int:
        """Base units that have left its wallet."""
        return START_USDC_UNITS - await balance_of(self.shop.cluster, self.wallet.address)
