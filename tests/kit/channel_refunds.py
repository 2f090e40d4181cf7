"""`RefundHarness`: one channel of a payer in a SQLite ledger and on a chain in memory, and what refunds it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tests.kit.chain import MemoryChain
from tests.kit.chain_blocks import authorizing_token
from tests.kit.channel_payer import ChannelPayer
from tests.kit.ledger_channels import end_call, voucher_claim
from tests.kit.narrowing import of_type
from tests.kit.payer import CHAIN, NOW_S, USDC, KeyWallet
from tests.kit.settlement import MinedRules, SettlementServices, settlement_rules
from tests.kit.sql_ledger import SqlLedger
from tollway.chain.networks import ChainRules
from tollway.ids import ChainId
from tollway.ledger.channels import Channel, ChannelFacts, Voucher
from tollway.ledger.ledger import Claim, Claimed
from tollway.ledger.records import CallState
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.payments.channel_claims import ChannelClaims
from tollway.payments.channel_networks import ChannelNetworks
from tollway.payments.channel_refunds import ChannelRefunds, Refunded
from tollway.payments.channel_terms import ChannelRules
from tollway.payments.settlement_rules import SettlementRules
from tollway.storage.engine.database import Database
from tollway.storage.ledger.gas_store import GasStore

assert USDC.token is not None
TOKEN = USDC.token
DEPOSIT = 4_000_000
DUE = 1_050_000
"""What a channel owes when it is claimed: ten times 105,000 gas of one gwei, with a coin of 1,000 dollars."""
FUNDS = 10**9


class RefundHarness:
    """Open it by `running`. `confirmations`: blocks of every payment. A busy channel is read again at once, `turns` times. `before_send`: runs between the look at the chain and the
    commit of the refund."""

    def __init__(
        self,
        database: Database,
        *,
        payer: ChannelPayer | None = None,
        limits: Limits = DEFAULT_LIMITS,
        confirmations: int = 1,
        turns: int = 3,
        settlement: SettlementRules | None = None,
    ) -> None:
        self.now_ms = NOW_S * 1000
        self.payer = payer or ChannelPayer(valid_before=2**40)
        self.chain = MemoryChain(CHAIN)
        self.chain.deploy(CHAIN, TOKEN, authorizing_token(USDC))
        self.chain.set_fees(CHAIN, base_fee_wei=10**9, tip_wei=0)
        self.ledger: Any = SqlLedger(database, owner_id="one", now_ms=self.read_clock, limits=limits)
        gas = GasStore(database)
        self.rules = {
            CHAIN: ChainRules(
                chain_id=CHAIN, kind="test", confirmations=((0, confirmations),), assets=(USDC,)
            )
        }
        self.services = SettlementServices(
            MinedRules.on(self.chain, settlement or settlement_rules()),
            ledger=self.ledger,
            gas=gas,
            chains=self.chain,
            rules=self.rules,
            limits=limits,
            now_ms=self.read_clock,
            pause_min_s=0.001,
            pause_max_s=0.005,
        )
        shared: dict[str, Any] = {
            "gas_budget": self.services.gas_budget,
            "limits": limits,
            "now_ms": self.read_clock,
        }
        rules = ChannelRules(chain_id=CHAIN, withdraw_delay=900, native_price_nano=1_000 * 10**9)
        self.networks = ChannelNetworks(
            self.chain,
            {CHAIN: rules},
            chain_rules=self.rules,
            read_look_ms=self.ledger.read_look_ms,
            list_refused=self.ledger.list_refused,
            **shared,
        )
        self.claims = ChannelClaims(
            ledger=self.ledger,
            gas_ledger=gas,
            chains=self.chain,
            networks=self.networks,
            rules=self.rules,
            entropy=lambda size: self.read_clock().to_bytes(size, "big"),
            **shared,
        )
        self.claims.set_signers([KeyWallet.named("an authorizer")])
        self.refunds = ChannelRefunds(
            ledger=self.ledger,
            claims=self.claims,
            networks=self.networks,
            rules=self.rules,
            receipt_poller=self.services.receipt_poller,
            turn_wait_s=turns * 1e-6,
            turn_poll_s=1e-6,
            **shared,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["RefundHarness"]:
        self.chain.mine(CHAIN, time=NOW_S)
        await self.ledger.open()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.ledger.run())
            async with self.services.running():
                await self.networks.refresh()
                self.chain.fund(CHAIN, TOKEN, self.payer.address, FUNDS)
                self.deposit()
                facts = await self.networks.fetch_channel(CHAIN, self.payer.channel_id, USDC)
                await self.ledger.open_channel(
                    CHAIN,
                    self.payer.channel_id,
                    self.payer.config,
                    facts,
                    decimals=USDC.decimals,
                    now_ms=self.now_ms,
                )
                yield self
            self.ledger.stop()

    def read_clock(self) -> int:
        return self.now_ms

    async def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        await self.services.gas_budget.refresh()

    def deposit(self, base_units: int = DEPOSIT, *, salt: bytes = b"\x1d" * 32) -> None:
        payer = replace(self.payer, deposit_salt=salt)
        self.chain.call_channels(CHAIN, payer.encode_deposit(base_units))
        self.chain.bury(CHAIN, self.rules[CHAIN].confirmations[-1][1])

    # ---- The channel in the ledger.

    async def read(self) -> Channel:
        return of_type(Channel, await self.ledger.find_channel(CHAIN, self.payer.channel_id))

    async def open_call(self, units: int = 100, **fields: Any) -> Claim:
        channel = await self.read()
        claim = voucher_claim(channel, units, asset="0x" + TOKEN.hex(), **fields)
        assert claim.channel is not None
        claim = replace(claim, channel=replace(claim.channel, voucher=self.sign(channel.announced + units)))
        assert isinstance(await self.ledger.claim(claim), Claimed)
        return claim

    async def buy(self, units: int = 100) -> Claim:
        """A call that is charged. Returns its claim."""
        claim = await self.open_call(units)
        await end_call(self.ledger, claim)
        return claim

    async def end(self, claim: Claim, after: CallState = CallState.CONSUMED) -> None:
        await end_call(self.ledger, claim, after)

    def sign(self, ceiling: int) -> Voucher:
        return Voucher(ceiling=ceiling, signature=self.payer.sign_voucher(ceiling))

    # ---- The refund, and what came of it.

    async def refund(self, *, ceiling: int | None = None) -> Refunded:
        """By default by a voucher over the announced sum."""
        channel = await self.read()
        voucher = self.sign(channel.announced if ceiling is None else ceiling)
        return await self.refunds.refund(channel, voucher)

    async def fetch_facts(self) -> ChannelFacts:
        return await self.networks.fetch_channel(CHAIN, self.payer.channel_id, USDC)

    def before_send(self, work: Callable[[], Any]) -> None:
        """Runs `work` once, after the refund was computed and before its commit."""
        add_claim = self.ledger.add_claim

        async def late(claim: Any, attempt: Any) -> Any:
            self.ledger.add_claim = add_claim
            await work()
            return await add_claim(claim, attempt)

        self.ledger.add_claim = late

    async def renew(self) -> None:
        """The ledger takes what the chain says of the channel."""
        facts = await self.fetch_facts()
        await self.ledger.renew_channel((await self.read()).key, facts, now_ms=self.now_ms)

    @property
    def wallet_units(self) -> int:
        return self.chain.balance(CHAIN, TOKEN, self.payer.address)

    async def list_open(self, chain_id: ChainId = CHAIN) -> Any:
        return await self.ledger.list_open_claims(chain_id)

    @property
    def sent_count(self) -> int:
        return len(set(self.chain.broadcasts))
