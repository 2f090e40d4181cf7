"""Calls by a payment channel: over a gateway that keeps the laws of x402 `batch-settlement`, and over one that lies."""

import asyncio
import base64
import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from x402.mechanisms.evm.batch_settlement.facilitator.deposit_eip3009 import (
    verify_eip3009_deposit_authorization,
)
from x402.mechanisms.evm.batch_settlement.facilitator.voucher import verify_voucher
from x402.mechanisms.evm.batch_settlement.types import ChannelConfig as StockConfig
from x402.mechanisms.evm.batch_settlement.types import (
    DepositPayload,
    is_deposit_payload,
    is_voucher_payload,
)
from x402.schemas import PaymentRequirements

from tests.client.conftest import API, CHAIN, GATEWAY, NOW_S
from tests.kit.channel_gateway import MISMATCH, ChannelCaller, ChannelGateway
from tests.kit.payer import PAY_TO, USDC
from tests.kit.waits import run_threads
from tollway.client import (
    AsyncTollwayClient,
    BudgetExhausted,
    CallerFailure,
    CallHeld,
    CannotPay,
    GatewayUnreachable,
    Patience,
    PaymentPending,
    PaymentRefused,
    PriceAboveMax,
)
from tollway.client.call_io import AuthorizationState, PaymentQuote
from tollway.ids import Address

AUTHORIZER = Address(b"\x90" * 20)
AT_NODE = {CHAIN: "https://node.test"}


@pytest.fixture
def gateway(channel_gateway: ChannelGateway) -> ChannelGateway:
    return channel_gateway


@pytest.fixture
def caller(channel_caller: ChannelCaller) -> ChannelCaller:
    return channel_caller


def check_agreement(caller: ChannelCaller) -> None:
    """The client and the gateway have the same sums."""
    channel, gateway = caller.channel, caller.gateway
    assert channel.charged == gateway.books[channel.id].announced
    assert channel.balance == gateway.chain.find(channel.id).balance
    assert channel.is_certain


# ---- Calls.


def test_one_deposit_pays_many_calls(caller, gateway):
    answers = [caller.call(f"/{number}") for number in range(20)]
    assert (gateway.kinds, gateway.ceilings) == ("d" + "v" * 19, list(range(300, 6300, 300)))
    assert [answer.status_code for answer in answers] == [200] * 20
    first, last = answers[0].payment, answers[-1].payment
    assert (first.rail, first.price, first.channel) == ("channel", "0.000300 USDC", str(caller.channel.id))
    assert (first.transaction is not None, last.transaction, last.network) == (True, None, USDC.network)
    assert (caller.channel.balance, caller.channel.charged, caller.channel.calls) == (300_000, 6_000, 20)
    check_agreement(caller)


@pytest.mark.parametrize("actual", [[0, 0, 0], [123, 0, 300], [10, 299, 1]])
def test_a_metered_call_pays_what_it_used(caller, gateway, actual):
    gateway.is_metered = True
    for gateway.actual in actual:
        caller.call()
    starts = [sum(actual[:count]) for count in range(3)]
    assert gateway.ceilings == [start + 300 for start in starts]
    check_agreement(caller)


def test_deposits_again_once_the_balance_does_not_cover_a_call(caller, gateway):
    gateway.deposit_min = 700
    for number in range(5):
        caller.call(f"/{number}")
    assert (gateway.kinds, gateway.corrections) == ("dvdvd", 0)
    check_agreement(caller)


@pytest.mark.parametrize(
    ("deposit_min", "max_deposit", "deposited"),
    [
        (300_000, "1 USDC", 300_000),
        (300_000, None, 300_000),
        (5_000_000, None, 1_000_000),
        (300_000, "0.1 USDC", 100_000),
        (None, None, 300),
        (299, None, 300),  # below the price of one call
        (300_000, "0.0003 USDC", 300),
    ],
)
def test_a_deposit_is_what_the_gateway_proposes_within_the_maximum(
    caller, gateway, deposit_min, max_deposit, deposited
):
    gateway.deposit_min = deposit_min
    caller.call(max_deposit=max_deposit)
    assert gateway.shown[0].request.base_units == deposited


