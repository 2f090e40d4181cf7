"""The view of a listing: its prices, its URLs, and the places of arguments."""

from dataclasses import replace

from tests.kit.listings import LISTING_ID, PUBLIC_URL, show_listing
from tests.kit.metering import sample_metering
from tollway.discovery.listing_view import PRICES_MAX, arguments_json, list_prices
from tollway.discovery.operations import Argument
from tollway.money import Price
from tollway.registry.listing import Operation
from tollway.registry.metering import offer

DEAR = Operation(method="GET", path="/dear", price=Price.parse("2.5"))


def test_the_quoted_price_is_the_listings_own_when_an_operation_has_it() -> None:
    assert show_listing().quoted_price.price.text == "0.01"
    assert show_listing(operations=(DEAR,)).quoted_price.price.text == "0.01"


def test_else_it_is_the_first_that_something_costs() -> None:
    free = Operation(method="GET", path="/free", price=Price.parse("0"))
    assert show_listing(operations=(free, DEAR), other_paths="refuse").quoted_price.price.text == "2.5"
    assert show_listing(operations=(free,), other_paths="refuse").quoted_price.price.text == "0"


def test_each_price_is_listed_once_its_own_first_and_only_so_many() -> None:
    view = show_listing(operations=(DEAR, replace(DEAR, path="/other", price=Price.parse("2.50"))))
    assert [one.price.text for one in list_prices(view.listing, view.operations)] == ["0.01", "2.5"]
    (whole,) = show_listing().operations
    many = [replace(whole, price=Price.from_nano(number + 1)) for number in range(500)]
    prices = list_prices(view.listing, many)
    assert len(prices) == PRICES_MAX
    assert prices[0].price.text == "0.01"


def test_a_metered_price_is_another_than_the_fixed_price_of_its_amount() -> None:
    metered = replace(DEAR, path="/metered", metering=sample_metering())
    view = show_listing(operations=(DEAR, metered))
    rails = [[option["rail"] for option in view.options[offer(one)]] for one in (DEAR, metered)]
    assert rails == [["tx", "x402"], ["tx"]]
    assert [one.metering for one in list_prices(view.listing, view.operations)] == [
        None,
        None,
        metered.metering,
    ]


def test_the_url_of_an_operation_keeps_the_braces_of_its_template() -> None:
    view = show_listing()
    base = f"{PUBLIC_URL}/api/v2/gateway/{LISTING_ID}"
    (whole,) = view.operations
    for path, url in (("", ""), ("/a/{b}", "/a/{b}"), ("/ä b", "/%C3%A4%20b"), ("/a%2Fb", "/a%2Fb")):
        assert view.url_of(replace(whole, path=path)) == base + url


def test_arguments_say_where_they_go() -> None:
    (whole,) = show_listing().operations
    arguments = (
        Argument(name="id", place="path", parameter="id", is_required=True),
        Argument(name="header_x", place="header", parameter="X-Thing", is_required=False),
        Argument(name="q", place="query", parameter="q", is_required=False, style="form", is_exploded=True),
        Argument(name="d", place="query", parameter="d", is_required=False, style="deepObject"),
        Argument(name="l", place="query", parameter="l", is_required=False, style="form"),
        Argument(name="body", place="body", parameter="", is_required=True),
    )
    assert arguments_json(replace(whole, arguments=arguments)) == {
        "id": {"in": "path", "name": "id"},
        "header_x": {"in": "header", "name": "X-Thing"},
        "q": {"in": "query", "name": "q"},
        "d": {"in": "query", "name": "d", "style": "deepObject"},
        "l": {"in": "query", "name": "l", "explode": False},
        "body": {"in": "body"},
    }
