"""A stage for tests of settling: one chain and the books in memory, gas keys, payers, claimed calls, and what settles
them. Nothing in it decides anything.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from eth_account import Account
from pydantic_core import from_json

from tests.kit.authorizations import CHAIN, NOW_S, USDC, Payer
from tests.kit.chain import MemoryChain
from tests.kit.chain_tokens import authorizing_token
from tests.kit.ledger_records import authorized_claim, close_of
from tests.model.gas import MemoryGas
from tests.model.ledger import MemoryBook
from tollway.chain.gas_key import GasKey
from tollway.chain.rules import ChainRules, ConfirmationSteps
from tollway.errors import ChainUnavailable
from tollway.identifiers import Address, ChainId, ListingId, keccak256
from tollway.ledger.authorization import Authorization
from tollway.ledger.book import Claim, Claimed
from tollway.ledger.call import CallState
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.payments.follower import Follower
from tollway.payments.gas_tank import GasTank
from tollway.payments.remote_facilitator import RemoteFacilitator
from tollway.payments.settlement import Settlement, SettlementOrder
from tollway.payments.settlement_rules import FacilitatorRules, SettlementRules
from tollway.payments.settling_notes import SettlingNotes
from tollway.payments.sweeper import Sweeper
from tollway.rates import Rates

HASTY = replace(DEFAULT_LIMITS, settle_wait_s=0.02)
"""Where nothing is mined, nobody need wait for it."""
LISTING = ListingId("api_1")
assert USDC.token is not None
TOKEN: Address = USDC.token


def make_gas_key(name: str = "a gas key") -> GasKey:
    return GasKey.parse(keccak256(name.encode()).hex())


def settlement_rules(**given: Any) -> SettlementRules:
    fields: dict[str, Any] = {
        "chain_id": CHAIN,
        "gas_keys": (make_gas_key(),),
        "min_nano": 10**6,
        "gas_price_max_wei": 10**9,
        "gas_floor_wei": 10**15,
        "listing_budget_wei": 10**18,
        "network_budget_wei": 10**19,
        "block_time_s": 0.01,
    }
    return SettlementRules(**{**fields, **given})


class SettlingScene:
    """Open it with `async with`. `another` is a second gateway over the same books and chain. `told`: what was noted."""

    def __init__(
        self,
        *,
        rules: SettlementRules | None = None,
        limits: Limits = DEFAULT_LIMITS,
        confirmations: ConfirmationSteps = ((0, 1),),
        facilitators: Mapping[ChainId, RemoteFacilitator] | None = None,
        chain: MemoryChain | None = None,
        book: MemoryBook | None = None,
    ) -> None:
        self.now_ms = NOW_S * 1000
        self.limits = limits
        self.chain = chain or MemoryChain(CHAIN)
        if chain is None:
            self.chain.deploy(CHAIN, TOKEN, authorizing_token(USDC))
        self.book = book or MemoryBook(now_ms=self.read_clock, limits=limits)
        self.gas = MemoryGas(self.book.rows)
        self.settlement_rules = rules or settlement_rules()
        self.rules = {
            CHAIN: ChainRules(chain_id=CHAIN, kind="test", confirmations=confirmations, assets=(USDC,))
        }
        self._facilitators = facilitators or {}
        self._stack = AsyncExitStack()
        self.told: list[tuple[object, ...]] = []
        self._wire()

    def _wire(self) -> None:
        notes = note_into(self.told)
        self.tank = GasTank(
            rules={CHAIN: self.settlement_rules},
            assets=(USDC,),
            chains=self.chain,
            gas=self.gas,
            limits=self.limits,
            clock=lambda: self.now_ms / 1000,
            now_ms=self.read_clock,
            facilitators=self._facilitators,
            notes=notes,
        )
        self.follower = Follower(self.chain, (CHAIN,), pause_min_s=0.001, pause_max_s=0.005)
        self.settlement = Settlement(
            book=self.book,
            gas=self.gas,
            chains=self.chain,
            rules=self.rules,
            tank=self.tank,
            follower=self.follower,
            facilitators=self._facilitators,
            limits=self.limits,
            now_ms=self.read_clock,
            rates=Rates(),
            notes=notes,
        )
        self.sweeper = Sweeper(
            book=self.book,
            gas=self.gas,
            chains=self.chain,
            rules=self.rules,
            tank=self.tank,
            facilitators=self._facilitators,
            limits=self.limits,
            now_ms=self.read_clock,
            notes=notes,
        )

    async def __aenter__(self) -> Self:
        if self.chain.head(CHAIN).time < NOW_S:
            self.chain.mine(CHAIN, time=NOW_S)
        await self.tank.refresh()
        group = await self._stack.enter_async_context(asyncio.TaskGroup())
        following = group.create_task(self.follower.run())
        self._stack.callback(following.cancel)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def another(self, owner_id: str = "another") -> "SettlingScene":
        return SettlingScene(
            rules=self.settlement_rules,
            limits=self.limits,
            confirmations=self.rules[CHAIN].confirmations,
            facilitators=self._facilitators,
            chain=self.chain,
            book=self.book.another(owner_id),
        )

    def read_clock(self) -> int:
        return self.now_ms

    def pass_time(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)

    # ---- People and calls.

    def payer(self, name: str = "a payer", *, balance: int = 10**9, **given: Any) -> Payer:
        """A funded wallet."""
        payer = Payer(account=Account.from_key(keccak256(name.encode())), **given)
        self.chain.fund(CHAIN, TOKEN, payer.address, balance)
        return payer

    async def claim(self, payer: Payer | None = None, **given: Any) -> "ClaimedCall":
        """A call whose upstream is being asked; its authorisation is held by it."""
        authorization = (payer or self.payer()).authorize()
        claim = authorized_claim(
            authorization, block_number=self.chain.head(CHAIN).number, listing_id=LISTING, **given
        )
        outcome = await self.book.claim(claim)
        assert isinstance(outcome, Claimed), outcome
        return ClaimedCall(self, claim, authorization)

    async def claim_many(self, count: int) -> "list[ClaimedCall]":
        """Valid for long: each block of the chain in memory takes two seconds."""
        later = NOW_S + 3_600
        payers = (self.payer(nonce=keccak256(b"many %d" % n), valid_before=later) for n in range(count))
        return [await self.claim(payer) for payer in payers]


class ClaimedCall:
    """One call of the scene, and what the books say of it."""

    def __init__(self, scene: SettlingScene, claim: Claim, authorization: Authorization) -> None:
        self.scene = scene
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

    async def read_state(self) -> CallState:
        held = await self.scene.book.find_authorized(self.authorization.key)
        assert held is not None
        return held.state

    async def set_adrift(self) -> bool:
        return await self.scene.book.set_adrift(self.claim.call_id, epoch=1)

    def land(self, *, payee: Address | None = None) -> None:
        """Somebody else uses the authorisation's nonce, for its payee or for another."""
        self.scene.chain.front_run(
            CHAIN,
            TOKEN,
            payer=self.authorization.payer,
            payee=payee or self.authorization.payee,
            base_units=self.authorization.base_units,
            nonce=self.authorization.nonce,
        )


