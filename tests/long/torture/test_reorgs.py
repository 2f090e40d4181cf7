"""Blocks that are replaced, one to ten deep, under payments in every state: a spent payment that left the chain is a
debt, one that moved stays paid, and no value is spent twice."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import select

from tests.kit.gateway_cluster import PRICE_UNITS, plain
from tests.kit.gateway_process import poll
from tests.kit.node_proxy import NodeProxy, run_node_proxy
from tests.kit.signed_calls import QUICK, PaidListing, SignedCall, find_pending
from tollway.ids import TxHash, keccak256
from tollway.sandbox.chain import START_USDC_UNITS
from tollway.storage.engine.database import connect_database
from tollway.storage.ledger.ledger_tables import payment_table

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

DEADLINE_S = 60.0
WORTH = 3
"""Calls that one payment buys."""
KINDS = ("dropped", "moved", "spoiled")
"""Its transaction is in no block any more; in another one; or in another one, where it does something else: it fails."""
SETTINGS = {
    **QUICK,
    "TEST_LIMIT_WATCH_INTERVAL_S": "0.3",
    "TOLLWAY_LIMIT_SETTLE_WAIT_S": "20",
}

USED_UP = ("payment_insufficient", "payment_already_used")
_TRANSFER = "0x" + keccak256(b"Transfer(address,address,uint256)").hex()
_NUMBERS = itertools.count(1)


@dataclass(slots=True, kw_only=True)
class Customer:
    """One payer and its transactions; `path` is its own, so that the upstream's log counts its calls."""

    kind: str
    spent: int
    wallet: Any
    raw: bytes = b""
    paid: list[TxHash] = field(default_factory=list)
    signed: SignedCall | None = None
    path: str = field(default_factory=lambda: f"/echo/customer-{next(_NUMBERS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A gateway on a chain that is reorganised."""

    cluster: Any
    stall: PaidListing
    gas: Any
    thief: Any
    line: NodeProxy
    database: Any

    @property
    def driver(self) -> Any:
        return self.cluster.driver

    @property
    def gateway(self) -> Any:
        return self.stall.gateways[0]

    async def show(self, customer: Customer, tx_hash: TxHash) -> Any:
        headers = plain(customer.wallet, tx_hash)
        return await self.cluster.call(self.gateway, self.stall.api_id, customer.path, headers=headers)

    def served(self, customer: Customer) -> int:
        signed = 0 if customer.signed is None else customer.signed.seen
        return signed + int(self.cluster.provider.count(customer.path))

    async def state(self, customer: Customer, tx_hash: TxHash) -> str:
        return str((await self.cluster.payment(self.gateway, customer.wallet, tx_hash))["state"])

    async def read_payments(self, tx_hashes: list[TxHash]) -> dict[TxHash, tuple[str, bytes]]:
        """State and block of each payment in the ledger."""
        columns = select(payment_table.c.tx_hash, payment_table.c.state, payment_table.c.block_hash)
        query = columns.where(payment_table.c.tx_hash.in_([bytes(one) for one in tx_hashes]))
        rows = await self.database.read(lambda connection: connection.execute(query).all())
        return {TxHash(row.tx_hash): (row.state, bytes(row.block_hash)) for row in rows}

    async def wait_gone(self, tx_hashes: list[TxHash]) -> None:
        async def are_gone() -> bool:
            states = await self.read_payments(tx_hashes)
            return all(states[one][0] == "gone" for one in tx_hashes)

        await poll(are_gone, what="payments that are gone")

    async def wait_moved(self, tx_hashes: list[TxHash]) -> None:
        """Returns when the ledger has the new blocks of the payments."""
        receipts = [await self.driver.wait_receipt(one) for one in tx_hashes]

        async def are_known() -> bool:
            states = await self.read_payments(tx_hashes)
            return all(states[one.tx_hash] == ("unfinal", one.block_hash) for one in receipts)

        await poll(are_known, what="the new blocks in the books")

    async def sign_transfer(self, customer: Customer, calls: int) -> tuple[bytes, TxHash]:
        token = self.cluster.playground.token
        payload = token.artifact.function("transfer").encode(
            (str(self.stall.provider.address), calls * PRICE_UNITS)
        )
        signed: tuple[bytes, TxHash] = await self.driver.sign(
            key=customer.wallet.key, to=token.address, payload=payload
        )
        return signed

    async def pay(self, customer: Customer, calls: int) -> TxHash:
        raw, tx_hash = await self.sign_transfer(customer, calls)
        await self.broadcast(raw)
        await self.driver.wait_receipt(tx_hash)
        customer.paid.append(tx_hash)
        return tx_hash

    async def broadcast(self, raw: bytes) -> None:
        await self.driver.rpc("eth_sendRawTransaction", "0x" + raw.hex())

    async def sign_theft(self, customer: Customer, nonce: int) -> bytes:
        """A transfer of all tokens of the wallet, by an allowance: every later transfer fails."""
        token = self.cluster.playground.token
        payload = token.artifact.function("transferFrom").encode(
            (str(customer.wallet.address), str(self.thief.address), START_USDC_UNITS)
        )
        raw, _ = await self.driver.sign(
            key=self.thief.key, to=token.address, payload=payload, nonce=nonce, gas=200_000
        )
        return bytes(raw)

    async def give(self, customer: Customer) -> None:
        await self.cluster.send_tokens(self.thief, customer.wallet.address, 100 * PRICE_UNITS)

    async def check_ledger(self) -> None:
        report = await self.cluster.audit(self.gateway)
        assert report.wrong_periods == ()
        assert report.wrong == ()
        await self.cluster.check_exports(self.gateway)


@contextlib.asynccontextmanager
async def open_reef(cluster: Any, **settings: str) -> AsyncIterator[Harness]:
    gas, thief = await cluster.wallets(2)
    async with run_node_proxy(cluster.session, cluster.driver.rpc_url) as line:
        line.is_final = False
        env = {"TOLLWAY_RPC_SANDBOX": line.url, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}
        url = f"sqlite:///{cluster.folder}/reef-{next(_NUMBERS)}.sqlite3"
        wanted = {**SETTINGS, **env, **settings}
        async with cluster.gateways(1, database_url=url, settings=wanted) as (process,):
            stall = await PaidListing.open(cluster, [process])
            database = connect_database(url)
            try:
                yield Harness(
                    cluster=cluster, stall=stall, gas=gas, thief=thief, line=line, database=database
                )
            finally:
                await database.close()


async def test_no_reorganisation_makes_a_payment_worth_more_than_it_is(
    own_chain_cluster: Any, torture: Any
) -> None:
    depths = torture.pick(short=[torture.random.randint(1, 10)], long=list(range(1, 11)))
    debts = 0
    async with open_reef(own_chain_cluster) as harness:
        for depth in depths:
            await harness.driver.rpc("evm_setTime", int(time.time()))
            customers = await open_accounts(harness)
            await mine_together(harness, customers)
            await spend_some(harness, customers)
            await replace_blocks(harness, customers, depth)
            await wait_noticed(harness, customers)
            await asyncio.gather(*(check_fate(harness, customer) for customer in customers))
            await harness.check_ledger()
            back = [
                one for one in customers if one.kind == "dropped" and not one.signed and one.spent < WORTH
            ]
            owing = [one for one in customers if one.kind != "moved" and one.spent and one not in back]
            debtors = [one for one in owing if one.kind == "spoiled" or one.signed is None]
            for customer in debtors:
                await harness.give(customer)
            await asyncio.gather(*(settle_up(harness, customer) for customer in debtors))
            await asyncio.gather(*(come_back(harness, customer) for customer in back))
            for customer in find_lost(customers):
                await wait_honest(harness, customer)
            for customer in customers:
                await check_paid(harness, customer)
            await harness.check_ledger()
            debts += len(debtors)
    torture.tell(depths=len(depths), payments=len(depths) * len(KINDS) * 4, debts=debts)


async def test_what_may_be_spent_before_it_is_final_has_the_operators_limit(
    own_chain_cluster: Any, torture: Any
) -> None:
    """It limits the loss by a reorganisation."""
    async with open_reef(own_chain_cluster, TOLLWAY_UNFINAL_SPEND_MAX="USDC:0.02") as harness:
        await harness.driver.rpc("evm_setTime", int(time.time()))
        customer = Customer(kind="dropped", spent=2, wallet=await own_chain_cluster.wallet())
        tx_hash = await harness.pay(customer, 5)
        await spend(harness, customer, tx_hash, 2)
        reply = await harness.show(customer, tx_hash)
        assert (reply.asks_for_money, reply.code, harness.served(customer)) == (False, "payment_pending", 2)
        await harness.driver.reorg(1)
        await harness.wait_gone([tx_hash])
        assert await harness.state(customer, tx_hash) == "reorged"
        told = await own_chain_cluster.history(harness.gateway, customer.wallet)
        assert [call["payment"]["state"] for call in told] == ["reorged"] * 2
        await assert_spent(harness, customer, await harness.pay(customer, 1), "payer_in_debt")
        rest = await harness.pay(customer, 2)
        await assert_spent(
            harness, customer, rest, "payment_pending"
        )  # the payment of the debt is not final either
        harness.line.is_final = True
        await harness.driver.mine(5)
        await poll(lambda: is_served(harness, customer, rest), what="finality")
        await check_paid(harness, customer)
        await harness.check_ledger()


async def is_served(harness: Harness, customer: Customer, tx_hash: TxHash) -> bool:
    return (await harness.show(customer, tx_hash)).status == 200


async def open_accounts(harness: Harness) -> list[Customer]:
    """One payment of each kind that will be unspent, partly spent, spent; and one payer by authorisation."""
    kinds = [(kind, spent) for kind in KINDS for spent in (0, 1, WORTH)] + [(kind, 1) for kind in KINDS]
    wallets = await harness.cluster.wallets(len(kinds))
    customers = [
        Customer(kind=kind, spent=spent, wallet=wallet)
        for (kind, spent), wallet in zip(kinds, wallets, strict=True)
    ]
    token = harness.cluster.playground.token
    approvals = [
        await harness.driver.transact(token, "approve", str(harness.thief.address), 2**255, key=wallet.key)
        for wallet in wallets
    ]
    for tx_hash in approvals:
        await harness.driver.wait_receipt(tx_hash)
    for customer in customers[-len(KINDS) :]:
        customer.signed = harness.stall.sign(customer.wallet, f"{customer.path}-signed")
    return customers


async def mine_together(harness: Harness, customers: list[Customer]) -> None:
    """Mines all payments in one block, with the settlements of signed calls."""
    signed = [customer for customer in customers if customer.signed is not None]
    await harness.driver.rpc("evm_setAutomine", False)
    try:
        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(one.signed.send(deadline_s=DEADLINE_S)) for one in signed if one.signed
            ]
            for customer in customers:
                if customer.signed is None:
                    customer.raw, tx_hash = await harness.sign_transfer(customer, WORTH)
                    customer.paid.append(tx_hash)
                    await harness.broadcast(customer.raw)

            async def are_waiting() -> bool:
                return len(await find_pending(harness.cluster, harness.gas.address)) == len(signed)

            await poll(are_waiting, what="the settlements")
            await harness.driver.mine(1)
        assert [call.result().status for call in calls] == [200] * len(signed)
    finally:
        await harness.driver.rpc("evm_setAutomine", True)
    for customer in signed:
        assert customer.signed is not None
        customer.paid += await customer.signed.transfers()
        customer.raw = await fetch_raw(harness, customer.paid[0])
    # One nonce after the other: a dropped transaction must not delay those that are mined again.
    for customer, kind in zip(
        await sort_by_nonce(harness, signed), ("moved", "spoiled", "dropped"), strict=True
    ):
        customer.kind = kind


