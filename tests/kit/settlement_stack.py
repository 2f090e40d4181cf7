"""Settling for real: books in SQLite, a node, gas keys and everything that settles, without a gateway around it. For live
tests and measurements. Nothing in it decides anything.
"""

import asyncio
import secrets
import time
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eth_account import Account

from tollway.chain.gas_key import GasKey
from tollway.chain.rpc import ChainEndpoints, RpcReader
from tollway.chain.rules import ChainRules, ConfirmationSteps
from tollway.identifiers import Address, CallId, ListingId
from tollway.ledger.authorization import Authorization, Cover, Dialect
from tollway.ledger.book import Claim, Claimed, Close
from tollway.ledger.call import CallState
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.money import Asset
from tollway.payments.follower import Follower
from tollway.payments.gas_tank import GasTank
from tollway.payments.settlement import Settlement, SettlementOrder, SettlementOutcome
from tollway.payments.settlement_rules import SettlementRules
from tollway.payments.sweeper import Sweeper
from tollway.rates import Rates
from tollway.storage.book_store import BookStore
from tollway.storage.database import SqliteDatabase
from tollway.storage.gas_store import GasStore
from tollway.storage.migrate import upgrade

LISTING = ListingId("api_1")
_WEI = 10**18
_FIELDS = (
    ("from", "address"),
    ("to", "address"),
    ("value", "uint256"),
    ("validAfter", "uint256"),
    ("validBefore", "uint256"),
    ("nonce", "bytes32"),
)


class SettlingDesk:
    """Open it with `async with`. Several over one file and one node are several gateways, one after another.

    `skew_s` sets its clock ahead: a later gateway finds an earlier one dead at once.
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
        self.book = BookStore(
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
        )
        self.tank = GasTank(
            rules={chain_id: rules},
            assets=(asset,),
            chains=self.chains,
            gas=self.gas,
            limits=limits,
            clock=time.monotonic,
            now_ms=self.read_clock,
        )
        self.follower = Follower(self.chains, (chain_id,))
        shared: dict[str, Any] = {
            "book": self.book,
            "gas": self.gas,
            "chains": self.chains,
            "rules": self.rules,
            "tank": self.tank,
            "facilitators": {},
            "limits": limits,
            "now_ms": self.read_clock,
        }
        self.settlement = Settlement(follower=self.follower, rates=Rates(), **shared)
        self.sweeper = Sweeper(**shared)
        self._stack = AsyncExitStack()

    def read_clock(self) -> int:
        return int((time.time() + self.skew_s) * 1000)

    async def __aenter__(self) -> Self:
        await self.database.open()
        self._stack.push_async_callback(self.database.close)
        await upgrade(self.database)
        await self.chains.open()
        self._stack.push_async_callback(self.chains.close)
        await self.book.open()
        group = await self._stack.enter_async_context(asyncio.TaskGroup())
        group.create_task(self.book.run())
        self._stack.callback(self.book.stop)
        following = group.create_task(self.follower.run())
        self._stack.callback(following.cancel)
        await self.tank.refresh()
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
        self, key: bytes, payee: Address, *, base_units: int = 10_000, valid_before: int = 2**40
    ) -> "DeskCall":
        """A call that waits for its upstream, paid by a wallet's fresh signature."""
        authorization = sign_authorization(
            key, payee, asset=self.asset, base_units=base_units, valid_before=valid_before
        )
        claim = self._claim_of(authorization)
        outcome = await self.book.claim(claim)
        assert isinstance(outcome, Claimed), outcome
        return DeskCall(authorization, claim)

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

    async def settle(self, call: "DeskCall") -> SettlementOutcome:
        return await self.settlement.settle(
            SettlementOrder(
                authorization=call.authorization,
                asset=self.asset,
                close=call.close,
                listing_id=LISTING,
                digest=None,
            )
        )

    async def read_state(self, call: "DeskCall") -> CallState:
        held = await self.book.find_authorized(call.authorization.key)
        assert held is not None
        return held.state


class DeskCall:
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


def sign_authorization(
    key: bytes, payee: Address, *, asset: Asset, base_units: int, valid_before: int
) -> Authorization:
    """A fresh nonce, signed by a plain wallet."""
    assert asset.domain is not None
    assert asset.token is not None
    account, nonce = Account.from_key(key), secrets.token_bytes(32)
    domain = {
        "name": asset.domain.name,
        "version": asset.domain.version,
        "chainId": asset.chain_id,
        "verifyingContract": str(asset.token),
    }
    message = {
        "from": account.address,
        "to": str(payee),
        "value": base_units,
        "validAfter": 0,
        "validBefore": valid_before,
        "nonce": nonce,
    }
    types = {"TransferWithAuthorization": [{"name": name, "type": kind} for name, kind in _FIELDS]}
    return Authorization(
        chain_id=asset.chain_id,
        token=asset.token,
        payer=Address.parse(account.address),
        payee=payee,
        base_units=base_units,
        valid_after=0,
        valid_before=valid_before,
        nonce=nonce,
        signature=bytes(Account.sign_typed_data(key, domain, types, message).signature),
        dialect=Dialect.X402_V2,
    )
