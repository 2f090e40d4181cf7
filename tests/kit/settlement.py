"""Settlement of authorisations, without a gateway around it.

`SettlementServices` wires what a gateway wires: gas budget, receipt poller, settlement and its recovery. `SettlementHarness`
puts them over the ledger model and a chain in memory; `NodeSettlement` over SQLite and a node, for live tests and
measurements. Nothing here decides anything.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eth_account import Account
from pydantic_core import from_json

from tests.kit.chain import MemoryChain
from tests.kit.chain_blocks import authorizing_token
from tests.kit.ledger_records import authorized_claim, close_of
from tests.kit.payer import CHAIN, NOW_S, TIMEOUT_S, USDC, AuthorizationSigner, requirement_of
from tests.kit.sql_ledger import SqlLedger
from tests.model.gas import MemoryGas
from tests.model.ledger import MemoryLedger
from tollway.chain.networks import ChainRules, ConfirmationSteps
from tollway.chain.rpc import ChainEndpoints, RpcReader
from tollway.chain.signer import GasKey
from tollway.errors import ChainUnavailable, Problem
from tollway.ids import Address, CallId, ChainId, ListingId, keccak256
from tollway.ledger.ledger import Claim, Claimed, Close
from tollway.ledger.records import Authorization, CallState, Cover, Dialect
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.money import Asset
from tollway.observability.call_trace import TraceSampler
from tollway.payments.facilitator import FacilitatorClient
from tollway.payments.gas import GasBudget, SettlementMetrics
from tollway.payments.held_calls import HeldCalls
from tollway.payments.orphans import Orphans
from tollway.payments.receipts import ReceiptPoller
from tollway.payments.settlement import Settlement, SettlementOrder, SettlementOutcome, Undecided
from tollway.payments.settlement_recovery import SettlementRecovery
from tollway.payments.settlement_rules import FacilitatorRules, SettlementRules
from tollway.payments.transactions import TransactionReplacer
from tollway.rate_limits.limiter import RateLimiter
from tollway.storage.engine.database import SqliteDatabase
from tollway.storage.engine.migrate import upgrade
from tollway.storage.ledger.gas_store import GasStore

HASTY = replace(DEFAULT_LIMITS, settle_wait_s=0.02)
"""A call does not wait for a settlement that is never mined (`MinedRules`)."""
LISTING = ListingId("api_1")
assert USDC.token is not None
TOKEN: Address = USDC.token
_WEI = 10**18


def make_gas_key(name: str = "a gas key") -> GasKey:
    return GasKey.parse(keccak256(name.encode()).hex())


MINED_WAIT_S = 60.0
"""How long a call waits for a transaction that the chain mines at once: longer than any pause of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MinedRules(SettlementRules):
    """Rules whose wait is short only where it ends by time: while the chain does not mine at once, or blocks must come on top."""

    chain: MemoryChain

    @classmethod
    def on(cls, chain: MemoryChain, rules: SettlementRules) -> Self:
        return cls(**{**{one.name: getattr(rules, one.name) for one in fields(rules)}, "chain": chain})

    def wait_s(self, depth: int, *, limits: Limits) -> float:
        wait_s = SettlementRules.wait_s(self, depth, limits=limits)
        is_mined = depth == 1 and self.facilitator is None and self.chain.mines_at_once(self.chain_id)
        return max(wait_s, MINED_WAIT_S) if is_mined else wait_s


def settlement_rules(**given: Any) -> SettlementRules:
    members: dict[str, Any] = {
        "chain_id": CHAIN,
        "gas_keys": (make_gas_key(),),
        "min_nano": 10**6,
        "gas_price_max_wei": 10**9,
        "gas_floor_wei": 10**15,
        "listing_budget_wei": 10**18,
        "network_budget_wei": 10**19,
        "block_time_s": 0.01,
    }
    return SettlementRules(**{**members, **given})


