"""The formulas in the editor of a listing: rows of parts, for the listing and for its operations, without a script."""

import re
from collections.abc import AsyncIterator, Mapping
from html import unescape

import httpx
import pytest

from tests.kit.editor import (
    GOOD,
    HOSTILE,
    NEW,
    ONE,
    count_listings,
    error_of,
    field_of,
    list_prices,
    open_form,
    post_table,
    publish,
    stored,
    submit,
)
from tests.kit.metering import TOKENS_IN_WORDS, sample_metering
from tests.kit.pages import PageReader
from tests.kit.signed_in import SELLER, SignedInHarness, open_signed_in
from tollway.registry.listing import Listing
from tollway.registry.metering import read_metering
from tollway.web.pages.formula_form import OPERATION_FORMULAS_MAX

TABLE = {"GET /cities/{city}": "0.02", "POST /reports": "0.5"}
BY_TOKEN = {
    "metering.count": "2",
    "metering.base": "0.0001",
    "metering.absent": "max",
    "metering.0.unit": "prompt token",
    "metering.0.unitPrice": "0.000002",
    "metering.0.per": "1",
    "metering.0.json": "/usage/prompt_tokens",
    "metering.0.sse": "/usage/prompt_tokens",
    "metering.1.unit": "completion token",
    "metering.1.unitPrice": "0.000008",
    "metering.1.json": "/usage/completion_tokens",
    "metering.1.sse": "/usage/completion_tokens",
}
"""The fields of `sample_metering`."""
BY_IMAGE = {
    "metering1.call": "GET /cities/{city}",
    "metering1.count": "1",
    "metering1.absent": "base",
    "metering1.show": "yes",
    "metering1.0.unit": "image",
    "metering1.0.unitPrice": "0.004",
    "metering1.0.header": "X-Images",
}
"""The formula of an operation."""
IMAGES = read_metering(
    {
        "base": "0",
        "absent": "base",
        "show": True,
        "parts": [{"unit": "image", "unitPrice": "0.004", "per": 1, "quantity": {"header": "X-Images"}}],
    }
)


@pytest.fixture
async def harness() -> AsyncIterator[SignedInHarness]:
    async with open_signed_in() as harness:
        await harness.sign_in(SELLER)
        yield harness


async def check(harness: SignedInHarness, fields: Mapping[str, str], act: str = "check") -> httpx.Response:
    """Sends the form of a new listing with these fields of its formulas."""
    return await submit(harness, act=act, **{"pricePerRequest": "0.02", **fields})


async def save(
    harness: SignedInHarness, listing: Listing, act: str = "write", **fields: str
) -> httpx.Response:
    """Sends the form of that listing; its table of operations as it is."""
    path = f"/my/apis/{listing.id}"
    hidden = await open_form(harness, path)
    form = {**GOOD, "pricePerRequest": "0.02", "operations": "", "upstreamAuth.value": "", **hidden, **fields}
    return await post_table(harness, path, TABLE, ONE, **form, act=act)


def list_fields(answer: httpx.Response, name: str) -> dict[str, str]:
    """The texts of a formula on the page."""
    inputs = re.findall(rf'<input id="({name}\.[^"]+)" name="[^"]+" value="([^"]*)"', answer.text)
    return {field: unescape(text) for field, text in inputs if text}


def listing_id(answer: httpx.Response) -> str:
    assert answer.status_code == 303, PageReader(answer.text).words
    return answer.headers["location"].removeprefix("/my/apis/").partition("?")[0]


async def test_a_formula_is_published_shown_changed_and_removed(harness: SignedInHarness) -> None:
    listing = await publish(harness, **{"pricePerRequest": "0.02", **BY_TOKEN})
    assert listing.metering == sample_metering()
    page = await harness.browser.get(f"/my/apis/{listing.id}")
    shown = {name: text for name, text in BY_TOKEN.items() if name != "metering.absent"}
    assert list_fields(page, "metering") == {**shown, "metering.1.per": "1"}
    assert f"Callers read: up to 0.02 USDC: {TOKENS_IN_WORDS}" in PageReader(page.text).words
    await save(harness, listing, **{**BY_TOKEN, "metering.base": ""})
    assert (await stored(harness, listing.id)).metering == sample_metering(base="0")
    await save(harness, listing, **{**BY_TOKEN, "metering.count": "0"})
    assert (await stored(harness, listing.id)).metering is None


async def test_rows_without_a_text_are_no_parts(harness: SignedInHarness) -> None:
    moved = {name.replace(".1.", ".2."): text for name, text in BY_TOKEN.items()}
    empty = {"metering.count": "4", "metering.1.unit": " ", "metering.3.unit": ""}
    listing = await publish(harness, **{"pricePerRequest": "0.02", **moved, **empty})
    assert listing.metering == sample_metering()
    fixed = await publish(harness, **{"metering.count": "2", "metering.0.unit": "", "metering.1.unit": ""})
    assert fixed.metering is None