@pytest.mark.parametrize(
    ("options", "failure", "said"),
    [
        ({"max_deposit": "0.000299 USDC"}, CannotPay, "needs a deposit of 0.0003 USDC, and max_deposit allows 0.000299"),
        ({"max_deposit": "1 EURC"}, CannotPay, "max_deposit allows 0 USDC"),
        ({"max_price": "0.000299 USDC"}, PriceAboveMax, "The call costs 0.0003 USDC"),
        ({"budget": "0.299999 USDC"}, BudgetExhausted, "payment of 0.3 USDC would exceed the budget"),
        ({"session_budget": "0.299999 USDC"}, BudgetExhausted, "payment of 0.3 USDC would exceed the limit"),
        ({"chains": []}, CannotPay, "no node is configured"),
    ],
)  # fmt: skip
def test_nothing_is_signed_beyond_a_limit(caller, gateway, options, failure, said):
    with pytest.raises(failure, match=said):
        caller.call(**options)
    assert gateway.shown == []
    assert caller.quotes == []


def test_the_wallet_must_hold_the_deposit(caller, gateway):
    gateway.chain.wallet_units = 299_999
    with pytest.raises(CannotPay, match=r"0\.3 USDC on .* is due, and the wallet holds 0\.299999"):
        caller.call(rpc_urls=AT_NODE)
    assert gateway.shown == []


def test_a_budget_counts_a_deposit_once_and_its_calls_not_again(caller):
    for number in range(20):
        caller.call(f"/{number}", budget="0.3 USDC")
    with caller.open() as client:
        assert [amount.describe() for amount in client.spending().total] == ["0.3 USDC"]
        (deposit,) = client.authorizations()
    assert (deposit.state, deposit.amount, deposit.proof) == (AuthorizationState.CHARGED, 300_000, "")
    assert [quote.deposit for quote in caller.quotes] == [300_000, *[0] * 19]
    assert "with a deposit of 0.3 USDC" in caller.quotes[0].describe()


def test_a_session_counts_what_its_vouchers_take_of_an_earlier_deposit(caller, gateway):
    caller.call("/0")
    with caller.open(session_budget="0.0009 USDC") as client:
        for number in range(3):
            client.call(API, f"/{number}")
        assert [amount.describe() for amount in client.spending().session] == ["0.0009 USDC"]
        before = len(caller.quotes)
        with pytest.raises(BudgetExhausted, match="limit of this session"):
            client.call(API, "/3")
    assert (gateway.ceilings[-1], len(caller.quotes)) == (1200, before)


def test_a_session_counts_its_own_deposit_once(caller, gateway):
    with caller.open(session_budget="0.3 USDC") as client:
        for number in range(5):
            client.call(API, f"/{number}")
        assert [amount.describe() for amount in client.spending().session] == ["0.3 USDC"]
    assert gateway.kinds == "dvvvv"


def test_a_deposit_of_which_no_byte_was_sent_counts_nowhere(caller, gateway):
    respond = gateway.handle

    def refuse(request: httpx.Request) -> httpx.Response:
        if "payment-signature" in request.headers:
            raise httpx.ConnectError("refused")
        return respond(request)

    gateway.handle = refuse
    with caller.open(session_budget="0.3 USDC", budget="0.3 USDC") as client:
        with pytest.raises(GatewayUnreachable) as caught:
            client.call(API, "/0")
        assert (caught.value.is_sent, caller.channel.is_certain) == (False, True)
        assert [amount.atto for amount in client.spending().session] == [0]
        assert [amount.atto for amount in client.spending().total] == [0]
    gateway.handle = respond
    caller.call("/0", budget="0.3 USDC")
    check_agreement(caller)


# ---- Answers that get lost.