class ScriptedLine:
    """A line to a facilitator: notes what was asked, and answers as told, after doing what a facilitator does. An answer
    that is an exception is raised; `status`: of any GET, None where nobody answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any, dict[str, str]]] = []
        self.looks: list[str] = []
        self.answers: dict[str, object] = {
            "verify": {"isValid": True},
            "settle": {"success": True, "transaction": "0x" + "12" * 32},
        }
        self.settling: ClaimedCall | None = None
        self.status: int | None = 200
        self.is_silent = False

    @property
    def told(self) -> list[str]:
        """How often it was told to settle."""
        return [url for url, *_ in self.asked if url.endswith("/settle")]

    async def post(self, url: str, content: bytes, *, headers: tuple[tuple[str, str], ...]) -> bytes:
        verb = url.rpartition("/")[2]
        self.asked.append((url, from_json(content), dict(headers)))
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
            raise ChainUnavailable("the facilitator does not answer")
        return self.status


def facilitator_at(url: str = "https://facilitator.example") -> FacilitatorRules:
    return FacilitatorRules(
        url=url,
        verify_headers=(("Authorization", "Bearer for-verify"),),
        settle_headers=(("Authorization", "Bearer for-settle"),),
    )


def note_into(told: list[tuple[object, ...]]) -> SettlingNotes:
    """Every note as (its name, what was told)."""
    return SettlingNotes(
        end=lambda *note: told.append(("end", *note)),
        mined=lambda *note: told.append(("mined", *note)),
        balance=lambda *note: told.append(("balance", *note)),
        lane=lambda *note: told.append(("lane", *note)),
        adrift=lambda *note: told.append(("adrift", *note)),
        withdrawn=lambda *note: told.append(("withdrawn", *note)),
    )