async def fetch_raw(harness: Harness, tx_hash: TxHash) -> bytes:
    return bytes.fromhex((await harness.driver.rpc("eth_getRawTransactionByHash", str(tx_hash)))[2:])


async def sort_by_nonce(harness: Harness, signed: list[Customer]) -> list[Customer]:
    sent = [await harness.driver.rpc("eth_getTransactionByHash", str(one.paid[0])) for one in signed]
    order = sorted(range(len(signed)), key=lambda place: int(sent[place]["nonce"], 16))
    return [signed[place] for place in order]


async def spend_some(harness: Harness, customers: list[Customer]) -> None:
    for customer in customers:
        if customer.signed is None:
            headers = plain(customer.wallet, customer.paid[0])
            reply = await harness.cluster.call(
                harness.gateway, harness.stall.api_id, "/status/500", headers=headers
            )
            assert (reply.status, reply.state) == (
                500,
                "released",
            )  # so the ledger also has the unspent payment
            await spend(harness, customer, customer.paid[0], customer.spent)
        assert harness.served(customer) == customer.spent


async def spend(harness: Harness, customer: Customer, tx_hash: TxHash, calls: int) -> None:
    for _ in range(calls):
        reply = await harness.show(customer, tx_hash)
        assert reply.status == 200, reply.body


