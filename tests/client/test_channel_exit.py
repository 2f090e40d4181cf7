"""What is left of a channel comes back: by a refund of the gateway, or by two transactions of the wallet."""

import base64
import json
from typing import Any

import httpx
import pytest
from x402.mechanisms.evm.batch_settlement.types import is_refund_payload

from tests.client.conftest import CHAIN, NOW_S
from tests.kit.channel_gateway import ChannelCaller, ChannelGateway
from tests.kit.payer import PAY_TO, USDC
from tollway.client import (
    AsyncTollwayClient,
    CannotPay,
    FeeAboveMax,
    GatewayRefused,
    GatewayUnreachable,
    NodeUnreachable,
    PaymentPending,
    PaymentRefused,
)
from tollway.client.errors import GatewayResponseInvalid

AT_NODE = {CHAIN: "https://node.test"}


@pytest.fixture
def opened(channel_caller: ChannelCaller) -> ChannelCaller:
    """A channel with a deposit of 300,000 of which two calls took 600."""
    channel_caller.call("/0")
    channel_caller.call("/1")
    return channel_caller


def refund(opened: ChannelCaller, **options: Any) -> Any:
    with opened.open(**options) as client:
        return client.refund_channel(str(opened.channel.id))


# ---- The refund.


def test_a_refund_pays_back_all_that_is_left(opened: ChannelCaller) -> None:
    gateway = opened.gateway
    done = refund(opened)
    assert (done.amount, done.is_seen, gateway.kinds) == (299_400, False, "dvr")
    assert gateway.ceilings[-1] == 600
    content = json.loads(base64.b64decode(gateway.proofs[-1]))
    assert is_refund_payload(content["payload"])
    config = opened.channel.config
    path = f"/api/v2/channels/{USDC.network}/{config.token}/{config.receiver}/{config.receiver_authorizer}"
    assert gateway.paths[-2:] == [path, path]
    assert (opened.channel.balance, opened.channel.charged, opened.channel.left) == (600, 600, 0)


def test_the_channel_goes_on_after_a_refund(opened: ChannelCaller) -> None:
    refund(opened)
    opened.call("/2")
    assert (opened.gateway.kinds, opened.gateway.ceilings[-1]) == ("dvrd", 900)


@pytest.mark.parametrize(("options", "spent"), [({}, "0.3 USDC"), ({"rpc_urls": AT_NODE}, "0.0006 USDC")])
def test_a_refund_frees_the_budget_once_the_own_node_shows_it(
    opened: ChannelCaller, options: dict[str, Any], spent: str
) -> None:
    refund(opened, **options)
    with opened.open() as client:
        assert [amount.describe() for amount in client.spending().total] == [spent]


def test_a_reported_refund_that_the_chain_does_not_show_frees_nothing(opened: ChannelCaller) -> None:
    def pretend(_request: httpx.Request) -> httpx.Response:
        settled = {"success": True, "transaction": "0x" + "ab" * 32, "amount": "299400"}
        header = base64.b64encode(json.dumps(settled).encode()).decode()
        return httpx.Response(200, headers={"payment-response": header})

    opened.gateway.faults = [pretend]
    assert not refund(opened, rpc_urls=AT_NODE).is_seen
    assert (opened.channel.balance, opened.channel.returned) == (300_000, 0)


def test_a_refund_heals_a_lost_answer_by_one_corrective_402(opened: ChannelCaller) -> None:
    opened.gateway.faults = ["lose answer"] * 3
    with pytest.raises(GatewayUnreachable):
        opened.call("/lost")
    assert refund(opened).amount == 299_100
    assert opened.gateway.ceilings[-2:] == [600, 900]


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        (lambda gateway: gateway.refuse(429, "rate_limited"), GatewayRefused),
        (lambda gateway: gateway.refuse(402, "payment_verification_failed"), GatewayRefused),
        (lambda _gateway: httpx.Response(200), GatewayRefused),
    ],
)
def test_a_refund_that_is_refused_changes_nothing(
    opened: ChannelCaller, fault: Any, failure: type[Exception]
) -> None:
    before = opened.channel
    opened.gateway.faults = [lambda _request: fault(opened.gateway)]
    with pytest.raises(failure):
        refund(opened)
    assert opened.channel == before


def test_a_lie_about_the_charged_sum_gets_no_other_voucher(opened: ChannelCaller) -> None:
    opened.gateway.books[opened.channel.id].announced = 700
    with pytest.raises(PaymentRefused, match=r"more than its voucher covers\. tollway wallet withdraw works"):
        refund(opened)
    assert opened.gateway.ceilings[-1] == 600