def test_a_lost_answer_is_fetched_by_the_same_bytes(caller, gateway):
    gateway.faults = ["lose answer", "lose request"]
    assert caller.call().status_code == 200
    assert (gateway.kinds, gateway.served, gateway.ceilings) == ("ddd", 1, [300] * 3)
    check_agreement(caller)


@pytest.mark.parametrize("fault", ["busy", "unknown"])
def test_a_gateway_that_has_not_decided_gets_the_same_voucher_again(caller, gateway, fault):
    gateway.faults = [fault, fault]
    patience = Patience(poll_s=0.001, wait_s=2)
    with caller.open(patience=patience) as client:
        client._http.sleep = no_sleep  # type: ignore[method-assign]
        assert client.call(API).status_code == 200
    assert (gateway.kinds, gateway.served) == ("ddd", 1)
    check_agreement(caller)


async def no_sleep(_seconds: float) -> None:
    pass


@pytest.mark.parametrize(("fault", "failure"), [("busy", PaymentPending), ("unknown", CallHeld)])
def test_the_next_run_of_the_request_sends_what_the_last_one_left(caller, gateway, fault, failure):
    gateway.faults = [fault]
    with pytest.raises(failure) as caught:
        caller.call("/same")
    assert caught.value.is_retryable
    assert caller.call("/same").status_code == 200
    assert len({id(payment.voucher) for payment in gateway.shown}) == 2
    assert (gateway.kinds, gateway.unpaid, gateway.ceilings) == ("dd", 1, [300, 300])
    assert gateway.shown[0].request == gateway.shown[1].request
    check_agreement(caller)


def test_a_lost_answer_of_another_request_costs_one_corrective_402(caller, gateway):
    caller.call()
    gateway.faults = ["lose answer"] * 3
    with pytest.raises(GatewayUnreachable):
        caller.call("/lost")
    assert caller.call("/next").status_code == 200
    assert (gateway.corrections, gateway.ceilings) == (1, [300, 600, 600, 600, 600, 900])
    check_agreement(caller)


def test_a_deposit_whose_request_was_lost_is_sent_again_with_the_next_call(caller, gateway):
    gateway.faults = ["lose request"] * 3
    with pytest.raises(GatewayUnreachable):
        caller.call("/lost")
    caller.call("/next")
    assert len({payment.request.salt for payment in gateway.shown}) == 1
    assert gateway.corrections == 0
    check_agreement(caller)


def test_a_deposit_that_expired_is_signed_anew(caller, gateway):
    gateway.faults = ["lose request"] * 3
    with pytest.raises(GatewayUnreachable):
        caller.call("/lost")
    caller.clock_s = gateway.now_s = NOW_S + 51
    caller.call("/next")
    assert len({payment.request.salt for payment in gateway.shown}) == 2
    check_agreement(caller)
    with caller.open() as client:  # until the chain shows that the first one can never land, it counts
        assert [amount.describe() for amount in client.spending().total] == ["0.6 USDC"]


def test_a_failed_call_costs_nothing_and_its_deposit_counts(caller, gateway):
    gateway.faults = ["fail"]
    assert caller.call().status_code == 503
    check_agreement(caller)
    caller.call()
    assert (gateway.kinds, gateway.ceilings) == ("dv", [300, 300])
    check_agreement(caller)


# ---- Restarts.


def test_a_store_that_lost_one_call_is_healed_by_the_second_call(caller, gateway, tmp_path):
    """The gateway's voucher is that of the first call of the new store, which proves nothing at that call."""
    caller.call("/0")
    caller.store_path = tmp_path / "new.sqlite3"
    with pytest.raises(PaymentRefused, match="refuses the voucher of this call"):
        caller.call("/1")
    assert caller.call("/2").status_code == 200
    assert (gateway.corrections, gateway.ceilings) == (2, [300, 300, 300, 600])