class SettlementServices:
    """What settles authorisations for one gateway, over any ledger, gas store and chain. `sweep` is the caller's to run."""

    def __init__(
        self,
        settlement_rules: SettlementRules,
        *,
        ledger: Any,
        gas: Any,
        chains: Any,
        rules: Mapping[ChainId, ChainRules],
        limits: Limits,
        now_ms: Callable[[], int],
        clock: Callable[[], float] | None = None,
        facilitators: Mapping[ChainId, FacilitatorClient] | None = None,
        metrics: SettlementMetrics | None = None,
        traces: TraceSampler | None = None,
        **pauses: Any,
    ) -> None:
        """`clock`: seconds for the age of gas prices; that of `now_ms` unless given. `pauses`: of the receipt poller."""
        chain_id = settlement_rules.chain_id
        shared: dict[str, Any] = {
            "chains": chains,
            "gas_ledger": gas,
            "limits": limits,
            "now_ms": now_ms,
            "facilitators": facilitators or {},
            **({} if metrics is None else {"metrics": metrics}),
        }
        self.gas_budget = GasBudget(
            rules={chain_id: settlement_rules},
            assets=rules[chain_id].assets,
            clock=clock or (lambda: now_ms() / 1000),
            **shared,
        )
        self.receipt_poller = ReceiptPoller(chains, (chain_id,), **pauses)
        self.orphans = Orphans(ledger)
        replacer = TransactionReplacer(gas, chains, self.gas_budget, limits=limits, now_ms=now_ms)
        shared |= {"ledger": ledger, "rules": rules, "gas_budget": self.gas_budget, "replacer": replacer}
        self.settlement = Settlement(
            receipt_poller=self.receipt_poller, orphans=self.orphans, rate_limiter=RateLimiter(), **shared
        )
        self.held_calls = HeldCalls(
            ledger=ledger,
            chains=chains,
            rules=rules,
            gas_budget=self.gas_budget,
            open_lookup=self.settlement.open_lookup,
            limits=limits,
            now_ms=now_ms,
        )
        self.settlement_recovery = SettlementRecovery(traces=traces, **shared)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The receipt poller runs meanwhile."""
        await self.gas_budget.refresh()
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self.receipt_poller.run())
            try:
                yield
            finally:
                following.cancel()

    async def sweep(self) -> None:
        """One round of recovery over the settlements that no call waits for."""
        await self.orphans.mark_due()
        await self.settlement_recovery.run_once()


class SettlementHarness:
    """Settlement over the ledger model and a chain in memory; open it with `async with`. `another` is a second gateway over
    the same ledger and chain. `metrics`: every metric that was counted."""

    def __init__(
        self,
        *,
        rules: SettlementRules | None = None,
        limits: Limits = DEFAULT_LIMITS,
        confirmations: ConfirmationSteps = ((0, 1),),
        facilitators: Mapping[ChainId, FacilitatorClient] | None = None,
        chain: MemoryChain | None = None,
        ledger: MemoryLedger | None = None,
        traces: TraceSampler | None = None,
    ) -> None:
        self.now_ms = NOW_S * 1000
        self.limits = limits
        self.chain = chain or MemoryChain(CHAIN)
        if chain is None:
            self.chain.deploy(CHAIN, TOKEN, authorizing_token(USDC))
        self.ledger = ledger or MemoryLedger(now_ms=self.read_clock, limits=limits)
        self.gas = MemoryGas(self.ledger.rows)
        self.settlement_rules = MinedRules.on(self.chain, rules or settlement_rules())
        self.rules = {
            CHAIN: ChainRules(chain_id=CHAIN, kind="test", confirmations=confirmations, assets=(USDC,))
        }
        self._facilitators = facilitators or {}
        self.metrics: list[tuple[object, ...]] = []
        self.services = SettlementServices(
            self.settlement_rules,
            ledger=self.ledger,
            gas=self.gas,
            chains=self.chain,
            rules=self.rules,
            limits=limits,
            now_ms=self.read_clock,
            facilitators=self._facilitators,
            metrics=record_metrics_into(self.metrics),
            traces=traces,
            pause_min_s=0.001,
            pause_max_s=0.005,
        )
        self.gas_budget, self.receipt_poller = self.services.gas_budget, self.services.receipt_poller
        self.settlement, self.settlement_recovery = (
            self.services.settlement,
            self.services.settlement_recovery,
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self.chain.head(CHAIN).time < NOW_S:
            self.chain.mine(CHAIN, time=NOW_S)
        await self._stack.enter_async_context(self.services.running())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def another(self, owner_id: str = "another") -> "SettlementHarness":
        return SettlementHarness(
            rules=self.settlement_rules,
            limits=self.limits,
            confirmations=self.rules[CHAIN].confirmations,
            facilitators=self._facilitators,
            chain=self.chain,
            ledger=self.ledger.another(owner_id),
        )

    def read_clock(self) -> int:
        return self.now_ms

    def pass_time(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)

    # ---- Payers and calls.

    def payer(self, name: str = "a payer", *, balance: int = 10**9, **given: Any) -> AuthorizationSigner:
        """A funded wallet."""
        payer = AuthorizationSigner(account=Account.from_key(keccak256(name.encode())), **given)
        self.chain.fund(CHAIN, TOKEN, payer.address, balance)
        return payer

    async def claim(self, payer: AuthorizationSigner | None = None, **given: Any) -> "ClaimedCall":
        """A call at its upstream; it holds its authorisation."""
        authorization = (payer or self.payer()).authorize()
        claim = authorized_claim(
            authorization, block_number=self.chain.head(CHAIN).number, listing_id=LISTING, **given
        )
        outcome = await self.ledger.claim(claim)
        assert isinstance(outcome, Claimed), outcome
        return ClaimedCall(self, claim, authorization)

    async def check(self, authorization: Authorization, address: str = "192.0.2.1") -> Cover | Problem:
        """The check before a call that is not charged: its look-up counts."""
        with self.settlement.open_lookup(address) as lookup:
            return await self.settlement.check(
                authorization, requirement_of(), timeout_s=TIMEOUT_S, lookup=lookup, listing_id=LISTING
            )

    def is_offered(self, units: int = 10_000, **asset: Any) -> bool:
        return self.gas_budget.is_offered(replace(USDC, **asset), units, LISTING)

    async def leave_orphaned(self, payer: AuthorizationSigner | None = None, **given: Any) -> "ClaimedCall":
        """A call that is signed, broadcast, not mined by the deadline, and orphaned."""
        call = await self.claim(payer, **given)
        await call.leave_orphaned()
        return call

    async def sweep(self, times: int = 1) -> None:
        """Rounds of settlement recovery alone."""
        for _ in range(times):
            await self.settlement_recovery.run_once()

    async def mine_and_sweep(self) -> None:
        """A block with every transaction that was sent, then a round of settlement recovery."""
        self.chain.mine_sent(CHAIN)
        await self.sweep()

    async def claim_many(self, count: int) -> "list[ClaimedCall]":
        """Valid for long: each block of the chain in memory takes two seconds."""
        later = NOW_S + 3_600
        payers = (self.payer(nonce=keccak256(b"many %d" % n), valid_before=later) for n in range(count))
        return [await self.claim(payer) for payer in payers]


class ClaimedCall:
    """One claimed call, and what the ledger says of it."""

    def __init__(self, harness: SettlementHarness, claim: Claim, authorization: Authorization) -> None:
        self.harness = harness
        self.claim = claim
        self.authorization = authorization

    def order(self, **given: Any) -> SettlementOrder:
        fields: dict[str, Any] = {
            "authorization": self.authorization,
            "asset": USDC,
            "close": close_of(self.claim, CallState.SETTLING),
            "listing_id": LISTING,
            "digest": None,
        }
        return SettlementOrder(**{**fields, **given})

    async def settle(self, **given: Any) -> SettlementOutcome:
        return await self.harness.settlement.settle(self.order(**given))

    async def read_state(self) -> CallState:
        held = await self.harness.ledger.find_authorized_call(self.authorization.key)
        assert held is not None
        return held.state

    async def leave_orphaned(self) -> None:
        """Settles without an outcome by the deadline."""
        assert await self.settle() == Undecided()
        assert await self.mark_orphaned()

    async def mark_orphaned(self) -> bool:
        return await self.harness.ledger.mark_orphaned(self.claim.call_id, epoch=1)

    def land(self, *, payee: Address | None = None) -> None:
        """Another account uses the authorisation's nonce, for its payee or for another."""
        self.harness.chain.settle_by_third_party(
            CHAIN,
            TOKEN,
            payer=self.authorization.payer,
            payee=payee or self.authorization.payee,
            base_units=self.authorization.base_units,
            nonce=self.authorization.nonce,
        )


