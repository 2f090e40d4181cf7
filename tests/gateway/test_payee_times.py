"""A payment counts from the time of its network's head as its payee became the `payTo`: a caller who pays what the 402 asks is served,
however far the network's blocks lag behind the gateway's clock. A payment from before the payee is a 409 without terms.
"""

import pytest

from tests.kit.asgi_exchange import Exchange
from tests.kit.chain import Transaction, transfer_log
from tests.kit.gateway import CHAIN, NOW_MS, PAY_TO, TOKEN, InProcessGateway
from tests.kit.ledger_records import operator_origin
from tollway.chain.nodes import read_head_times
from tollway.ids import Address, TxHash, keccak256
from tollway.payments.transaction_rules import PAYEE_SLACK_S

NEW_PAY_TO = Address(b"\xdd" * 20)
LAGS_S, PAID_AFTER_S = (0, 30, 75, 120, 3_600), (0, 5, 20, 40, 3_600)


class LaggingNetwork:
    """A gateway whose network's blocks are `lag_s` behind its clock."""

    def __init__(self, gateway: InProcessGateway, lag_s: int) -> None:
        self.gateway = gateway
        self.lag_s = lag_s
        self._numbers = iter(range(100))

    @property
    def block_time(self) -> int:
        return self.gateway.now_ms // 1000 - self.lag_s

    async def publish(self, *, changes_payee: bool) -> Address:
        """A listing whose `payTo` begins now, as `ListingEdits` writes it. Returns the payee."""
        gateway = self.gateway
        gateway.chain.mine(CHAIN, time=self.block_time)
        heads = await read_head_times(gateway.chain, (CHAIN,))
        if not changes_payee:
            await gateway.publish(created_ms=gateway.now_ms, heads=heads)
            return PAY_TO
        listing = await gateway.publish(created_ms=NOW_MS - 86_400_000)
        await gateway.revise(listing, pay_to=NEW_PAY_TO, heads=heads)
        return NEW_PAY_TO

    def pay(self, payee: Address, *, block_time: int | None = None, units: int = 10_000) -> TxHash:
        """A transfer in the next block, deep enough at once."""
        gateway = self.gateway
        tx_hash = TxHash(keccak256(b"paid" + bytes([next(self._numbers)])))
        log = transfer_log(TOKEN, gateway.wallet.address, payee, units)
        transaction = Transaction(
            tx_hash=tx_hash, sender=gateway.wallet.address, recipient=TOKEN, logs=(log,)
        )
        time = self.block_time if block_time is None else block_time
        gateway.chain.mine(CHAIN, transaction, time=time)
        for _ in range(3):
            gateway.chain.mine(CHAIN, time=time)
        return tx_hash

    async def show(self, tx_hash: TxHash) -> Exchange:
        return await self.gateway.ask(headers=self.gateway.plain_proof(tx_hash))


@pytest.fixture
def network(gateway: InProcessGateway, request: pytest.FixtureRequest) -> LaggingNetwork:
    return LaggingNetwork(gateway, request.param)


lags = pytest.mark.parametrize("network", LAGS_S, indirect=True, ids=[f"lag {one} s" for one in LAGS_S])
edits = pytest.mark.parametrize("changes_payee", [False, True], ids=["published", "payTo changed"])


def check_refused(answer: Exchange) -> None:
    """A 409 without terms in any dialect: no client pays again."""
    assert (answer.status, answer.problem["code"]) == (409, "payment_too_old")
    assert (answer.problem["reason"], answer.problem["paymentState"]) == ("before_listing", "none")
    assert "accepts" not in answer.problem
    assert not {"payment-required", "www-authenticate"} & set(answer.headers)


@lags
@edits
async def test_a_payment_made_after_the_quote_is_served_however_far_its_network_lags(
    network: LaggingNetwork, changes_payee: bool
) -> None:
    payee = await network.publish(changes_payee=changes_payee)
    quoted = await network.gateway.ask()
    assert (quoted.status, quoted.problem["accepts"][0]["payTo"]) == (402, str(payee))
    quoted_ms = network.gateway.now_ms
    statuses = {}
    for paid_after_s in PAID_AFTER_S:
        network.gateway.now_ms = quoted_ms + paid_after_s * 1000
        statuses[paid_after_s] = (await network.show(network.pay(payee))).status
    assert statuses == dict.fromkeys(PAID_AFTER_S, 200)


@lags
@edits
async def test_a_payment_from_before_the_payee_is_refused_without_terms_until_it_is_admitted(
    network: LaggingNetwork, changes_payee: bool
) -> None:
    before = network.block_time - PAYEE_SLACK_S - 1
    payee = await network.publish(changes_payee=changes_payee)
    tx_hash = network.pay(payee, block_time=before)
    for _ in range(2):
        check_refused(await network.show(tx_hash))
        network.gateway.now_ms += 3_600_000
    assert network.gateway.served == 0
    await network.gateway.ledger.admit(tx_hash, origin=operator_origin())
    assert (await network.show(tx_hash)).status == 200


@lags
async def test_the_slack_is_the_same_by_the_time_of_the_network(network: LaggingNetwork) -> None:
    begun = network.block_time
    payee = await network.publish(changes_payee=True)
    assert (await network.show(network.pay(payee, block_time=begun - PAYEE_SLACK_S))).status == 200
    check_refused(await network.show(network.pay(payee, block_time=begun - PAYEE_SLACK_S - 1)))


@pytest.mark.parametrize("network", [30, 75, 120], indirect=True)
@pytest.mark.parametrize("head_ahead_s", [None, 500], ids=["unknown head", "head dated ahead"])
async def test_without_a_head_the_clock_of_the_gateway_decides_and_asks_for_no_second_payment(
    network: LaggingNetwork, head_ahead_s: int | None
) -> None:
    gateway = network.gateway
    heads = {} if head_ahead_s is None else {CHAIN: gateway.now_ms // 1000 + head_ahead_s}
    await gateway.publish(created_ms=gateway.now_ms, heads=heads)
    gateway.now_ms += 5_000
    tx_hash = network.pay(PAY_TO)
    answer = await network.show(tx_hash)
    if network.lag_s <= PAYEE_SLACK_S:
        assert answer.status == 200
        return
    check_refused(answer)
    await gateway.ledger.admit(tx_hash, origin=operator_origin())
    assert (await network.show(tx_hash)).status == 200


@pytest.mark.parametrize("network", [120], indirect=True)
async def test_a_payee_that_returns_begins_again(network: LaggingNetwork) -> None:
    """The head of its first time counts only while a version of that time does."""
    gateway = network.gateway
    gateway.chain.mine(CHAIN, time=network.block_time)
    first = await read_head_times(gateway.chain, (CHAIN,))
    listing = await gateway.publish(created_ms=gateway.now_ms, heads=first)
    gateway.now_ms += 1_000
    listing = await gateway.revise(listing, pay_to=NEW_PAY_TO)
    gateway.now_ms += 7 * 86_400_000
    between = network.pay(PAY_TO, block_time=network.block_time - 86_400)
    gateway.chain.mine(CHAIN, time=network.block_time)
    await gateway.revise(listing, pay_to=PAY_TO, heads=await read_head_times(gateway.chain, (CHAIN,)))
    check_refused(await network.show(between))
    assert (await network.show(network.pay(PAY_TO))).status == 200
