"""A storm of kills: callers of every kind who do not give up, and what the books, the upstream and the chain say of each
of their errands afterwards. Loaded by `conftest.py`; `test_kills.py` runs it.
"""

import asyncio
import contextlib
import itertools
import random
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp
from sqlalchemy import Connection, select

from tests.kit.authorization_payer import V2, AuthorizationPayer, Quote
from tests.kit.gateway_cluster import API, PRICE_UNITS, bound, plain
from tests.kit.gateway_process import GatewayProcess, poll
from tests.kit.scripted_upstream import ScriptedUpstream
from tests.kit.signed_calls import balance_of
from tests.long.torture.measures import AT_ONCE, Pace, Progress
from tollway.sandbox.chain import START_USDC_UNITS
from tollway.storage.engine.database import connect_database
from tollway.storage.ledger.ledger_tables import call_table, call_terms_table, payment_table

KINDS = ("credit", "bound", "keyed", "tx", "x402")
SHAPES = ("echo", "echo", "echo", "slow", "long", "broken", "fail")
"""How the upstream behaves: see `ScriptedUpstream`."""
CREDIT_CALLS = 20_000
TRIES = 6
TRY_DEADLINE_S = 60.0
REFUSED_PAUSE_S = 0.02
REVIEWERS = 8
WAITING = {
    "idempotency_in_progress",
    "payment_outcome_unknown",
    "storage_unavailable",
    "chain_unavailable",
    "overloaded",
    "upstream_unavailable",
    "payment_pending",
}
"""Answers after which a caller asks the same again."""
RUNNING = ("forwarding", "settling")
USED = {"payment_already_used", "nonce_reused"}
BROKEN = {"upstream_bad_response", "upstream_unreachable"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One whole answer."""

    status: int
    code: str | None
    state: str | None
    call_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistentRequest:
    """One request that its caller sends, the same each time, until somebody tells how it ended."""

    kind: str
    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    body: bytes | None
    payer: Any
    tx_hash: Any = None
    told: list[Told] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """It has an answer, or knows that there is none to be had; the money of a charged call waits for nothing."""
        return bool(self.told) and (self.told[-1].code not in WAITING or self.told[-1].state == "charged")

    @property
    def answers(self) -> list[Told]:
        """Of the upstream, or what is stored of it."""
        return [told for told in self.told if told.code is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What the books have about one claim."""

    call_id: str
    method: str
    path: str
    state: str
    attempts: int
    upstream_status: int | None

    @property
    def is_sent(self) -> bool:
        return self.state != "released" or self.upstream_status is not None


def find_claims(connection: Connection, *, states: Collection[str] = ()) -> list[Claimed]:
    """Every claim, or those in some states."""
    columns = call_table.c
    names = ("method", "path", "state", "attempts", "upstream_status")
    query = select(
        columns.id, call_terms_table.c.method, *(columns[name] for name in names if name != "method")
    ).join(call_terms_table, call_terms_table.c.id == columns.terms_id)
    rows = connection.execute(query.where(columns.state.in_(states)) if states else query).mappings()
    return [Claimed(call_id=row["id"], **{name: row[name] for name in names}) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class KillLoad:
    cluster: Any
    processes: list[GatewayProcess]
    upstream: ScriptedUpstream
    provider: Any
    api_id: str
    url: str
    process_dice: random.Random
    quote: Quote
    errands: list[PersistentRequest] = field(default_factory=list)
    answered: Progress = field(default_factory=Progress)
    paid: Counter[str] = field(default_factory=Counter)
    _histories: dict[Any, list[Any]] = field(default_factory=dict)

    @classmethod
    async def start(
        cls,
        cluster: Any,
        processes: list[GatewayProcess],
        upstream: ScriptedUpstream,
        *,
        url: str,
        dice: random.Random,
    ) -> "KillLoad":
        provider = await cluster.wallet()
        first = processes[0]
        api_id = await cluster.publish(first, provider, endpoint=upstream.url)
        quote = Quote.read(await cluster.call(first, api_id, "/echo/quote"))
        upstream.heads.clear()  # the gateway has probed the upstream
        return cls(
            cluster=cluster,
            processes=processes,
            upstream=upstream,
            provider=provider,
            api_id=api_id,
            url=url,
            process_dice=dice,
            quote=quote,
        )

    # ---- While it blows.

    async def call_on(
        self, kind: str, dice: random.Random, is_over: Callable[[], bool], *, pace: Pace = AT_ONCE
    ) -> None:
        """One caller: an errand after the other, each tried until it is told. `dice` draw the errands."""
        payer = await self.cluster.wallet()
        credit = None if kind in ("tx", "x402") else await self.pay(payer, CREDIT_CALLS)
        nonces = itertools.count()
        while not is_over():
            await pace.wait_turn()
            tx_hash = await self.pay(payer, 1, nonce=next(nonces)) if kind == "tx" else credit
            persistent = self.make_persistent(kind, dice, payer, tx_hash)
            self.errands.append(persistent)
            await self.pursue(persistent, tries=TRIES)

    async def pursue(self, persistent: PersistentRequest, *, tries: int) -> None:
        """Until it is told how it ended, or so many tries came to nothing."""
        while tries and not persistent.is_done:
            try:
                await self.run(persistent)
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(
                    REFUSED_PAUSE_S
                )  # no listener: the next gateway is starting, and this try does not count
            except (aiohttp.ClientError, OSError):
                tries -= 1  # the gateway was killed, or the upstream cut the response
            else:
                tries -= 1

    async def pay(self, payer: Any, calls: int, *, nonce: int = 0) -> Any:
        """A transfer worth so many calls, mined."""
        driver, token = self.cluster.driver, self.cluster.playground.token
        if calls > 1:
            minted = await driver.transact(token, "mint", payer.address, calls * PRICE_UNITS, key=payer.key)
            await driver.wait_receipt(minted)
            nonce += 1
        amount = calls * PRICE_UNITS
        payload = token.artifact.function("transfer").encode((str(self.provider.address), amount))
        sent = await driver.send(key=payer.key, to=token.address, payload=payload, nonce=nonce)
        await driver.wait_receipt(sent)
        self.paid["units"] += amount
        return sent

    def make_persistent(self, kind: str, dice: random.Random, payer: Any, tx_hash: Any) -> PersistentRequest:
        shape, number = dice.choice(SHAPES), f"{len(self.errands)}-{self.api_id}"
        method = "POST" if shape in ("echo", "slow", "fail") and dice.random() < 0.5 else "GET"
        path, query = f"/{shape}/{kind}/{number}", f"?s={dice.uniform(0.0, 0.4):.3f}"
        body = secrets.token_bytes(64) if method == "POST" else None
        return PersistentRequest(
            kind=kind,
            method=method,
            path=path,
            query=query,
            headers=self._show(kind, payer, tx_hash, path + query, method=method, body=body or b""),
            body=body,
            payer=payer,
            tx_hash=tx_hash,
        )

    def _show(
        self, kind: str, payer: Any, tx_hash: Any, rest: str, *, method: str, body: bytes
    ) -> list[tuple[str, str]]:
        gateway = self.processes[0]
        match kind:
            case "x402":
                hand = AuthorizationPayer(
                    cluster=self.cluster, gateway=gateway, api_id=self.api_id, signer=payer
                )
                return [hand.show(self.quote, V2, valid_before=int(time.time()) + 3_600)]
            case "bound":
                chain_id = self.cluster.driver.chain_id
                return bound(
                    payer, tx_hash, gateway, self.api_id, rest, chain_id=chain_id, method=method, body=body
                )
            case "keyed":
                return [*plain(payer, tx_hash), ("Idempotency-Key", secrets.token_hex(12))]
        return plain(payer, tx_hash)

    async def run(self, persistent: PersistentRequest) -> None:
        """Sends it to whichever gateway, and takes down what that one says. A dead one says nothing."""
        url = f"{self.process_dice.choice(self.processes).base_url}{API}/gateway/{self.api_id}"
        reply = await self.cluster.send(
            url + persistent.path + persistent.query,
            method=persistent.method,
            headers=persistent.headers,
            content=persistent.body,
            deadline_s=TRY_DEADLINE_S,
        )
        call_id = reply.headers.get("Tollway-Call-Id")
        told = Told(status=reply.status, code=reply.code, state=reply.state, call_id=call_id)
        persistent.told.append(told)
        self.answered.add()
        assert not reply.asks_for_money, (persistent, reply.body)
        assert told.code is None or told.code in WAITING | USED | BROKEN, (
            persistent,
            reply.status,
            reply.body,
        )

    # ---- When it is over.

    async def wait_settled(self, *, deadline_s: float) -> None:
        """No call is under way any more: each is spent, free or held."""

        running: list[Claimed] = []
        async with self._open_ledger() as database:

            async def is_settled() -> bool:
                running[:] = await database.read(partial(find_claims, states=RUNNING))
                return not running

            try:
                await poll(is_settled, deadline_s=deadline_s, what="an end of every call")
            except AssertionError:
                print("still running:", running)
                raise

    async def finish(self) -> None:
        """Whoever was not told asks the same once more, and is told: without being asked for money. (What the upstream
        cuts off each time it can only be cut off again.)"""
        open_errands = [persistent for persistent in self.errands if not persistent.is_done]
        waiting = iter(open_errands)

        async def pursue() -> None:
            for persistent in waiting:
                await self.pursue(persistent, tries=TRIES)

        async with asyncio.TaskGroup() as group:
            for _ in range(REVIEWERS):
                group.create_task(pursue())
        untold = [
            (persistent.method, persistent.path, persistent.told[-1:])
            for persistent in open_errands
            if not persistent.is_done and not persistent.path.startswith("/broken/")
        ]
        assert not untold, untold

    @contextlib.asynccontextmanager
    async def _open_ledger(self) -> AsyncIterator[Any]:
        """The books, read from outside."""
        database = connect_database(self.url)
        try:
            yield database
        finally:
            await database.close()

    async def find_charged(self) -> set[str]:
        """The ids of the calls that the ledger has as charged."""
        async with self._open_ledger() as database:
            rows = await database.read(partial(find_claims, states=("consumed",)))
        return {claim.call_id for claim in rows}

    async def check_upstream(self) -> Counter[str]:
        """No call ran without a claim, or twice under one that may run once; no answer is without its record."""
        claims: dict[tuple[str, str], list[Claimed]] = {}
        async with self._open_ledger() as database:
            rows = await database.read(find_claims)
        for claim in rows:
            claims.setdefault((claim.method, claim.path), []).append(claim)
        assert not set(self.upstream.heads) - set(claims), "the upstream saw what nobody claimed"
        for persistent in self.errands:
            mine = claims.get((persistent.method, persistent.path), [])
            self._check_errand(persistent, mine, self.upstream.heads[persistent.method, persistent.path])
        return Counter(claim.state for found in claims.values() for claim in found)

    def _check_errand(self, persistent: PersistentRequest, claims: list[Claimed], seen: int) -> None:
        story = (persistent, claims, seen)
        # A released call was not sent, or its response costs nothing, or its authorisation became credit.
        sent = [claim for claim in claims if claim.is_sent or persistent.kind == "x402"]
        assert seen <= sum(claim.attempts for claim in sent), story
        is_repeatable = persistent.method == "GET" or persistent.kind == "keyed"
        assert is_repeatable or all(claim.attempts == 1 for claim in claims), story
        ended = [claim for claim in claims if claim.state == "consumed"]
        assert len(ended) <= seen, f"charged for what was never sent: {story}"
        if persistent.kind in ("bound", "keyed", "tx", "x402"):
            assert len([claim for claim in claims if claim.state != "released"]) <= 1, story
        known = {claim.call_id: claim for claim in claims}
        for told in persistent.answers:
            assert told.call_id in known, f"an answer without a record: {story}"
            claim = known[told.call_id]
            if told.status == 200:
                assert (claim.state, claim.upstream_status, told.state) == ("consumed", 200, "charged"), story
            else:
                assert (told.status, told.state, claim.state) == (500, "released", "released"), story

    async def check_payers(self, gateway: Any) -> Counter[str]:
        """Each payer reads what became of the money, and what is free can be spent. Gives how many payments are what."""
        fates: Counter[str] = Counter()
        errands = iter(self._last_of_each_payment())

        async def review() -> None:
            for persistent in errands:
                fates[f"{persistent.kind} {await self._check_payer(gateway, persistent)}"] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(REVIEWERS):
                group.create_task(review())
        return fates

    def _last_of_each_payment(self) -> list[PersistentRequest]:
        """Of a payment worth many calls the last errand stands for all."""
        return list(
            {
                persistent.path if persistent.kind == "x402" else persistent.tx_hash: persistent
                for persistent in self.errands
            }.values()
        )

    async def _check_payer(self, gateway: Any, persistent: PersistentRequest) -> str:
        if persistent.kind == "x402":
            return await self._check_signed(gateway, persistent)
        shown = await self.cluster.payment(gateway, persistent.payer, persistent.tx_hash)
        story = (persistent, shown)
        calls = await self._history(gateway, persistent.payer)
        mine = [call for call in calls if call["payment"]["transaction"] == str(persistent.tx_hash)]
        states = self._count_states(mine)
        taken = states["charged"] + states["held"]
        assert int(shown["credit"]) == int(shown["amount"]) - taken * PRICE_UNITS, (story, states)
        assert shown["reason"] == ("held_by_call" if states["held"] else None), (story, states)
        held = {call["id"] for call in mine if call["payment"]["state"] == "held"}
        assert held <= set(shown["calls"]) <= {call["id"] for call in mine}, (story, held)
        if persistent.kind != "tx":
            assert shown["state"] == "credited", story
            return "credited, some held" if held else "credited"
        assert (taken, shown["state"]) in ((0, "credited"), (1, "spent")), (story, states)
        again = await self._ask_again(gateway, persistent, known=shown["calls"])
        if not taken:
            assert (again.status, again.state) == (200, "charged"), again.body
            return "free"
        assert (again.status, again.code) == (409, "payment_already_used"), again.body
        assert again.json["callId"] in shown["calls"]
        return "held" if states["held"] else "spent"

    async def _ask_again(self, gateway: Any, persistent: PersistentRequest, *, known: list[str]) -> Any:
        """What another call on that payment gets, once there is nothing to wait for: where the books were too slow for
        it, not even for itself."""
        path, headers = f"/echo/after{persistent.path}", plain(persistent.payer, persistent.tx_hash)

        async def ask() -> Any:
            reply = await self.cluster.call(gateway, self.api_id, path, headers=headers)
            is_in_its_own_way = reply.code in USED and reply.json["callId"] not in known
            return None if reply.code in WAITING or is_in_its_own_way else reply

        return await poll(ask, what="an answer")

    async def _check_signed(self, gateway: Any, persistent: PersistentRequest) -> str:
        calls = await self._history(gateway, persistent.payer)
        states = self._count_states([call for call in calls if call["path"] == persistent.path])
        assert states["charged"] + states["held"] <= 1, (persistent, calls)
        return "spent" if states["charged"] else "held" if states["held"] else "free"

    def _count_states(self, calls: list[Any]) -> Counter[str]:
        """What became of their prices; and each one that is held says why."""
        for call in calls:
            is_held = call["payment"]["state"] == "held"
            assert not is_held or (call["status"] == "unknown" and call["error"]), call
        states = Counter(call["payment"]["state"] for call in calls)
        assert set(states) <= {"charged", "held", "released"}, calls
        return states

    async def _history(self, gateway: Any, payer: Any) -> list[Any]:
        """Every call of a payer."""
        if payer.address not in self._histories:
            self._histories[payer.address] = await self.cluster.history(gateway, payer)
        return self._histories[payer.address]

    async def check_chain(self) -> int:
        """Every coin that moved to the provider by an authorisation stands in the books, and no other does."""
        columns = payment_table.c
        query = select(columns.value_units).where(
            columns.payee == bytes(self.provider.address), columns.is_authorized, ~columns.is_escrow
        )
        async with self._open_ledger() as database:
            settled = sum(await database.read(lambda connection: connection.execute(query).scalars().all()))
        earned = await balance_of(self.cluster, self.provider.address) - START_USDC_UNITS
        assert earned == self.paid["units"] + settled
        return settled // PRICE_UNITS