class ScriptedFacilitator:
    """A connection to a facilitator: keeps each request, does what a facilitator does, and answers as the test says. An
    answer that is an exception is raised; `status`: of any GET, None for no answer."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any, dict[str, str]]] = []
        self.looks: list[str] = []
        self.answers: dict[str, object] = {
            "verify": {"isValid": True},
            "settle": {"success": True, "transaction": "0x" + "12" * 32},
        }
        self.settling: ClaimedCall | None = None
        self.status: int | None = 200
        self.is_silent = False

    @property
    def settle_requests(self) -> list[str]:
        """The requests to settle."""
        return [url for url, *_ in self.requests if url.endswith("/settle")]

    async def post(self, url: str, content: bytes, *, headers: tuple[tuple[str, str], ...]) -> bytes:
        verb = url.rpartition("/")[2]
        self.requests.append((url, from_json(content), dict(headers)))
        if verb == "settle" and self.settling is not None:
            self.settling.land()
        answer = self.answers[verb]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()

    async def fetch_status(self, url: str, *, headers: tuple[tuple[str, str], ...]) -> int:
        self.looks.append(url)
        if self.is_silent:
            await asyncio.Event().wait()
        if self.status is None:
            raise ChainUnavailable("the facilitator does not respond")
        return self.status


def facilitator_at(url: str = "https://facilitator.example") -> FacilitatorRules:
    return FacilitatorRules(
        url=url,
        verify_headers=(("Authorization", "Bearer for-verify"),),
        settle_headers=(("Authorization", "Bearer for-settle"),),
    )


def record_metrics_into(metrics: list[tuple[object, ...]]) -> SettlementMetrics:
    """Every metric as (its name, its values)."""
    return SettlementMetrics(
        end=lambda *note: metrics.append(("end", *note)),
        mined=lambda *note: metrics.append(("mined", *note)),
        balance=lambda *note: metrics.append(("balance", *note)),
        unmined=lambda *note: metrics.append(("unmined", *note)),
        orphaned=lambda *note: metrics.append(("orphaned", *note)),
        withdrawn=lambda *note: metrics.append(("withdrawn", *note)),
        claim_reserve=lambda *note: metrics.append(("claim_reserve", *note)),
        channel=lambda *note: metrics.append(("channel", *note)),
    )


class NodeSettlement:
    """Settlement over SQLite and a node; open it with `async with`. Several over one file and one node are several gateways,
    one after another.

    `skew_s` sets its clock ahead, so that a later gateway finds the lease of an earlier one ended.
    """

    def __init__(
        self,
        *,
        rpc_url: str,
        asset: Asset,
        path: Path,
        gas_keys: tuple[GasKey, ...],
        limits: Limits = DEFAULT_LIMITS,
        confirmations: ConfirmationSteps = ((0, 1),),
        wallet_factories: tuple[Address, ...] = (),
        skew_s: float = 0.0,
    ) -> None:
        chain_id = asset.chain_id
        self.asset = asset
        self.skew_s = skew_s
        self.database = SqliteDatabase(path)
        self.chains = RpcReader({chain_id: ChainEndpoints(urls=(rpc_url,))}, limits=limits)
        self.rules = {
            chain_id: ChainRules(chain_id=chain_id, kind="test", confirmations=confirmations, assets=(asset,))
        }
        self.ledger = SqlLedger(
            self.database, owner_id=secrets.token_hex(8), now_ms=self.read_clock, limits=limits
        )
        self.gas = GasStore(self.database)
        rules = SettlementRules(
            chain_id=chain_id,
            gas_keys=gas_keys,
            min_nano=1,
            gas_price_max_wei=10**12,
            gas_floor_wei=1,
            listing_budget_wei=1_000 * _WEI,
            network_budget_wei=10_000 * _WEI,
            wallet_factories=wallet_factories,
        )
        self.services = SettlementServices(
            rules,
            ledger=self.ledger,
            gas=self.gas,
            chains=self.chains,
            rules=self.rules,
            limits=limits,
            now_ms=self.read_clock,
            clock=time.monotonic,
        )
        self.gas_budget = self.services.gas_budget
        self.settlement, self.settlement_recovery = (
            self.services.settlement,
            self.services.settlement_recovery,
        )
        self._stack = AsyncExitStack()

    def read_clock(self) -> int:
        return int((time.time() + self.skew_s) * 1000)

    async def __aenter__(self) -> Self:
        await self.database.open()
        self._stack.push_async_callback(self.database.close)
        await upgrade(self.database)
        await self.chains.open()
        self._stack.push_async_callback(self.chains.close)
        await self.ledger.open()
        group = await self._stack.enter_async_context(asyncio.TaskGroup())
        group.create_task(self.ledger.run())
        self._stack.callback(self.ledger.stop)
        await self._stack.enter_async_context(self.services.running())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    # ---- Calls.

    async def claim(
        self,
        key: bytes,
        payee: Address,
        *,
        base_units: int = 10_000,
        valid_before: int = 2**40,
        make_signer: Callable[..., AuthorizationSigner] = AuthorizationSigner,
    ) -> "NodeCall":
        """A call that waits for its upstream, paid by a wallet's fresh signature."""
        authorization = make_signer(
            account=Account.from_key(key),
            asset=self.asset,
            payee=payee,
            base_units=base_units,
            valid_before=valid_before,
            nonce=secrets.token_bytes(32),
        ).authorize(dialect=Dialect.X402_V2)
        claim = self._claim_of(authorization)
        outcome = await self.ledger.claim(claim)
        assert isinstance(outcome, Claimed), outcome
        return NodeCall(authorization, claim)

    def _claim_of(self, authorization: Authorization) -> Claim:
        return Claim(
            call_id=CallId("call_" + secrets.token_hex(13)),
            listing_id=LISTING,
            listing_name="Quotes",
            provider=authorization.payee,
            payer=authorization.payer,
            method="GET",
            path="/quote",
            digest=secrets.token_bytes(32),
            price="0.01",
            price_units=self.asset.floor_to_ledger(authorization.base_units),
            currency=self.asset.symbol,
            payment_id=None,
            chain_id=authorization.chain_id,
            asset=self.asset.key,
            decimals=self.asset.decimals,
            tx_hash=None,
            pay_to=authorization.payee,
            nonce=None,
            ends_plain=False,
            is_plain=False,
            idempotency_key=None,
            request_id="live",
            created_ms=self.read_clock(),
            authorization=authorization,
            cover=Cover(balance_units=10**15, block_number=0),
        )

    async def settle(self, call: "NodeCall") -> SettlementOutcome:
        return await self.settlement.settle(
            SettlementOrder(
                authorization=call.authorization,
                asset=self.asset,
                close=call.close,
                listing_id=LISTING,
                digest=None,
            )
        )

    async def read_state(self, call: "NodeCall") -> CallState:
        held = await self.ledger.find_authorized_call(call.authorization.key)
        assert held is not None
        return held.state


class NodeCall:
    """A claimed call, and how its upstream answered."""

    def __init__(self, authorization: Authorization, claim: Claim) -> None:
        self.authorization = authorization
        self.claim = claim
        self.close = Close(
            call_id=claim.call_id,
            epoch=1,
            after=CallState.SETTLING,
            http_status=200,
            upstream_status=200,
            latency_ms=1,
            upstream_latency_ms=1,
            error=None,
        )
