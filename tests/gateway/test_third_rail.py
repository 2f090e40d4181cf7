"""A third rail, vouchers, works beside transactions and authorisations without a change of the pipeline."""

import ast
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import tollway.gateway
from tests.kit.asgi_exchange import HeaderPairs
from tests.kit.gateway import USDC, InProcessGateway
from tests.kit.payer import KeyWallet, Payer, has_terms
from tests.kit.ports import find_low_port
from tests.kit.upstream import Answerer, Arrived, hang_up, held, plain, raw
from tests.kit.voucher_rail import VoucherRail, format_voucher, open_voucher_gateway
from tests.kit.waits import until
from tollway.ledger.records import CallState, Delivery, Dialect, Rail
from tollway.money import Price

PRICE, MAXIMUM, FUNDS = 10_000, 20_000, 100_000
TARGET = "/quote?x=1"
KEY = ("Idempotency-Key", "one")
Opened = tuple[InProcessGateway, VoucherRail]


@pytest.fixture
async def opened() -> AsyncIterator[Opened]:
    async with open_voucher_gateway(buffer_bytes=15_000) as (gateway, rail):
        await gateway.publish()
        rail.counter.fund(gateway.wallet.address, FUNDS)
        yield gateway, rail


@pytest.fixture
def gateway(opened: Opened) -> InProcessGateway:
    return opened[0]


@pytest.fixture
def rail(opened: Opened) -> VoucherRail:
    return opened[1]


def show(gateway: InProcessGateway, units_max: int = MAXIMUM) -> tuple[str, str]:
    return ("X-Voucher", format_voucher(gateway.wallet.address, units_max))


def spent_units(gateway: InProcessGateway, rail: VoucherRail, *, funds: int = FUNDS) -> int:
    """The units taken from the voucher; calls hold all of them."""
    wallet = gateway.wallet.address
    balance = rail.counter.find_balance(wallet)
    assert balance is not None
    assert balance + rail.counter.sum_holds(wallet) == funds
    return funds - balance


def streamed(*chunks: bytes) -> Answerer:
    """In chunks, so that the head names no length."""
    frames = (b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *frames, b"0\r\n\r\n")


def cut(head_length: int, body: bytes) -> Answerer:
    return raw(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (head_length, body), close=True)


# ---------------------------------------------------------------------- paid


@pytest.mark.parametrize(
    ("method", "answer", "taken_units"),
    [
        ("GET", plain(b"x" * 12_000), 12_000),
        ("GET", plain(b"ok"), PRICE),
        ("GET", plain(b"x" * 19_000), 19_000),  # in more than one message
        ("GET", plain(b"x" * 30_000), MAXIMUM),
        ("GET", streamed(b"x" * 6_000, b"y" * 7_000), 13_000),
        ("POST", plain(b"x" * 12_000), 12_000),
        ("HEAD", plain(b"x" * 12_000), PRICE),
        ("GET", raw(b"HTTP/1.1 204 No Content\r\n\r\n"), PRICE),
    ],
    ids=["body", "short", "long", "above the maximum", "streamed", "post", "head", "no content"],
)
async def test_a_call_is_charged_the_maximum_and_lowered_by_its_end(
    gateway: InProcessGateway, rail: VoucherRail, method: str, answer: Answerer, taken_units: int
) -> None:
    gateway.upstream.answer = answer
    exchange = await gateway.ask(method, TARGET, [show(gateway)])
    assert (exchange.status in (200, 204), exchange.is_ended) == (True, True)
    headers = exchange.headers
    assert headers["tollway-payment-state"] == "charged"
    assert headers["tollway-price"] == "0.02 USDC"  # what the body costs is not known at the head
    assert headers["tollway-credit-remaining"] == "0.08 USDC"
    assert spent_units(gateway, rail) == taken_units
    (call,) = await gateway.history()
    assert (call.id, call.state) == (headers["tollway-call-id"], CallState.CONSUMED)
    assert (call.rail, call.price, call.asset) == (Rail.NONE, "0.02", USDC.key)
    assert (call.payer, call.tx_hash, call.delivery) == (
        gateway.wallet.address,
        None,
        Delivery.COMPLETE,
    )
    hold = rail.counter.find_hold(call.id)
    assert hold is not None
    assert (hold.units, hold.is_charged, hold.is_final) == (taken_units, True, True)
    await gateway.check_balanced()
    (arrived,) = gateway.upstream.arrived
    assert "x-voucher" not in arrived.names


