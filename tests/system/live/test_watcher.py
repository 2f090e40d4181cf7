"""The watcher with a real node whose blocks are replaced."""

import time
from collections.abc import AsyncIterator

import pytest

from tests.model.ledger import MemoryLedger
from tollway.chain.networks import ChainRules
from tollway.chain.port import ChainFacts
from tollway.chain.rpc import ChainEndpoints, RpcReader
from tollway.ledger.records import NewPayment, Payment, PaymentState
from tollway.limits import Limits
from tollway.payments.reorg_watcher import ReorgWatcher

LIMITS = Limits(rpc_deadline_s=20.0)


def now_ms() -> int:
    return int(time.time()) * 1000


class Watch:
    def __init__(self, reader: RpcReader, playground) -> None:
        self.reader, self.usdc = reader, playground.usdc
        self.ledger = MemoryLedger(now_ms=now_ms)
        self.gone: list[Payment] = []
        chain_id = self.usdc.chain_id
        rules = ChainRules(chain_id=chain_id, kind="test", confirmations=((0, 1),), assets=(self.usdc,))
        self.watcher = ReorgWatcher(
            self.ledger,
            self.ledger,
            reader,
            {chain_id: rules},
            limits=LIMITS,
            now_ms=now_ms,
            on_gone=self.gone.append,
        )

    async def record(self, tx_hash, payer, payee, units: int) -> None:
        facts = await self.reader.fetch_facts(self.usdc.chain_id, tx_hash)
        assert isinstance(facts, ChainFacts)
        new = NewPayment(
            chain_id=facts.chain_id,
            tx_hash=tx_hash,
            asset=self.usdc.key,
            payer=payer,
            payee=payee,
            value_units=units,
            block_number=facts.block_number,
            block_hash=facts.block_hash,
            block_time=facts.block_time,
            is_final=False,
        )
        await self.ledger.record_payments((new,), now_ms=now_ms())

    async def read(self, tx_hash) -> Payment:
        (payment,) = await self.ledger.find_payments(tx_hash)
        return payment


@pytest.fixture
async def watch(anvil, playground) -> AsyncIterator[Watch]:
    async with RpcReader({anvil.chain_id: ChainEndpoints(urls=(anvil.rpc_url,))}, limits=LIMITS) as reader:
        yield Watch(reader, playground)


async def test_a_payment_is_final_when_the_node_reports_its_block_final(
    watch, scenarios, chain, caller, provider_account
) -> None:
    receipt = await scenarios.pay_token(caller, provider_account.address, 10_000)
    await watch.record(receipt.tx_hash, caller.address, provider_account.address, 10_000)
    await watch.watcher.check_once()
    assert (await watch.read(receipt.tx_hash)).state is PaymentState.UNFINAL
    await chain.mine(5)
    await watch.watcher.check_once()
    assert (await watch.read(receipt.tx_hash)).state is PaymentState.FINAL


async def test_a_reorg_moves_it_takes_it_away_and_brings_it_back(
    watch, scenarios, chain, playground, caller, stranger, provider_account
) -> None:
    to = provider_account.address
    payload = playground.token.artifact.function("transfer").encode((str(to), 10_000))
    raw, tx_hash = await chain.sign(key=caller.key, to=playground.token.address, payload=payload)
    await chain.rpc("eth_sendRawTransaction", "0x" + raw.hex())
    first = await chain.wait_receipt(tx_hash)
    await watch.record(tx_hash, caller.address, to, 10_000)

    # Alone and in the same second, its block would have the same hash.
    other, _ = await chain.sign(key=stranger.key, to=to, value=1)
    await chain.reorg(1, [(other, 0), (raw, 0)])
    await watch.watcher.check_once()
    moved = await watch.read(tx_hash)
    assert moved.state is PaymentState.UNFINAL
    assert moved.block_hash != first.block_hash

    await chain.reorg(1)
    await watch.watcher.check_once()
    assert (await watch.read(tx_hash)).state is PaymentState.UNFINAL
    await watch.watcher.check_once()
    assert (await watch.read(tx_hash)).state is PaymentState.GONE
    assert [payment.tx_hash for payment in watch.gone] == [tx_hash]

    await chain.reorg(1, [(raw, 0)])
    await watch.watcher.check_once()
    back = await watch.read(tx_hash)
    assert (back.state, back.value_units) == (PaymentState.UNFINAL, 10_000)
