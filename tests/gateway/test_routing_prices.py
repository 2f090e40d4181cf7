"""A version of the terms has a price only for calls that it would have served, on every rail. An edit between quote and call does not
raise the price of the quoted call."""

from typing import Any

import pytest

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import NOW_MS, InProcessGateway
from tests.kit.payer import CHAIN, Payer
from tollway.ids import ChainId
from tollway.ledger.records import Dialect
from tollway.money import Price
from tollway.registry.listing import DESCRIBED_CHARACTERS_MAX, Operation

OLD, NEW = Price.parse("0.001"), Price.parse("10")
OLD_UNITS, NEW_UNITS = 1_000, 10_000_000
OTHER_CHAIN = ChainId(1)
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
Story = tuple[str, str, dict[str, Any], dict[str, Any]]


def operation(method: str, path: str, price: Price = NEW) -> Operation:
    return Operation(method=method, path=path, price=price)


def document(*paths: str) -> dict[str, Any]:
    return {"openapi": "3.1.0", "paths": {path: {"get": {}} for path in paths}}


LONG = [f"/{'long' * 14}/{number}" for number in range(1_980)]
"""More than a version of the terms records as text."""
assert sum(map(len, LONG)) > DESCRIBED_CHARACTERS_MAX
SOLD = operation("GET", "/sold", OLD)
REFUSING = {"price": OLD, "other_paths": "refuse", "operations": (SOLD,)}

# The call, the listing as it was, and the edit that puts that call on sale at 10.
NEVER_SOLD: dict[str, Story] = {
    "an operation of a listing that refuses other paths": (
        "GET",
        "/new",
        REFUSING,
        {"operations": (SOLD, operation("GET", "/new"))},
    ),
    "other paths, which were refused": ("GET", "/new", REFUSING, {"other_paths": "serve", "price": NEW}),
    "an operation that the document did not describe": (
        "GET",
        "/new",
        {"price": OLD, "other_paths": "refuse", "openapi": document("/sold")},
        {"openapi": document("/sold", "/new"), "operations": (operation("GET", "/new"),)},
    ),
    "an operation that a very large document did not describe": (
        "GET",
        "/new",
        {"price": OLD, "other_paths": "refuse", "openapi": document(*LONG, "/sold")},
        {"openapi": document(*LONG, "/new"), "price": NEW},
    ),
    "a method that was refused": (
        "POST",
        "/any",
        {"price": OLD, "methods": ("GET",)},
        {"methods": ("GET", "POST"), "operations": (operation("POST", "/any"),)},
    ),
    "any method, when one was served": (
        "POST",
        "/any",
        {"price": OLD, "methods": ("GET",)},
        {"methods": (), "price": NEW},
    ),
    "a call on another network": (
        "GET",
        "/any",
        {"price": OLD, "networks": (OTHER_CHAIN,)},
        {"price": NEW, "networks": (CHAIN,)},
    ),
    "a paused listing": (
        "GET",
        "/any",
        {"price": OLD, "status": "paused"},
        {"status": "active", "price": NEW},
    ),
    "a suspended listing": (
        "GET",
        "/any",
        {"price": OLD, "suspended_ms": NOW_MS - HOUR_MS},
        {"suspended_ms": None, "price": NEW},
    ),
}
# The call, the listing as it was, and an edit after which that call costs 10.
WAS_SOLD: dict[str, Story] = {
    "a price that rises": ("GET", "/any", {"price": OLD}, {"price": NEW}),
    "an operation that gets a price of its own": (
        "GET",
        "/any",
        {"price": OLD},
        {"operations": (operation("GET", "/any"),), "other_paths": "refuse"},
    ),
    "a priced operation of a listing that refuses other paths": (
        "GET",
        "/sold",
        REFUSING,
        {"operations": (operation("GET", "/sold"),)},
    ),
    "an operation of the document, which grows": (
        "GET",
        "/sold",
        {"price": OLD, "other_paths": "refuse", "openapi": document("/sold")},
        {"openapi": document("/sold", "/new"), "price": NEW},
    ),
    "the last operation of a very large document": (
        "GET",
        "/sold",
        {"price": OLD, "other_paths": "refuse", "openapi": document(*LONG, "/sold")},
        {"price": NEW},
    ),
    "the last operation of a very large document, which changes too": (
        "GET",
        "/sold",
        {"price": OLD, "other_paths": "refuse", "openapi": document(*LONG, "/sold")},
        {"price": NEW, "openapi": document("/new", *LONG[1:], "/sold")},
    ),
    "the last operation of a very large document that serves other paths now": (
        "GET",
        "/sold",
        {"price": OLD, "other_paths": "refuse", "openapi": document(*LONG, "/sold")},
        {"price": NEW, "other_paths": "serve"},
    ),
    "a method beside which another is served": (
        "GET",
        "/any",
        {"price": OLD, "methods": ("GET",)},
        {"methods": ("GET", "POST"), "price": NEW},
    ),
}


def table(stories: dict[str, Story]) -> Any:
    return pytest.mark.parametrize(("method", "path", "before", "edit"), stories.values(), ids=stories)


dialects = pytest.mark.parametrize("dialect", list(Dialect))


@pytest.fixture
def payer(gateway: InProcessGateway) -> Payer:
    return Payer.funded(gateway, 10 * NEW_UNITS)