@pytest.mark.parametrize("act", ["check", "write"])
async def test_a_larger_number_adds_rows_and_writes_nothing(harness: SignedInHarness, act: str) -> None:
    answer = await check(harness, {**BY_TOKEN, "metering.count": "4"}, act)
    assert answer.status_code == 200
    assert await count_listings(harness) == 0
    assert [field_of(answer, f"metering.{row}.unit") for row in range(4)] == [
        "prompt token",
        "completion token",
        "",
        "",
    ]
    (first,) = re.findall(r'<input id="metering\.2\.unit"[^>]*>', answer.text)
    assert "autofocus" in first
    assert answer.text.count("autofocus") == 1
    assert 'class="field-error"' not in answer.text
    listing = await publish(harness, pricePerRequest="0.02")
    assert (await save(harness, listing, act, **{"metering.count": "1"})).status_code == 200
    assert (await stored(harness, listing.id)).revision == listing.revision


@pytest.mark.parametrize(
    ("change", "field", "sentence"),
    [
        ({"metering.0.unit": ""}, "metering.0.unit", "is required"),
        ({"metering.0.unit": "a\u202eb"}, "metering.0.unit", "invisible"),
        ({"metering.1.unitPrice": "cheap"}, "metering.1.unitPrice", "a unit price is a decimal string"),
        ({"metering.1.per": "0"}, "metering.1.per", "must lie between 1 and"),
        ({"metering.1.per": "many"}, "metering.1.per", "integer"),
        ({"metering.1.json": "usage"}, "metering.1.json", "must be a JSON pointer"),
        ({"metering.0.sse": "usage"}, "metering.0.sse", "must be a JSON pointer"),
        ({"metering.0.header": "Date"}, "metering.0.header", "means something else"),
        ({"metering.0.header": "X-Tokens"}, "metering.0.header", "must name one place only"),
        ({"metering.0.bytes": "yes"}, "metering.0.header", "must name one place only"),
        ({"metering.1.json": "", "metering.1.sse": ""}, "metering.1.header", "must name where the quantity"),
        ({"metering.base": "-1"}, "metering.base", "a price is a decimal string"),
        ({"metering.base": "1"}, "metering.base", "must not be more than pricePerRequest, the maximum"),
        ({"pricePerRequest": "0"}, "metering.base", "a metered price needs a maximum"),
        ({"metering.absent": "free"}, "metering.absent", "max"),
        (dict.fromkeys([name for name in BY_TOKEN if ".0." in name or ".1." in name], ""), "metering.count", "at least one part"),
    ],
)  # fmt: skip
async def test_an_error_of_a_formula_stands_at_its_row_and_what_was_typed_stays(
    harness: SignedInHarness, change: dict[str, str], field: str, sentence: str
) -> None:
    sent = {**BY_TOKEN, **change}
    answer = await check(harness, sent, "write")
    assert answer.status_code == 422
    assert sentence in error_of(answer, field)
    assert answer.text.count('<p class="field-error"') == 1
    assert f'<a href="#{field}">Formula' in answer.text
    typed = {name: text for name, text in sent.items() if text and name.startswith("metering")}
    shown = {**list_fields(answer, "metering"), "metering.absent": sent["metering.absent"]}
    assert shown == {name: text for name, text in typed.items() if name != "metering.0.bytes"}
    assert await count_listings(harness) == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (BY_TOKEN, f"up to 0.02 USDC: {TOKENS_IN_WORDS}"),
        ({**BY_TOKEN, "metering.1.unitPrice": "cheap"}, None),
        ({**BY_TOKEN, "metering.0.unit": HOSTILE}, None),
        ({}, None),
    ],
)
async def test_the_price_stands_as_callers_read_it(
    harness: SignedInHarness, fields: dict[str, str], words: str | None
) -> None:
    answer = await check(harness, fields)
    assert ("Callers read: " + (words or "")) in PageReader(answer.text).words or words is None
    assert ("Callers read:" in answer.text) is (words is not None)
    assert HOSTILE not in answer.text


async def test_an_operation_gets_a_formula_of_its_own(harness: SignedInHarness) -> None:
    """It is chosen; the page comes back with its rows; then it is sold by its own formula."""
    chosen = await check(harness, {"meteringOf": "GET /cities/{city}"})
    assert field_of(chosen, "metering1.call") == "GET /cities/{city}"
    assert field_of(chosen, "metering1.0.unit") == ""
    checked = await check(harness, BY_IMAGE)
    assert "up to 0.02 USDC: 0.004 per image" in PageReader(checked.text).words
    assert list_prices(checked) == list(TABLE.items())
    listing = await stored(harness, listing_id(await check(harness, BY_IMAGE, "write")))
    assert {one.path: one.metering for one in listing.operations} == {
        "/cities/{city}": IMAGES,
        "/reports": None,
    }
    assert listing.metering is None