def test_a_gateway_without_refunds_is_named(opened: ChannelCaller) -> None:
    opened.gateway.withdraw_delay = 901  # the entry is of another channel
    with pytest.raises(GatewayResponseInvalid, match="has no refund for the channel"):
        refund(opened)


def test_a_refund_goes_to_the_gateway_of_the_channel(opened: ChannelCaller) -> None:
    with pytest.raises(ValueError, match=r"one of the gateway https://gateway\.test"):
        refund(opened, public_url="https://other.test")
    with opened.open() as client, pytest.raises(ValueError, match="no such channel"):
        client.refund_channel("0x123456")


# ---- The withdrawal.


def withdraw(opened: ChannelCaller, **options: Any) -> Any:
    with opened.open(**{"rpc_urls": AT_NODE, **options}) as client:
        plan = client.plan_withdrawal(str(opened.channel.id)[:10])
        return plan, client.send_withdrawal(plan)


def test_a_withdrawal_is_two_transactions_around_the_delay(opened: ChannelCaller) -> None:
    chain = opened.gateway.chain
    before = chain.wallet_units
    plan, begun = withdraw(opened)
    assert (plan.amount, plan.is_end) == (299_400, False)  # what is owed stays
    assert begun.channel.withdrawal.ready_s == chain.now_s + 900
    with pytest.raises(PaymentPending, match="its delay ends in 900 seconds"):
        withdraw(opened)
    chain.now_s += 900
    plan, ended = withdraw(opened)
    assert (plan.amount, plan.is_end, ended.channel.withdrawal) == (299_400, True, None)
    assert (chain.wallet_units - before, opened.channel.returned) == (299_400, 299_400)
    with opened.open() as client:
        assert [amount.describe() for amount in client.spending().total] == ["0.0006 USDC"]
    with pytest.raises(CannotPay, match="Nothing is left"):
        withdraw(opened)


def test_the_payee_gets_what_it_claims_in_the_delay(opened: ChannelCaller) -> None:
    chain = opened.gateway.chain
    withdraw(opened)
    chain.find(opened.channel.id).claimed = 900
    chain.now_s += 900
    assert withdraw(opened)[0].amount == 299_100


def test_nothing_of_the_gateway_is_asked(opened: ChannelCaller) -> None:
    seen = len(opened.gateway.paths)
    withdraw(opened)
    assert len(opened.gateway.paths) == seen


@pytest.mark.parametrize(
    ("options", "failure", "said"),
    [
        ({"rpc_urls": {}}, NodeUnreachable, "no URL of a node"),
        ({"max_fee": "0 ETH"}, FeeAboveMax, "fee"),
        ({"rpc_urls": {CHAIN: "https://node.test"}, "max_fee": "0.000000000001 ETH"}, FeeAboveMax, "fee"),
    ],
)
def test_no_transaction_is_signed_without_a_node_or_above_the_fee(
    opened: ChannelCaller, options: dict[str, Any], failure: type[Exception], said: str
) -> None:
    opened.gateway.chain.fee_wei = 10**9
    with pytest.raises(failure, match=said):
        withdraw(opened, **options)
    assert opened.gateway.chain.mined == {}


def test_a_transaction_that_is_not_mined_in_time_is_named(opened: ChannelCaller) -> None:
    opened.gateway.chain.is_mining = False
    with pytest.raises(PaymentPending, match="is not mined yet") as caught:
        withdraw(opened)
    assert str(caught.value.transaction) in opened.gateway.chain.mined


def test_a_reverted_transaction_is_no_withdrawal(opened: ChannelCaller) -> None:
    with opened.open(rpc_urls=AT_NODE) as client:
        plan = client.plan_withdrawal(str(opened.channel.id))
        client.send_withdrawal(plan)
        with pytest.raises(CannotPay, match="was reverted"):
            client.send_withdrawal(plan)


def test_a_channel_in_use_is_neither_refunded_nor_withdrawn(opened: ChannelCaller, store: Any) -> None:
    assert store.lock_channel(opened.channel.id) is not None
    for leave in (refund, withdraw):
        with pytest.raises(CannotPay, match="A call of this wallet uses the channel"):
            leave(opened)


async def test_the_asynchronous_client_has_both(opened: ChannelCaller) -> None:
    options = {**opened.options(), "rpc_urls": AT_NODE}
    async with AsyncTollwayClient("https://gateway.test", **options) as client:
        plan = await client.plan_withdrawal(str(opened.channel.id))
        assert (await client.send_withdrawal(plan)).channel.withdrawal is not None
        assert (await client.refund_channel(str(opened.channel.id))).amount == 299_400


def test_the_kit_starts_at_the_time_of_the_tests() -> None:
    kit = ChannelGateway(asset=USDC, pay_to=PAY_TO, authorizer=PAY_TO, now_s=NOW_S)
    assert kit.chain.now_s == NOW_S