async def show(gateway: InProcessGateway, method: str, path: str, units: int, *, age_s: int = 0) -> Exchange:
    """A call paid by a transaction of that value."""
    return await gateway.ask(method, path, await gateway.plain_payment(units, age_s=age_s))


@table(NEVER_SOLD)
async def test_what_was_never_for_sale_has_no_old_price_for_a_transaction(
    gateway: InProcessGateway, method: str, path: str, before: dict[str, Any], edit: dict[str, Any]
) -> None:
    listing = await gateway.publish(**before)
    await gateway.pass_time(MINUTE_MS)
    await gateway.revise(listing, **edit)
    await gateway.pass_time(MINUTE_MS)
    assert (await show(gateway, method, path, OLD_UNITS)).problem["code"] == "payment_insufficient"
    await gateway.pass_time(23 * HOUR_MS)
    early = await show(gateway, method, path, OLD_UNITS, age_s=23 * 3_600 + 90)  # mined before the edit
    assert early.problem["code"] == "payment_insufficient"
    assert gateway.served == 0
    paid = await show(gateway, method, path, NEW_UNITS)
    assert (paid.status, paid.headers["tollway-price"]) == (200, "10 USDC")


@dialects
@table(NEVER_SOLD)
async def test_what_was_never_for_sale_has_no_old_price_for_an_authorisation(
    gateway: InProcessGateway,
    payer: Payer,
    dialect: Dialect,
    method: str,
    path: str,
    before: dict[str, Any],
    edit: dict[str, Any],
) -> None:
    listing = await gateway.publish(**before)
    await gateway.pass_time(MINUTE_MS)
    await gateway.revise(listing, **edit)
    await gateway.pass_time(MINUTE_MS)
    refused = await payer.buy(method, path, dialect, base_units=OLD_UNITS)
    assert refused.problem["reason"] == "invalid_exact_evm_payload_authorization_value_mismatch"
    assert gateway.served == 0
    paid = await payer.buy(method, path, dialect)
    assert (paid.status, paid.headers["tollway-price"]) == (200, "10 USDC")


@table(WAS_SOLD)
async def test_what_was_for_sale_keeps_its_old_price_for_a_transaction(
    gateway: InProcessGateway, method: str, path: str, before: dict[str, Any], edit: dict[str, Any]
) -> None:
    listing = await gateway.publish(**before)
    await gateway.pass_time(MINUTE_MS)
    await gateway.revise(listing, **edit)
    await gateway.pass_time(9 * MINUTE_MS)
    assert (await show(gateway, method, path, OLD_UNITS)).status == 200
    await gateway.pass_time(23 * HOUR_MS)
    early = await show(gateway, method, path, OLD_UNITS, age_s=23 * 3_600 + 590)  # mined before the edit
    assert early.status == 200
    late = await show(gateway, method, path, OLD_UNITS)
    assert late.problem["code"] == "payment_insufficient"


@dialects
@table(WAS_SOLD)
async def test_what_was_for_sale_keeps_its_old_price_for_an_authorisation(
    gateway: InProcessGateway,
    payer: Payer,
    dialect: Dialect,
    method: str,
    path: str,
    before: dict[str, Any],
    edit: dict[str, Any],
) -> None:
    listing = await gateway.publish(**before)
    asked = await payer.quote(method, path)
    await gateway.pass_time(MINUTE_MS)
    await gateway.revise(listing, **edit)
    answer = await gateway.ask(method, path, payer.show(asked, dialect))
    assert (answer.status, answer.headers["tollway-price"]) == (200, "0.001 USDC")


@pytest.mark.parametrize("pause", [{"status": "paused"}, {"suspended_ms": NOW_MS}])
async def test_a_pause_takes_no_price_back_that_was_in_force_before_it(
    gateway: InProcessGateway, pause: dict[str, Any]
) -> None:
    """Nor does it give a price that stood only while it lasted."""
    listing = await gateway.publish(price=Price.parse("0.002"))
    await gateway.pass_time(MINUTE_MS)
    listing = await gateway.revise(listing, **pause)
    await gateway.pass_time(MINUTE_MS)
    listing = await gateway.revise(listing, price=OLD)
    await gateway.pass_time(MINUTE_MS)
    listing = await gateway.revise(listing, price=NEW)
    await gateway.pass_time(MINUTE_MS)
    await gateway.revise(listing, status="active", suspended_ms=None)
    assert (await show(gateway, "GET", "/any", OLD_UNITS)).problem["code"] == "payment_insufficient"
    assert (await show(gateway, "GET", "/any", 2 * OLD_UNITS)).headers["tollway-price"] == "0.002 USDC"
    await gateway.pass_time(8 * MINUTE_MS)  # eleven minutes after the pause began
    assert (await show(gateway, "GET", "/any", 2 * OLD_UNITS)).problem["code"] == "payment_insufficient"


async def test_a_call_is_free_only_while_the_current_price_is_zero(gateway: InProcessGateway) -> None:
    listing = await gateway.publish(price=Price.parse("0"))
    assert (await gateway.ask("GET", "/any")).status == 200
    await gateway.revise(listing, price=OLD)
    assert (await gateway.ask("GET", "/any")).status == 402
