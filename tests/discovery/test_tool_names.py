"""Names of tools: from `operationId` or method and path; unique, plain, and the same on every gateway."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollway.client.agent_tools import TOOLS
from tollway.discovery.tool_names import (
    RESERVED_NAMES,
    TOOL_NAME_LENGTH_MAX,
    WHOLE_LISTING_TOOL,
    NamedOperation,
    name_tools,
    title_of,
)
from tollway.discovery.tools import GATEWAY_TOOLS

PLAIN = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
CYRILLIC_GET = "g\u0435t_api"  # its second letter is not Latin


def named(method: str, path: str, operation_id: object = None) -> NamedOperation:
    return NamedOperation(method=method, path=path, operation_id=operation_id)


def name(method: str, path: str, operation_id: object = None) -> str:
    (found,) = name_tools([named(method, path, operation_id)])
    assert PLAIN.fullmatch(found)
    assert len(found) <= TOOL_NAME_LENGTH_MAX
    return found


@pytest.mark.parametrize(
    ("operation_id", "found"),
    [
        ("getQuoteBySymbol", "get_quote_by_symbol"),
        ("get_quote_by_symbol", "get_quote_by_symbol"),
        ("Quotes.Get", "quotes_get"),
        ("quotes/list-all", "quotes_list_all"),
        ("listHTTPServersV2", "list_http_servers_v2"),
        ("x", "x"),
    ],
)
def test_a_name_is_the_operation_id_in_words(operation_id: str, found: str) -> None:
    assert name("GET", "/a", operation_id) == found


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        ("GET", "/quote/{symbol}", "get_quote_by_symbol"),
        ("POST", "/v1/cities/{city}/days/{dayNumber}", "post_v1_cities_by_city_days_by_day_number"),
        ("GET", "/files/{name}.{ext}", "get_files_by_name_by_ext"),
        ("GET", "", "get_root"),
        ("GET", "/", "get_root"),
        ("DELETE", "/a%20b", "delete_a_20_b"),
    ],
)
def test_without_an_operation_id_a_name_is_method_and_path(method: str, path: str, found: str) -> None:
    assert name(method, path) == found


@pytest.mark.parametrize(
    ("method", "path", "operation_id", "found"),
    [
        ("GET", "/words", "words_words_get", "words"),
        ("GET", "/items/{item_id}", "read_item_items__item_id__get", "read_item"),
        ("PUT", "/items/{item_id}", "get_item_items__item_id__put", "put_get_item"),
        ("GET", "/v1.0/a-b", "list_all_v1_0_a_b_get", "list_all"),
        ("GET", "/", "root__get", "root"),
        ("GET", "/words", "words_get", "words_get"),  # nothing is left of it
        ("GET", "/words", "words_words_post", "words_words_post"),
        ("GET", "/other", "words_words_get", "words_words_get"),
        ("GET", "/words", "_words_get", "get_words"),
        ("POST", "/a", "my_calls_a_post", "my_calls_a_post"),  # a name of Tollway's own tools
    ],
)
def test_a_name_does_not_repeat_what_fastapi_put_behind_the_function(
    method: str, path: str, operation_id: str, found: str
) -> None:
    assert name(method, path, operation_id) == found


def test_functions_of_one_name_keep_what_tells_them_apart() -> None:
    operations = [
        named("GET", "/items", "items_items_get"),
        named("POST", "/items", "items_items_post"),
        named("GET", "/words", "words_words_get"),
        named("GET", "/terms", "words"),
    ]
    found = ["items_items_get", "items_items_post", "words_words_get"]
    assert name_tools(operations)[:3] == found
    assert re.fullmatch("words(_[0-9a-f]{8})?", name_tools(operations)[3])
    assert name_tools(operations[::-1])[::-1][:3] == found


@pytest.mark.parametrize(
    "operation_id",
    [
        *(CYRILLIC_GET, "get\u202equote", "get\u200bquote", "get\nquote", "\uff47\uff45\uff54"),
        *("1st", "_quote", "", "x" * 201, "<b>get</b>", "get all of it", "get;drop"),
        *(7, None, ["get"], {"a": 1}, True),
    ],
)
def test_an_operation_id_that_is_no_plain_text_is_not_used(operation_id: object) -> None:
    assert name("GET", "/quote", operation_id) == "get_quote"


def test_the_reserved_names_are_those_of_all_tools_of_tollway() -> None:
    own = [WHOLE_LISTING_TOOL, *(tool.name for tool in GATEWAY_TOOLS), *(tool.name for tool in TOOLS)]
    assert sorted(RESERVED_NAMES) == sorted(own)


def test_a_name_of_tollways_own_tools_gets_a_digest() -> None:
    spellings: list[str] = []
    for one in RESERVED_NAMES:
        spellings += [one, one.upper(), one.title(), one.replace("_", ""), one.replace("_", "-")]
    found = {spelling: name("POST", "/a", spelling) for spelling in spellings}
    assert [one for one in found.items() if not re.fullmatch(r"[a-z_]+_[0-9a-f]{8}", one[1])] == []


@pytest.mark.parametrize("operation_id", ["proxy_too1_call", "ca11", "wa11et_status", "search_ap1s"])
def test_a_name_that_looks_like_one_of_tollways_tools_gets_a_digest(operation_id: str) -> None:
    assert re.search(r"_[0-9a-f]{8}$", name("GET", "/a", operation_id))


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_the_name_of_a_changing_operation_does_not_say_that_it_reads(method: str) -> None:
    assert name(method, "/a", "getQuote") == f"{method.lower()}_get_quote"
    assert name(method, "/a", "removeQuote") == "remove_quote"
    assert name("POST", "/a", "searchQuotes") == "search_quotes"  # many APIs read by POST


def test_a_long_name_is_cut_and_gets_a_digest() -> None:
    first, second = name_tools([named("GET", "/a", "quote" * 30), named("GET", "/b", "quote" * 30)])
    assert first != second
    assert len(first) == len(second) == TOOL_NAME_LENGTH_MAX
    assert first.startswith("quotequote")


def test_a_name_that_two_operations_want_belongs_to_neither() -> None:
    ids = {"/a": "getQuote", "/b": "get_quote", "/c": "other"}
    operations = [named("GET", path, one) for path, one in ids.items()]
    first, second, third = name_tools(operations)
    assert re.fullmatch(r"get_quote_[0-9a-f]{8}", first)
    assert re.fullmatch(r"get_quote_[0-9a-f]{8}", second)
    assert (first != second, third) == (True, "other")
    assert name_tools(operations[::-1]) == [third, second, first]


def test_an_operation_cannot_take_the_name_that_a_collision_makes() -> None:
    first, second = name_tools([named("GET", "/a", "getQuote"), named("GET", "/b", "getQuote")])
    ids = {"/a": "getQuote", "/b": "getQuote", "/c": first}
    taken = name_tools([named("GET", path, one) for path, one in ids.items()])
    assert len(set(taken)) == 3
    assert taken[1] == second
    assert taken[0].startswith(first)


def test_digests_that_begin_alike_get_longer() -> None:
    """The first 32 bits of both digests are the same."""
    first, second = name_tools([named("GET", "/a26724", "same"), named("GET", "/a80320", "same")])
    assert (first[:13], len(first)) == ("same_d459abc2", len("same_") + 16)
    assert (second[:13], len(second)) == ("same_d459abc2", len("same_") + 16)
    assert first != second


def test_other_operations_do_not_change_a_name() -> None:
    kept = [named("GET", f"/{number}", f"getThing{number}x") for number in range(50)]
    added = [named("POST", f"/{number}", f"addThing{number}x") for number in range(50)]
    names = name_tools(kept)
    assert name_tools([*added, *kept])[len(added) :] == names
    assert name_tools(kept[7:]) == names[7:]


IDS = st.one_of(
    st.none(),
    st.text(max_size=60),
    st.sampled_from([*RESERVED_NAMES, "getQuote", "get_quote", "getQuote_0a1b2c3d", CYRILLIC_GET, "a" * 80]),
)


@given(st.lists(IDS, max_size=40), st.integers())
def test_names_are_unique_and_plain_and_do_not_depend_on_the_order(
    operation_ids: list[object], seed: int
) -> None:
    operations = [named("GET", f"/p/{number}", one) for number, one in enumerate(operation_ids)]
    names = name_tools(operations)
    assert len(set(names)) == len(names)
    assert all(PLAIN.fullmatch(one) and len(one) <= TOOL_NAME_LENGTH_MAX for one in names)
    assert not set(names) & set(RESERVED_NAMES)
    order = list(range(len(operations)))
    random.Random(seed).shuffle(order)
    assert name_tools([operations[at] for at in order]) == [names[at] for at in order]


def test_a_title_is_the_name_in_words() -> None:
    assert title_of("get_quote_by_symbol") == "Get quote by symbol"