@pytest.mark.parametrize(
    ("status", "code"), [(500, None), (503, None), (404, None), (402, "upstream_payment_required")]
)
async def test_an_answer_that_costs_nothing_gives_back_all(
    gateway: InProcessGateway, rail: VoucherRail, status: int, code: str | None
) -> None:
    gateway.upstream.answer = plain(b"x" * 12_000, status=status)
    exchange = await gateway.ask("GET", TARGET, [show(gateway)])
    assert exchange.headers["tollway-payment-state"] == "released"
    if code is None:
        assert exchange.status == status
    else:
        assert (exchange.status, exchange.problem["code"], has_terms(exchange)) == (502, code, False)
    assert spent_units(gateway, rail) == 0
    (call,) = await gateway.history()
    assert (call.state, rail.counter.find_hold(call.id)) == (CallState.RELEASED, None)


async def test_a_stored_response_is_delivered_again_and_takes_nothing(
    gateway: InProcessGateway, rail: VoucherRail
) -> None:
    gateway.upstream.answer = plain(b"x" * 12_000)
    first = await gateway.ask("POST", TARGET, [show(gateway), KEY], [b"{}"])
    again = await gateway.ask("POST", TARGET, [show(gateway), KEY], [b"{}"])
    other = await gateway.ask("POST", TARGET, [show(gateway), KEY], [b"[]"])
    assert (again.status, again.body) == (200, first.body)
    assert again.headers["idempotency-replayed"] == "true"
    assert other.problem["code"] == "idempotency_key_reused"
    assert (spent_units(gateway, rail), gateway.served) == (12_000, 1)


# ---------------------------------------------------------------------- failures


async def test_a_dial_that_fails_takes_nothing(gateway: InProcessGateway, rail: VoucherRail) -> None:
    await gateway.publish("api_away", endpoint=f"http://127.0.0.1:{find_low_port()}")
    exchange = await gateway.ask("GET", TARGET, [show(gateway)], listing="api_away")
    assert (exchange.problem["code"], exchange.problem["paymentState"]) == (
        "upstream_unreachable",
        "released",
    )
    assert (spent_units(gateway, rail), await gateway.history()) == (0, ())


async def test_a_ledger_that_is_away_takes_nothing(gateway: InProcessGateway, rail: VoucherRail) -> None:
    gateway.ledger.away = True
    exchange = await gateway.ask("GET", TARGET, [show(gateway)])
    assert exchange.problem["code"] == "storage_unavailable"
    gateway.ledger.away = False
    assert (spent_units(gateway, rail), gateway.served, await gateway.history()) == (0, 0, ())


async def test_a_call_without_a_head_is_held_and_its_repeat_runs_under_the_same_claim(
    gateway: InProcessGateway, rail: VoucherRail
) -> None:
    gateway.upstream.answer = hang_up
    lost = await gateway.ask("POST", TARGET, [show(gateway), KEY], [b"{}"])
    assert (lost.problem["paymentState"], has_terms(lost)) == ("held", False)
    assert spent_units(gateway, rail) == MAXIMUM
    gateway.upstream.answer = plain(b"x" * 12_000)
    refused = await gateway.ask("POST", TARGET, [show(gateway), KEY, ("Tollway-Max-Price", "0.015")], [b"{}"])
    assert (refused.problem["code"], refused.problem["paymentState"]) == ("price_above_max", "held")
    again = await gateway.ask("POST", TARGET, [show(gateway), KEY], [b"{}"])
    assert (again.status, again.headers["tollway-payment-state"]) == (200, "charged")
    assert again.headers["tollway-call-id"] == lost.problem["callId"]
    assert (spent_units(gateway, rail), gateway.served) == (12_000, 2)
    (call,) = await gateway.history()
    assert call.state is CallState.CONSUMED


async def test_a_body_that_its_upstream_cuts_costs_what_was_delivered_and_its_repeat_nothing_more(
    gateway: InProcessGateway, rail: VoucherRail
) -> None:
    gateway.upstream.answer = cut(19_000, b"x" * 12_000)
    first = await gateway.ask("GET", TARGET, [show(gateway), KEY])
    assert (first.status, first.is_ended) == (200, False)
    taken_units = max(PRICE, len(first.body))
    assert spent_units(gateway, rail) == taken_units
    gateway.upstream.answer = plain(b"y" * 19_000)
    again = await gateway.ask("GET", TARGET, [show(gateway), KEY])
    assert (again.status, len(again.body)) == (200, 19_000)
    assert (spent_units(gateway, rail), gateway.served) == (taken_units, 2)