def test_a_lost_store_is_healed_by_one_corrective_402_without_a_node(caller, gateway, tmp_path):
    for number in range(3):
        caller.call(f"/{number}")
    caller.store_path = tmp_path / "new.sqlite3"
    assert caller.call("/3").status_code == 200
    assert (gateway.kinds, gateway.corrections, gateway.ceilings[-2:]) == ("dvvdv", 1, [300, 1200])
    channel = caller.channel
    assert (channel.charged, channel.balance) == (1200, 300_000)


@pytest.mark.parametrize("calls", [1, 3])
def test_with_a_node_a_lost_store_deposits_nothing_again(caller, gateway, tmp_path, calls):
    for number in range(calls):
        caller.call(f"/{number}")
    caller.store_path = tmp_path / "new.sqlite3"
    assert caller.call("/new", rpc_urls=AT_NODE).status_code == 200
    assert (gateway.kinds.count("d"), gateway.corrections) == (1, 1)
    check_agreement(caller)


def test_without_the_gateways_voucher_the_chain_decides(caller, gateway, tmp_path):
    for number in range(3):
        caller.call(f"/{number}")
    key = caller.channel.id
    gateway.chain.find(key).claimed, gateway.has_voucher_state = 900, False
    caller.store_path = tmp_path / "new.sqlite3"
    assert caller.call("/new", rpc_urls=AT_NODE).status_code == 200
    check_agreement(caller)


def test_a_balance_that_fell_on_the_chain_is_topped_up(caller, gateway):
    caller.call("/0")
    gateway.chain.find(caller.channel.id).balance = 300
    assert caller.call("/1", rpc_urls=AT_NODE).status_code == 200
    assert (gateway.kinds, gateway.corrections) == ("dvd", 1)
    check_agreement(caller)


# ---- Many calls at once.


def test_calls_at_once_use_the_channel_one_after_the_other(caller, gateway):
    caller.call()
    with caller.open(patience=Patience(poll_s=0.001, wait_s=60)) as client:
        run_threads([lambda number=number: client.call(API, f"/{number}") for number in range(8)])
    assert (gateway.corrections, sorted(gateway.ceilings)) == (0, gateway.ceilings)
    assert gateway.served == 9
    check_agreement(caller)


async def test_tasks_at_once_use_the_channel_one_after_the_other(caller, gateway):
    options = {**caller.options(), "patience": Patience(poll_s=0.001, wait_s=60)}
    async with AsyncTollwayClient(GATEWAY, **options) as client:
        await asyncio.gather(*(client.call(API, f"/{number}") for number in range(8)))
    assert (gateway.corrections, gateway.served) == (0, 8)
    check_agreement(caller)


def test_a_channel_that_stays_in_use_is_not_paid_from(caller, gateway, store):
    caller.call()
    assert store.lock_channel(caller.channel.id) is not None
    with pytest.raises(CannotPay, match="Other calls of this wallet use the channel"):
        caller.call()
    assert gateway.kinds == "d"


# ---- The choice of a rail.


def test_a_channel_is_chosen_where_no_authorisation_is_offered(caller, gateway):
    assert caller.call(rail="auto").payment.rail == "channel"


@pytest.mark.parametrize(("calls", "rail"), [(9, "x402"), (10, "channel")])
def test_after_ten_calls_to_a_payee_a_channel_comes_before_an_authorisation(caller, gateway, calls, rail):
    exact = {**gateway.entry(), "scheme": "exact", "extra": {"name": "USDC", "version": "2"}}
    gateway.accepts = [exact]
    for number in range(calls):
        caller.call(f"/{number}")

    def stop(quote: PaymentQuote) -> None:
        raise ValueError(quote.rail)

    with pytest.raises(ValueError, match=rail):
        caller.call(rail="auto", before_signing=stop)


def test_a_named_rail_pays_by_no_channel(caller, gateway):
    for rail in ("tx", "x402"):
        with pytest.raises(CannotPay):
            caller.call(rail=rail)
    assert gateway.shown == []


# ---- A channel that takes no call.