async def assert_spent(harness: Harness, customer: Customer, tx_hash: TxHash, *codes: str) -> None:
    before = harness.served(customer)
    reply = await harness.show(customer, tx_hash)
    assert reply.code in codes, (customer.kind, customer.spent, reply.status, reply.body)
    assert harness.served(customer) == before


# ---- The blocks are replaced.


async def replace_blocks(harness: Harness, customers: list[Customer], depth: int) -> None:
    await harness.driver.mine(depth - 1) if depth > 1 else None
    moved = [one.raw for one in in_lane_order(customers, "moved")]
    spoiled = in_lane_order(customers, "spoiled")
    count = await harness.driver.rpc("eth_getTransactionCount", str(harness.thief.address), "latest")
    thefts = [await harness.sign_theft(one, int(count, 16) + place) for place, one in enumerate(spoiled)]
    # In the second new block where there is one: with another block before it, each gets another hash.
    place = min(1, depth - 1)
    again = [*moved, *thefts, *(one.raw for one in spoiled)]
    await harness.driver.reorg(depth, [(raw, place) for raw in again])


def in_lane_order(customers: list[Customer], kind: str) -> list[Customer]:
    return [one for one in customers if one.kind == kind]


async def wait_noticed(harness: Harness, customers: list[Customer]) -> None:
    """Returns when the gateway has seen the change of each payment; a settlement that left the chain it sends again
    by itself."""
    lost = find_lost(customers)
    await harness.wait_moved([one.paid[0] for one in customers if one.kind == "moved"])
    await harness.wait_gone([one.paid[0] for one in customers if one.kind != "moved" and one not in lost])