@pytest.mark.parametrize("sizes", [(12_000,), (4_000, 9_000)], ids=["one chunk", "two chunks"])
async def test_a_caller_that_leaves_pays_for_what_was_delivered(
    gateway: InProcessGateway, rail: VoucherRail, sizes: tuple[int, ...]
) -> None:
    async def endless(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for size in sizes:
            writer.write(b"%x\r\n%s\r\n" % (size, b"x" * size))
        await writer.drain()
        await asyncio.Event().wait()

    gateway.upstream.answer = endless
    exchange = gateway.open("GET", TARGET, [show(gateway)])
    async with asyncio.TaskGroup() as group:
        running = group.create_task(gateway.run(exchange))
        await until(lambda: exchange.is_started and len(exchange.body) == sum(sizes))
        assert spent_units(gateway, rail) == MAXIMUM
        exchange.leave()
        await running
    assert not exchange.is_ended
    assert spent_units(gateway, rail) == max(PRICE, sum(sizes))
    (call,) = await gateway.history()
    assert (call.state, call.delivery, call.response_bytes) == (
        CallState.CONSUMED,
        Delivery.PARTIAL,
        sum(sizes),
    )


# ---------------------------------------------------------------------- the end of the body


@pytest.mark.parametrize("size", [12_000, 19_000], ids=["in one message", "streamed"])
async def test_a_response_ends_once_its_final_price_is_committed(size: int) -> None:
    may_commit = asyncio.Event()

    async def commit() -> None:
        await may_commit.wait()

    async with open_voucher_gateway(commit=commit, buffer_bytes=15_000) as (gateway, rail):
        await gateway.publish()
        rail.counter.fund(gateway.wallet.address, FUNDS)
        gateway.upstream.answer = plain(b"x" * size)
        exchange = gateway.open("GET", TARGET, [show(gateway)])
        async with asyncio.TaskGroup() as group:
            group.create_task(gateway.run(exchange))
            await until(lambda: is_charged(gateway, rail))
            assert (exchange.is_ended, spent_units(gateway, rail)) == (False, MAXIMUM)
            may_commit.set()
        assert (exchange.is_ended, spent_units(gateway, rail)) == (True, size)


def is_charged(gateway: InProcessGateway, rail: VoucherRail) -> bool:
    holds = map(rail.counter.find_hold, rail.counter.list_open(gateway.wallet.address))
    return any(hold is not None and hold.is_charged for hold in holds)


async def test_only_the_run_that_holds_the_call_lowers_it_and_only_once(
    gateway: InProcessGateway, rail: VoucherRail
) -> None:
    gateway.upstream.answer = hang_up
    await gateway.ask("POST", TARGET, [show(gateway), KEY], [b"{}"])
    (call,) = await gateway.history()
    await rail.counter.lower(call.id, epoch=1, units=PRICE)  # held: its price is not decided
    assert spent_units(gateway, rail) == MAXIMUM
    may_go_on = asyncio.Event()

    head = b"HTTP/1.1 200 OK\r\nContent-Length: 19000\r\n\r\n"
    gateway.upstream.answer = held(may_go_on, head + b"x" * 12_000, b"x" * 7_000)
    async with asyncio.TaskGroup() as group:
        group.create_task(gateway.ask("POST", TARGET, [show(gateway), KEY], [b"{}"]))
        await until(lambda: is_charged(gateway, rail))
        await rail.counter.lower(call.id, epoch=1, units=PRICE)  # the end of the first run comes late
        assert spent_units(gateway, rail) == MAXIMUM
        may_go_on.set()
    assert spent_units(gateway, rail) == 19_000
    await rail.counter.lower(call.id, epoch=2, units=PRICE)
    rail.counter.give_back(call.id, epoch=1)
    assert spent_units(gateway, rail) == 19_000


# ---------------------------------------------------------------------- refused


def forged(gateway: InProcessGateway) -> str:
    return format_voucher(gateway.wallet.address, MAXIMUM)[:-4] + "0000"


def without_counter(gateway: InProcessGateway) -> str:
    return format_voucher(KeyWallet.named("stranger").address, MAXIMUM)


@pytest.mark.parametrize(
    ("voucher", "code", "reason", "is_quoted"),
    [
        (lambda _: "all that you want", "payment_malformed", None, False),  # as an x402 payment is answered
        (forged, "payment_verification_failed", "unknown_voucher", True),
        (without_counter, "payment_verification_failed", "unknown_voucher", True),
        (lambda one: show(one, PRICE - 1)[1], "payment_insufficient", "voucher_too_small", True),
        (lambda one: show(one, FUNDS + 1)[1], "payment_insufficient", "voucher_spent", True),
    ],
    ids=["malformed", "forged", "without a counter", "too small", "above the balance"],
)
async def test_a_voucher_that_does_not_pay_is_refused(
    gateway: InProcessGateway,
    rail: VoucherRail,
    voucher: Callable[[InProcessGateway], str],
    code: str,
    reason: str | None,
    is_quoted: bool,
) -> None:
    exchange = await gateway.ask("GET", TARGET, [("X-Voucher", voucher(gateway))])
    assert (exchange.status, exchange.problem["code"]) == (402 if is_quoted else 400, code)
    assert exchange.problem.get("reason") == reason
    assert has_terms(exchange) is is_quoted
    await check_untouched(gateway, rail)


async def test_the_maximum_of_the_caller_and_a_block_hold_for_vouchers(
    gateway: InProcessGateway, rail: VoucherRail
) -> None:
    exchange = await gateway.ask("GET", TARGET, [show(gateway), ("Tollway-Max-Price", "0.01")])
    assert (exchange.problem["code"], has_terms(exchange)) == ("price_above_max", False)
    await check_untouched(gateway, rail)
    gateway.blocked.add(gateway.wallet.address)
    exchange = await gateway.ask("GET", TARGET, [show(gateway)])
    assert (exchange.problem["code"], has_terms(exchange)) == ("wallet_blocked", False)
    await check_untouched(gateway, rail)


async def check_untouched(gateway: InProcessGateway, rail: VoucherRail) -> None:
    assert (spent_units(gateway, rail), gateway.served, await gateway.history()) == (0, 0, ())


async def test_a_free_call_takes_nothing_from_a_voucher(gateway: InProcessGateway, rail: VoucherRail) -> None:
    await gateway.publish("api_free", price=Price.parse("0"))
    for value in (show(gateway)[1], "all that you want"):
        exchange = await gateway.ask("GET", TARGET, [("X-Voucher", value)], listing="api_free")
        assert (exchange.status, exchange.headers["tollway-payment-state"]) == (200, "none")
    assert spent_units(gateway, rail) == 0


# ---------------------------------------------------------------------- beside the other rails


async def by_transaction(gateway: InProcessGateway) -> HeaderPairs:
    return gateway.plain_proof((await gateway.pay(PRICE)).tx_hash)


async def by_x402(gateway: InProcessGateway) -> HeaderPairs:
    return await by_authorization(gateway, Dialect.X402_V2)


async def by_x402_v1(gateway: InProcessGateway) -> HeaderPairs:
    return await by_authorization(gateway, Dialect.X402_V1)


async def by_mpp(gateway: InProcessGateway) -> HeaderPairs:
    return await by_authorization(gateway, Dialect.MPP)


async def by_authorization(gateway: InProcessGateway, dialect: Dialect) -> HeaderPairs:
    payer = Payer.funded(gateway, PRICE)
    return payer.show(await payer.quote(), dialect)


RAILS = [(by_transaction, Rail.TX), (by_x402, Rail.X402), (by_x402_v1, Rail.X402), (by_mpp, Rail.MPP)]
Pay = Callable[[InProcessGateway], Awaitable[HeaderPairs]]


@pytest.mark.parametrize(("pay", "name"), RAILS)
async def test_the_other_rails_work_beside_it(
    gateway: InProcessGateway, rail: VoucherRail, pay: Pay, name: Rail
) -> None:
    exchange = await gateway.ask("GET", TARGET, await pay(gateway))
    assert (exchange.status, exchange.headers["tollway-payment-state"]) == (200, "charged")
    assert exchange.headers["tollway-price"] == "0.01 USDC"
    (call,) = await gateway.history()
    assert (call.rail, call.price_units) == (name, PRICE)
    assert spent_units(gateway, rail) == 0
    await gateway.check_balanced()


async def by_broken_proof(gateway: InProcessGateway) -> HeaderPairs:
    return [("X-Payment-Tx", "0x12")]


@pytest.mark.parametrize(
    ("pay", "reason"),
    [*((pay, "more_than_one_rail") for pay, _ in RAILS), (by_broken_proof, "missing_header")],
)
async def test_a_request_that_shows_two_rails_is_refused(
    gateway: InProcessGateway, rail: VoucherRail, pay: Pay, reason: str
) -> None:
    exchange = await gateway.ask("GET", TARGET, [*await pay(gateway), show(gateway)])
    assert (exchange.status, exchange.problem["reason"]) == (400, reason)
    assert not has_terms(exchange)
    await check_untouched(gateway, rail)


async def test_a_request_that_shows_two_vouchers_is_refused(
    gateway: InProcessGateway, rail: VoucherRail
) -> None:
    exchange = await gateway.ask("GET", TARGET, [show(gateway), show(gateway, PRICE)])
    assert (exchange.status, exchange.problem["code"]) == (400, "payment_malformed")
    await check_untouched(gateway, rail)


@pytest.mark.parametrize("is_voucher_first", [True, False])
async def test_a_key_that_named_a_call_of_another_rail_runs_nothing_again(
    gateway: InProcessGateway, rail: VoucherRail, is_voucher_first: bool
) -> None:
    """Its call has no outcome, and the same request under the same key shows another payment."""
    payment = await gateway.pay(PRICE)
    proofs: list[HeaderPairs] = [gateway.plain_proof(payment.tx_hash), [show(gateway)]]
    first, second = reversed(proofs) if is_voucher_first else proofs
    gateway.upstream.answer = hang_up
    lost = await gateway.ask("GET", TARGET, [*first, KEY])
    gateway.upstream.answer = plain()
    other = await gateway.ask("GET", TARGET, [*second, KEY])
    assert (other.status, other.problem["reason"]) == (409, "idempotency_key_used")
    assert other.problem["callId"] == lost.problem["callId"]
    assert (gateway.served, has_terms(other)) == (1, False)
    held_units = MAXIMUM if is_voucher_first else 0
    assert spent_units(gateway, rail) == held_units
    assert await gateway.remaining_units(payment) == (PRICE if is_voucher_first else 0)


# ---------------------------------------------------------------------- races


async def test_a_counter_for_five_calls_serves_five_of_twenty(
    gateway: InProcessGateway, rail: VoucherRail
) -> None:
    """They claim at once; what the five give back afterwards pays further calls."""
    may_answer = asyncio.Event()
    body = b"x" * 12_000

    gateway.upstream.answer = held(may_answer, body=body)
    exchanges = [gateway.open("GET", TARGET, [show(gateway)]) for _ in range(20)]
    async with asyncio.TaskGroup() as group:
        for exchange in exchanges:
            group.create_task(gateway.run(exchange))
        await until(lambda: sum(one.is_started for one in exchanges) == 15)
        assert spent_units(gateway, rail) == FUNDS
        may_answer.set()
    served = [one for one in exchanges if one.status == 200]
    refused = [one for one in exchanges if one.status != 200]
    assert (len(served), gateway.served) == (5, 5)
    for one in refused:
        assert (one.status, one.problem["code"]) == (409, "payment_already_used")
        assert (one.problem["paymentState"], one.headers["retry-after"]) == ("held", "5")
        assert not has_terms(one)
    assert spent_units(gateway, rail) == 5 * len(body)
    assert len(await gateway.history()) == 5
    await gateway.check_balanced()
    assert (await gateway.ask("GET", TARGET, [show(gateway)])).status == 200
    assert spent_units(gateway, rail) == 6 * len(body)


# ---------------------------------------------------------------------- the seam


GATEWAY = Path(tollway.gateway.__path__[0])
RAIL_MODULES = frozenset({"tollway.gateway.transaction_payment", "tollway.gateway.authorization_payment"})
SEAM = {
    "pipeline": {"tollway.payments.pricing"},
    "proxy": {"tollway.payments.settlement"},
    "access": {"tollway.payments.lookup_quota"},
    "idempotency": {
        "tollway.payments.authorization_check",
        "tollway.payments.eip3009",
        "tollway.payments.wire",
    },
    "body": set(),
    "messages": {"tollway.payments.pricing"},
    "problems": set(),
    "rail": {"tollway.payments.proof", "tollway.payments.settlement"},
}
"""Module that all rails share -> what it imports of `payments`. What is left of one rail's own words may only become less."""
PROOF_TYPES = {"Proof", "PresentedAuthorization"}
TYPED_BY_PROOF = {"idempotency"}
"""Modules that all rails share and that look at the type of a proof."""


def imports_of(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found


@pytest.mark.parametrize("module", SEAM)
def test_what_all_rails_share_names_no_rail(module: str) -> None:
    text = (GATEWAY / f"{module}.py").read_text()
    tree = ast.parse(text)
    imported = imports_of(tree)
    assert not imported & RAIL_MODULES
    assert {name for name in imported if name.startswith("tollway.payments")} == SEAM[module]
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert bool(names & PROOF_TYPES) is (module in TYPED_BY_PROOF)


def test_the_proxy_takes_of_settlement_only_an_outcome() -> None:
    tree = ast.parse((GATEWAY / "proxy.py").read_text())
    taken = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "tollway.payments.settlement"
        for alias in node.names
    }
    assert taken == {"Undecided"}


def test_the_product_does_not_know_this_rail() -> None:
    sources = GATEWAY.parent.rglob("*.py")
    assert [path.name for path in sources if "x-voucher" in path.read_text().lower()] == []