def test_a_channel_with_a_withdrawal_waits_for_nothing_and_is_left_to_other_rails(caller, gateway):
    caller.call("/0")
    closed = {"members": {"reason": "withdrawal_pending"}, "headers": {"retry-after": "60"}}
    gateway.faults = [lambda _request: gateway.refuse(503, "channel_busy", **closed)]
    with pytest.raises(PaymentRefused, match="Pay by another rail") as caught:
        caller.call("/1", rail="auto")
    assert (caught.value.reason, caller.channel.pending) == ("withdrawal_pending", None)
    with pytest.raises(CannotPay, match=r"a withdrawal from 0x.* has begun"):
        caller.call("/1")
    gateway.chain.find(caller.channel.id).since_s = NOW_S
    with pytest.raises(CannotPay, match=r"a withdrawal from 0x.* has begun"):
        caller.call("/1", rpc_urls=AT_NODE)
    assert len(gateway.shown) == 2
    gateway.chain.find(caller.channel.id).since_s = 0  # its own node shows the end
    assert caller.call("/1", rpc_urls=AT_NODE).status_code == 200
    check_agreement(caller)


def test_a_draining_channel_waits_for_nothing(caller, gateway):
    caller.call("/0")
    closed = {"members": {"reason": "channel_draining"}, "headers": {"retry-after": "60"}}
    gateway.faults = [lambda _request: gateway.refuse(503, "channel_busy", **closed)]
    with pytest.raises(PaymentRefused, match="Pay by another rail"):
        caller.call("/1")
    assert caller.channel.is_certain


def test_a_deposit_without_gas_waits_for_nothing_and_is_sent_again_by_the_next_call(caller, gateway):
    closed = {"members": {"reason": "gas"}, "headers": {"retry-after": "60"}}
    gateway.faults = [lambda _request: gateway.refuse(503, "channel_busy", **closed)]
    with pytest.raises(PaymentRefused, match="Pay by another rail"):
        caller.call("/0")
    assert caller.call("/1").status_code == 200
    first, second = (payment.request for payment in gateway.shown)
    assert first == second
    check_agreement(caller)


# ---- A gateway that lies.


def lie(gateway: ChannelGateway, **changes: Any) -> Iterator[None]:
    """Corrective 402s with a changed state."""

    def respond(request: httpx.Request) -> httpx.Response:
        payment = gateway.shown[-1].voucher
        (books,) = gateway.books.values()
        response = gateway.correct(payment, books, gateway.chain.find(payment.channel_id))
        required = json.loads(base64.b64decode(response.headers["payment-required"]))
        extra = required["accepts"][0]["extra"]
        for path, value in changes.items():
            member, _, name = path.partition("__")
            if value is None:
                extra.pop(member, None)
            elif name:
                extra.setdefault(member, {})[name] = value
            else:
                required["accepts"][0][member] = value
        response.headers["payment-required"] = base64.b64encode(json.dumps(required).encode()).decode()
        return response

    return respond


def own_voucher(gateway: ChannelGateway) -> dict[str, str]:
    return {"voucherState__signedMaxClaimable": "600", "channelState__chargedCumulativeAmount": "600"}