async def test_a_formula_that_is_not_in_the_form_stays(harness: SignedInHarness) -> None:
    """The page of a stored listing has those of its operations in words; the rows of one come when it is chosen."""
    listing = await stored(harness, listing_id(await check(harness, BY_IMAGE, "write")))
    page = await harness.browser.get(f"/my/apis/{listing.id}")
    assert "up to 0.02 USDC: 0.004 per image" in PageReader(page.text).words
    assert list_fields(page, "metering1") == {}
    assert (await save(harness, listing, name="Renamed")).status_code == 303
    assert (await stored(harness, listing.id)).operations == listing.operations
    chosen = await save(harness, listing, meteringOf="GET /cities/{city}")
    assert (chosen.status_code, (await stored(harness, listing.id)).operations) == (200, listing.operations)
    typed = {name for name in BY_IMAGE if not name.endswith((".call", ".absent", ".show"))}
    assert list_fields(chosen, "metering1") == {
        **{name: BY_IMAGE[name] for name in typed},
        "metering1.base": "0",
        "metering1.0.per": "1",
    }
    assert '<option value="base" selected>' in chosen.text
    assert 'name="metering1.show" value="yes" checked' in chosen.text
    dearer = await save(harness, listing, **{**BY_IMAGE, "metering1.0.unitPrice": "0.005"})
    assert dearer.status_code == 303
    assert "0.005 per image" in (await harness.read(f"/my/apis/{listing.id}")).words
    await save(harness, listing, **{**BY_IMAGE, "metering1.count": "0"})
    assert [one.metering for one in (await stored(harness, listing.id)).operations] == [None, None]


@pytest.mark.parametrize(
    ("fields", "operations", "field", "sentence"),
    [
        ({"metering1.0.unitPrice": "cheap"}, GOOD["operations"], "metering1.0.unitPrice", "a unit price"),
        ({"metering1.base": "0.03"}, GOOD["operations"], "metering1.base", "must not be more than"),
        ({}, "POST /reports 0.5", "operations", "GET /cities/{city}: price is required"),
        ({"metering1.call": "GET"}, GOOD["operations"], "operations", "GET: path is required"),
    ],
)
async def test_an_error_of_an_operations_formula_stands_at_its_row(
    harness: SignedInHarness, fields: dict[str, str], operations: str, field: str, sentence: str
) -> None:
    """A formula without a price of the operation is an error, and is never dropped."""
    answer = await check(harness, {**BY_IMAGE, **fields, "operations": operations}, "write")
    assert answer.status_code == 422
    assert sentence in error_of(answer, field)
    assert field_of(answer, "metering1.0.header") == "X-Images"
    assert await count_listings(harness) == 0


async def test_an_operation_of_the_table_without_its_price_marks_its_row(harness: SignedInHarness) -> None:
    form = {**GOOD, "operations": "", **await open_form(harness), **BY_IMAGE}
    answer = await post_table(harness, NEW, {"GET /cities/{city}": ""}, **form, act="check")
    assert error_of(answer, "price-1") == "is required"
    assert list_prices(answer) == [("GET /cities/{city}", "")]


async def test_a_price_below_the_base_of_a_formula_that_is_not_in_the_form_is_refused(
    harness: SignedInHarness,
) -> None:
    based = {**BY_IMAGE, "metering1.base": "0.01"}
    listing = await stored(harness, listing_id(await check(harness, based, "write")))
    path = f"/my/apis/{listing.id}"
    hidden = await open_form(harness, path)
    form = {**GOOD, "operations": "", "upstreamAuth.value": "", **hidden}
    rows = {**TABLE, "GET /cities/{city}": "0.005"}
    answer = await post_table(harness, path, rows, ONE, **form, act="write")
    assert answer.status_code == 422
    assert error_of(answer, "price-1") == "formula: base must not be more than pricePerRequest, the maximum"


async def test_two_versions_show_their_formulas(harness: SignedInHarness) -> None:
    """Of the listing, and of each operation whose formula the form has."""
    listing = await stored(harness, listing_id(await check(harness, {**BY_TOKEN, **BY_IMAGE}, "write")))
    stale = (await open_form(harness, f"/my/apis/{listing.id}"))["etag"]
    changes = {"metering.base": "0.0002", "metering1.0.unitPrice": "0.006"}
    assert (await save(harness, listing, **{**BY_TOKEN, **BY_IMAGE, **changes})).status_code == 303
    answer = await save(harness, listing, **{**BY_TOKEN, **BY_IMAGE, "etag": stale})
    table = answer.text.split('<table class="cards-below versions">')[1].split("</table>")[0]
    words = PageReader(table).words
    assert "stored now: base 0.0002" in words
    assert "in your form: base 0.0001" in words
    assert "Formula GET /cities/{city}" in words
    assert "image, 0.006, 1, X-Images" in words


async def test_a_form_has_few_formulas_of_operations_at_one_time(harness: SignedInHarness) -> None:
    calls = {f"metering{number}.call": f"GET /{number}" for number in range(1, 10)}
    answer = await check(
        harness, {**calls, "meteringOf": "GET /10", "metering.count": "900000000000000000000"}
    )
    shown = re.findall(r'name="metering[0-9]\.call" value="([^"]*)"', answer.text)
    assert shown == [f"GET /{number}" for number in range(1, OPERATION_FORMULAS_MAX + 1)]
    assert answer.text.count('.unit"') <= 2 * 8
    twice = await check(harness, {**BY_IMAGE, "meteringOf": "GET  /cities/{city}"})
    assert re.findall(r'name="(metering[0-9])\.call"', twice.text) == ["metering1"]
