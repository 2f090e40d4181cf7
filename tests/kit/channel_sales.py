"""`ChannelSales`: an in-process gateway that sells calls over payment channels, too. `ChannelCaller`: its caller, with one channel.

The networks of channels are real, over the chain in memory; `looked_ms` is the time of the last look at the channels, `refused` has the
receivers whose settle fails.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from eth_account import Account
from eth_account.signers.local import LocalAccount

from tests.kit.asgi_exchange import Exchange, HeaderPairs
from tests.kit.channel_payer import ChannelPayer, Json
from tests.kit.gateway import CHAIN, NOW_MS, PUBLIC_URL, TOKEN, USDC, InProcessGateway
from tests.kit.narrowing import existing
from tests.kit.payer import decode_header, encode_header
from tollway.gateway.authorization_payment import AuthorizationRail
from tollway.gateway.channel_offers import ChannelOffers, join_requirements
from tollway.gateway.channel_payment import ChannelRail
from tollway.gateway.rail import PaymentRail
from tollway.ids import Address, ChainId, keccak256
from tollway.ledger.channels import Channel, Receiver
from tollway.payments.channel_networks import ChannelNetworks
from tollway.payments.channel_terms import ChannelRules
from tollway.payments.pricing import OperationPrice, PaymentRequirement
from tollway.registry.listing import Listing

AUTHORIZER: LocalAccount = Account.from_key(keccak256(b"an authorizer"))
WITHDRAW_DELAY_S = 900
TARGET = "/quote?x=1"


class ChannelSales(InProcessGateway):
    """`pauses`: how long calls waited for their turn, in seconds. `while_paused` runs in each of these pauses."""

    channel_rules = ChannelRules(chain_id=CHAIN, withdraw_delay=WITHDRAW_DELAY_S, native_price_nano=10**13)
    looked_ms: int | None = NOW_MS
    refused: tuple[Receiver, ...] = ()

    def _make_rails(self, is_bound_required: bool) -> None:
        super()._make_rails(is_bound_required)
        self.pauses: list[float] = []
        self.while_paused: Callable[[], Awaitable[None]] = _do_nothing
        self.authorization_rail = AuthorizationRail(
            ledger=self.ledger,
            settlement=self.settlement.settlement,
            idempotency=self.idempotency,
            receipts=self.authorization_rail.receipts,
            challenger=self.challenger,
            rules=self.rules,
            limits=self.limits,
            networks=self.authorization_rail.networks,
            clock=self.claim_clock,
            has_channels=True,
        )
        self.channel_networks = ChannelNetworks(
            self.chain,
            {CHAIN: self.channel_rules},
            chain_rules=self.rules,
            gas_budget=self.settlement.gas_budget,
            limits=self.limits,
            read_look_ms=self._read_look_ms,
            list_refused=self._list_refused,
            now_ms=self._clock,
        )
        self.channel_networks.authorizers = (Address.parse(AUTHORIZER.address),)
        self.channel_rail = ChannelRail(
            ledger=self.ledger,
            channel_ledger=self.ledger,
            offers=ChannelOffers(
                chains=self.channel_networks,
                settlement=self.settlement.settlement,
                rules=self.rules,
                channel_rules={CHAIN: self.channel_rules},
                limits=self.limits,
            ),
            idempotency=self.idempotency,
            limits=self.limits,
            clock=self.claim_clock,
            public_url=PUBLIC_URL,
            sleep=self._pause,
        )

    def _list_rails(self) -> tuple[PaymentRail, ...]:
        return (self.transaction_rail, self.channel_rail, self.authorization_rail)

    def _find_requirements(
        self, operation_price: OperationPrice, listing: Listing
    ) -> tuple[PaymentRequirement, ...]:
        return join_requirements(self.authorization_rail, self.channel_rail.offers, operation_price, listing)

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self.while_paused()

    async def _list_refused(self) -> frozenset[Receiver]:
        return frozenset(self.refused)

    async def _read_look_ms(self, chain_id: ChainId) -> int | None:
        return self.looked_ms

    async def offers(self, **more: Any) -> list[Json]:
        """The offers of a 402."""
        quoted = await self.ask("GET", TARGET, **more)
        assert quoted.status == 402, quoted.body
        accepts: list[Json] = decode_header(quoted.headers["payment-required"].encode())["accepts"]
        return accepts

    @property
    def chain_requests(self) -> int:
        return self.chain.requests.total()


async def _do_nothing() -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class ChannelCaller:
    """`signer`: its wallet is that of the gateway's caller."""

    gateway: ChannelSales
    signer: ChannelPayer

    @classmethod
    def funded(cls, gateway: ChannelSales, base_units: int, **signed: Any) -> Self:
        account = Account.from_key(gateway.wallet.key.secret)
        fields: dict[str, Any] = {"account": account, "authorizer": AUTHORIZER, "asset": USDC, **signed}
        signer = ChannelPayer(**fields)
        gateway.chain.fund(CHAIN, TOKEN, signer.address, base_units)
        return cls(gateway=gateway, signer=signer)

    def signs(self, **signed: Any) -> Self:
        """The same wallet, with another channel or another deposit."""
        return replace(self, signer=replace(self.signer, **signed))

    def show(self, payload: Json, *, edit: Callable[[Json], object] = lambda content: None) -> HeaderPairs:
        """The header of a payment. `edit` changes its content after it was signed."""
        content = self.signer.payment(payload)
        edit(content)
        return [("PAYMENT-SIGNATURE", encode_header(content).decode())]

    async def pay(
        self,
        payload: Json,
        *headers: tuple[str, str],
        edit: Callable[[Json], object] = lambda content: None,
        **more: Any,
    ) -> Exchange:
        given: dict[str, Any] = {"method": "GET", "target": TARGET, **more}
        return await self.gateway.ask(headers=[*self.show(payload, edit=edit), *headers], **given)

    async def open(self, deposit: int, *, ceiling: int, **more: Any) -> Exchange:
        return await self.pay(self.signer.deposit(deposit, ceiling=ceiling), **more)

    async def spend(self, ceiling: int, *headers: tuple[str, str], **more: Any) -> Exchange:
        return await self.pay(self.signer.voucher(ceiling), *headers, **more)

    async def channel(self) -> Channel:
        return existing(await self.find_channel())

    async def find_channel(self) -> Channel | None:
        found: Channel | None = await self.gateway.ledger.find_channel(CHAIN, self.signer.channel_id)
        return found