LIES = {
    "more than its voucher covers": (
        {"channelState__chargedCumulativeAmount": "301"}, "more than its voucher covers"),
    "another signature": (
        {"channelState__chargedCumulativeAmount": "900", "voucherState__signedMaxClaimable": "900"},
        "this wallet did not sign"),
    "less than was claimed": (
        {"channelState__totalClaimed": "301"}, "below what was claimed"),
    "no voucher": (
        {"voucherState": None, "channelState__chargedCumulativeAmount": "600"}, "shows no voucher"),
    "no state": ({"channelState": None}, "does not state what it has charged"),
    "another channel": (
        {"channelState__channelId": "0x" + "11" * 32}, "does not state what it has charged"),
    "less than was deposited": ({"channelState__balance": "299"}, "only the chain can show that less is left"),
    "numbers": ({"channelState__chargedCumulativeAmount": 300}, "does not state what it has charged"),
    "a price above the maximum": ({"amount": "1000001"}, "costs 1.000001 USDC"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_correction_without_proof_is_refused(caller, gateway, name):
    changes, said = LIES[name]
    caller.call("/first")
    gateway.faults = [lie(gateway, **changes)]
    with pytest.raises(PaymentRefused, match=said):
        caller.call("/second")
    assert gateway.ceilings == [300, 600]
    assert caller.channel.pending is None
    caller.call("/third")  # the gateway is honest again
    check_agreement(caller)


def test_the_voucher_of_the_call_is_no_proof_that_it_was_charged(caller, gateway):
    """The gateway would get the price of one call twice."""
    caller.call("/first")

    def claim(request: httpx.Request) -> httpx.Response:
        shown = gateway.shown[-1].voucher
        (books,) = gateway.books.values()
        books.announced, books.voucher = shown.ceiling, shown
        return gateway.correct(shown, books, gateway.chain.find(shown.channel_id))

    gateway.faults = [claim]
    with pytest.raises(PaymentRefused, match="refuses the voucher of this call and reports it as charged"):
        caller.call("/second")
    assert gateway.ceilings == [300, 600]


def test_a_correction_of_another_channel_is_a_refusal(caller, gateway):
    caller.call("/first")
    gateway.faults = [lie(gateway, payTo="0x" + "33" * 20)]
    with pytest.raises(PaymentRefused, match="does not accept the voucher"):
        caller.call("/second")
    assert gateway.ceilings == [300, 600]


def test_a_request_that_waited_for_its_own_earlier_run_sends_what_it_left(caller, gateway, store):
    """The earlier run still has the channel when this one looks for what it left."""
    caller.call("/first")
    gateway.faults = ["unknown"]
    with pytest.raises(CallHeld):
        caller.call("/second")
    locks, respond = [store.lock_channel(caller.channel.id)], gateway.handle

    def unlock(request: httpx.Request) -> httpx.Response:
        if locks:
            os.close(locks.pop())
        return respond(request)

    gateway.handle, gateway.price = unlock, 200
    assert caller.call("/second").status_code == 200
    assert gateway.ceilings == [300, 600, 600, 500]


def test_a_second_correction_ends_the_call(caller, gateway):
    caller.call("/first")
    gateway.faults = [lie(gateway), lie(gateway)]
    with pytest.raises(PaymentRefused, match="refuses the voucher that its own report asks for"):
        caller.call("/second")
    assert gateway.ceilings == [300, 600, 600]


def test_a_charge_above_the_maximum_is_not_counted(caller, gateway):
    def overcharge(request: httpx.Request) -> httpx.Response:
        receipt = {"success": True, "transaction": "", "extra": {"chargedAmount": "301"}}
        return httpx.Response(
            200,
            headers={
                "proxy-status": '"gateway.test"; received-status=200',
                "tollway-payment-state": "charged",
                "payment-response": base64.b64encode(json.dumps(receipt).encode()).decode(),
            },
        )

    caller.call("/first")
    gateway.faults = [overcharge]
    caller.call("/second")
    assert caller.channel.charged == 300


def test_a_refused_payment_ends_the_call_and_its_deposit_is_used_later(caller, gateway):
    gateway.faults = [lambda _request: gateway.refuse(402, "payment_verification_failed")]
    with pytest.raises(PaymentRefused, match="What was deposited stays yours"):
        caller.call("/first")
    caller.call("/second")
    assert len({payment.request.salt for payment in gateway.shown}) == 1
    check_agreement(caller)


def test_a_correction_after_a_lost_answer_is_no_second_payment(caller, gateway):
    """The first run was charged, and the gateway has not stored its response."""
    caller.call("/first")
    gateway.faults = ["lose answer"] * 3
    with pytest.raises(GatewayUnreachable):
        caller.call("/second")
    (books,) = gateway.books.values()
    books.stored.clear()
    with pytest.raises(CallHeld, match="its response is not stored") as caught:
        caller.call("/second")
    assert not caught.value.is_retryable
    assert gateway.ceilings == [300, *[600] * 4]
    assert caller.call("/second").status_code == 200
    check_agreement(caller)


def test_the_mismatch_of_the_kit_is_that_of_the_protocol():
    assert MISMATCH.endswith("cumulative_amount_mismatch")


# ---- Whatever happens: one corrective 402 makes both agree, and no ceiling is above what is owed and the price.

FAULTS = (
    [],
    ["lose answer"] * 3,
    ["lose request"] * 3,
    ["lose answer", "busy"],
    ["lose request", "unknown"],
    ["busy"],
    ["unknown"],
    ["fail"],
)
STEPS = st.lists(
    st.tuples(
        st.integers(min_value=0, max_value=2),
        st.integers(min_value=1, max_value=1_000),
        st.integers(min_value=0, max_value=1_000),
        st.sampled_from(FAULTS),
        st.sampled_from(["goes on", "goes on", "goes on", "loses its store"]),
    ),
    min_size=1,
    max_size=8,
)


@given(steps=STEPS, deposit_min=st.sampled_from([None, 1_500, 300_000]), has_node=st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_client_and_gateway_agree_after_one_correction(tmp_path_factory, steps, deposit_min, has_node):
    folder = tmp_path_factory.mktemp("channel")
    gateway = ChannelGateway(
        asset=USDC, pay_to=PAY_TO, authorizer=AUTHORIZER, now_s=NOW_S, deposit_min=deposit_min
    )
    caller = ChannelCaller(gateway, folder / "0.sqlite3")
    for number, (path, gateway.price, gateway.actual, faults, event) in enumerate(steps):
        gateway.faults = list(faults)
        options = {"rpc_urls": AT_NODE} if has_node else {}
        with contextlib.suppress(CallerFailure):
            caller.call(f"/{path}", **options)
        if event == "loses its store" and has_node:
            caller.store_path = folder / f"{number + 1}.sqlite3"
    gateway.faults, before = [], gateway.corrections
    assert caller.call("/last", **({"rpc_urls": AT_NODE} if has_node else {})).status_code == 200
    assert gateway.corrections <= before + 1
    channel = caller.channel
    assert (channel.charged, channel.pending) == (gateway.books[channel.id].announced, None)
    pairs = zip(gateway.ceilings, gateway.owed, gateway.amounts, strict=True)
    assert [ceiling - owed - amount for ceiling, owed, amount in pairs if ceiling > owed + amount] == []


# ---- The unmodified package accepts what is signed.


class StockNode:
    """A `FacilitatorEvmSigner` as far as the checks read the chain."""

    def __init__(self, gateway: ChannelGateway) -> None:
        self._gateway = gateway

    def read_contract(self, _to: str, _abi: object, name: str, *args: Any) -> object:
        assert name == "tryAggregate"
        return [(True, self._gateway.chain.call(to, bytes(payload))) for to, payload in args[1]]

    def get_code(self, _address: str) -> bytes:
        return b""


def test_the_stock_facilitator_accepts_deposit_and_voucher(caller, gateway):
    caller.clock_s = gateway.now_s = time.time_ns() // 10**9
    gateway.timeout_s = 900
    caller.call("/0")
    caller.call("/1")
    for proof, kind in zip(gateway.proofs, (is_deposit_payload, is_voucher_payload), strict=True):
        content = json.loads(base64.b64decode(proof))
        requirements = PaymentRequirements.model_validate(content["accepted"])
        payload, config = content["payload"], StockConfig.from_dict(content["payload"]["channelConfig"])
        assert kind(payload)
        node: Any = StockNode(gateway)
        verdict = verify_voucher(node, payload, requirements, config)
        assert (verdict.is_valid, verdict.invalid_reason) == (True, None)
        if kind is is_deposit_payload:
            deposit = DepositPayload.from_dict(payload)
            assert verify_eip3009_deposit_authorization(node, deposit, requirements, CHAIN) == (None, None)