def find_lost(customers: list[Customer]) -> list[Customer]:
    return [one for one in customers if one.kind == "dropped" and one.signed is not None]


async def check_fate(harness: Harness, customer: Customer) -> None:
    """Checks the status that the payer reads, and what the payment still buys."""
    (tx_hash,) = customer.paid
    if customer.kind == "moved":
        assert await harness.state(customer, tx_hash) in ("credited", "spent")
        if customer.signed is None:
            await spend(harness, customer, tx_hash, WORTH - customer.spent)
            await assert_spent(harness, customer, tx_hash, *USED_UP)
    elif customer.signed is not None and customer.kind == "dropped":
        return
    else:
        assert await harness.state(customer, tx_hash) == "reorged"
        if customer.signed is None:
            codes = ["payment_pending"] if customer.kind == "dropped" else ["payment_verification_failed"]
            await assert_spent(harness, customer, tx_hash, *codes, "payer_in_debt")
    told = await harness.cluster.history(harness.gateway, customer.wallet)
    owed = 0 if customer.kind == "moved" else customer.spent
    assert sum(call["payment"]["state"] == "reorged" for call in told) == owed


async def wait_honest(harness: Harness, customer: Customer) -> None:
    """A settlement that left the chain is sent again by its gateway: it is a debt until then, and paid after."""

    signed = customer.signed
    assert signed is not None

    async def is_mined() -> bool:
        return len(await signed.transfers()) == 1

    async def is_charged() -> bool:
        return bool((await signed.record())["payment"]["state"] == "charged")

    await poll(is_mined, what="a settlement that is mined again")
    await poll(is_charged, what="a settlement that is paid again")


# ---- And what comes after.


async def settle_up(harness: Harness, customer: Customer) -> None:
    """A debtor is refused until it has paid; what it pays beyond the debt buys calls."""
    if customer.signed is not None:
        await refuse_debtor(harness, customer)
    first = await harness.pay(customer, 1)
    await assert_spent(harness, customer, first, *(["payer_in_debt"] if customer.spent > 1 else USED_UP))
    rest = await harness.pay(customer, customer.spent)
    await spend(harness, customer, rest, 1)
    await assert_spent(harness, customer, rest, *USED_UP)


async def refuse_debtor(harness: Harness, customer: Customer) -> None:
    again = harness.stall.sign(customer.wallet, f"{customer.path}-again")
    reply = await again.send()
    assert (reply.status, reply.code, again.seen) == (403, "payer_in_debt", 0), reply.body


async def come_back(harness: Harness, customer: Customer) -> None:
    """Dropped transactions are mined after all: they buy the rest of their value."""
    (tx_hash,) = customer.paid
    await harness.broadcast(customer.raw)
    await harness.driver.wait_receipt(tx_hash)
    await harness.wait_moved([tx_hash])
    await spend(harness, customer, tx_hash, WORTH - customer.spent)
    await assert_spent(harness, customer, tx_hash, *USED_UP)


async def check_paid(harness: Harness, customer: Customer) -> None:
    """Checks that the upstream has seen no more calls than the chain has transfers for."""
    token = str(harness.cluster.playground.token.address)
    topics = [
        _TRANSFER,
        *(f"0x{bytes(one.address).hex():0>64}" for one in (customer.wallet, harness.stall.provider)),
    ]
    wanted = {"address": token, "fromBlock": "0x0", "topics": topics}
    paid = sum(int(log["data"], 16) for log in await harness.driver.rpc("eth_getLogs", wanted))
    assert harness.served(customer) * PRICE_UNITS <= paid, (customer.kind, customer.spent)
