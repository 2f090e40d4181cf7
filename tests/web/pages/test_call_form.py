"""The form of an operation: a field for each argument, what the module compares a 402 with, and words of providers as plain values."""

import json
from typing import Any

import pytest

from tests.kit.listings import show_listing
from tests.kit.pages import PROFILE
from tollway.chain.networks import NetworkProfile
from tollway.discovery.listing_view import ListingView
from tollway.money import Price
from tollway.sandbox.provider import SAMPLE_DOCUMENT
from tollway.web.pages.call_form import FIELDS_MAX, WORDS, CallForm, make_call_form
from tollway.web.pages.renderer import TEMPLATES


def make_form(view: ListingView, tool: str | None = None, *, profile: NetworkProfile = PROFILE) -> CallForm:
    operation = next(one for one in view.operations if tool is None or one.tool == tool)
    return make_call_form(view, operation, dict.fromkeys(view.listing.networks, profile))


def parameter(**schema: Any) -> dict[str, Any]:
    given = {"name": "q", "in": "query", "schema": schema}
    return {
        "openapi": "3.1.0",
        "info": {"title": "x", "version": "1"},
        "paths": {"/find": {"get": {"parameters": [given], "responses": {}}}},
    }


def test_fields_have_the_values_of_the_example() -> None:
    form = make_form(show_listing(openapi=SAMPLE_DOCUMENT), "get_quote")
    (symbol,) = form.fields
    assert (symbol.label, symbol.place, symbol.kind, symbol.value, symbol.is_required) == (
        *("symbol", "path", "text", "ETH"),
        True,
    )
    assert symbol.hint == "1 to 12 letters and digits"
    assert form.body_type is None


@pytest.mark.parametrize(
    ("schema", "kind", "choices"),
    [
        ({"type": "string"}, "text", ()),
        ({"type": "boolean"}, "choice", ("true", "false")),
        ({"enum": ["a", 2]}, "choice", ("a", "2")),
        ({"type": "integer", "minimum": 1, "maximum": 9}, "number", ()),
        ({"type": "array", "items": {"type": "string"}}, "json", ()),
        ({}, "text", ()),
        ({"enum": list(range(200))}, "text", ()),
    ],
)
def test_a_schema_chooses_the_kind_of_field(
    schema: dict[str, Any], kind: str, choices: tuple[str, ...]
) -> None:
    (field,) = make_form(show_listing(openapi=parameter(**schema))).fields
    assert (field.kind, field.choices) == (kind, choices)
    assert (field.least, field.most) == (("1", "9") if kind == "number" else ("", ""))


def test_a_body_is_json_of_the_example() -> None:
    form = make_form(show_listing(openapi=SAMPLE_DOCUMENT), "echo")
    assert (form.body_type, form.body, form.is_body_required) == (
        "application/json",
        '{"hello": "world"}',
        True,
    )


UPLOADS = {
    "openapi": "3.1.0",
    "info": {"title": "x", "version": "1"},
    "components": {
        "schemas": {
            "Page": {
                "required": ["file", "days"],
                "properties": {
                    "file": {"type": "string", "contentMediaType": "application/octet-stream"},
                    "more": {"type": "array", "items": {"type": "string", "format": "binary"}},
                    "days": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
                    "unit": {"$ref": "#/components/schemas/Unit"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "meta": {"type": "object", "description": "More"},
                },
            },
            "Unit": {"enum": ["C", "F"]},
        }
    },
}


def uploads(media_type: str, **entry: Any) -> dict[str, Any]:
    body = {"required": True, "content": {media_type: entry}}
    return {**UPLOADS, "paths": {"/a": {"post": {"requestBody": body}}}}


def test_a_form_has_a_field_for_each_of_its_fields_and_a_picker_for_files() -> None:
    entry = {
        "schema": {"$ref": "#/components/schemas/Page"},
        "encoding": {
            "file": {"contentType": "image/png, image/jpeg"},
            "tags": {"explode": False},
            "meta": {"style": "deepObject"},
        },
    }
    form = make_form(show_listing(openapi=uploads("multipart/form-data", **entry)))
    assert (form.body_type, form.has_body_text) == ("multipart/form-data", False)
    fields = {one.parameter: one for one in form.fields}
    assert [(one.parameter, one.kind, one.is_required, one.value) for one in form.fields] == [
        ("file", "file", True, ""),
        ("more", "file", False, ""),
        ("days", "number", True, "1"),
        ("unit", "choice", False, ""),
        ("tags", "json", False, ""),
        ("meta", "json", False, ""),
    ]
    assert {one.place for one in form.fields} == {"form"}
    assert (fields["file"].accept, fields["file"].is_list) == ("image/png,image/jpeg", False)
    assert (fields["more"].accept, fields["more"].is_list) == ("", True)
    assert (fields["days"].least, fields["unit"].choices) == ("1", ("C", "F"))
    assert (fields["tags"].is_exploded, fields["meta"].is_deep, fields["meta"].hint) == (False, True, "More")


def test_a_body_of_bytes_has_a_picker() -> None:
    form = make_form(show_listing(openapi=uploads("image/png")))
    (field,) = form.fields
    assert (field.place, field.kind, field.is_required) == ("body", "file", True)
    assert not form.has_body_text


def test_a_page_shows_so_many_fields_and_required_ones_first() -> None:
    properties = {f"field{number}": {"type": "string"} for number in range(300)}
    schema = {"properties": properties, "required": ["field150"]}
    form = make_form(show_listing(openapi=uploads("application/x-www-form-urlencoded", schema=schema)))
    assert len(form.fields) == FIELDS_MAX
    assert "field150" in {one.parameter for one in form.fields if one.is_required}


def test_a_form_without_described_fields_is_written_as_text() -> None:
    form = make_form(show_listing(openapi=uploads("application/x-www-form-urlencoded")))
    assert (form.fields, form.has_body_text) == ((), True)


def test_the_module_knows_payee_token_chain_and_amount() -> None:
    view = show_listing(openapi=SAMPLE_DOCUMENT)
    profile = NetworkProfile(
        name="Net",
        native_symbol="ETH",
        native_decimals=18,
        explorer_url="https://scan.example/",
        wallet_rpc_url="https://rpc.example",
    )
    settings = json.loads(make_form(view, "get_quote", profile=profile).settings)
    assert (settings["gateway"], settings["path"]) == ("https://gw.example.com", "/quote/{symbol}")
    assert [way["rail"] for way in settings["ways"]] == ["x402", "tx"]
    for way in settings["ways"]:
        assert (way["amount"], way["price"], way["payTo"]) == ("10000", "0.01", str(view.listing.pay_to))
        assert way["explorer"] == "https://scan.example/tx/"
        assert way["network"]["chainId"] == hex(way["chainId"])
        assert way["network"]["rpcUrls"] == ["https://rpc.example"]
    assert json.loads(make_form(view, "get_quote").settings)["ways"][0]["network"] is None
    with_channels = show_listing(openapi=SAMPLE_DOCUMENT, has_channels=True)
    assert (
        json.loads(make_form(with_channels, "get_quote", profile=profile).settings)["ways"]
        == settings["ways"]
    )


def test_a_free_operation_has_no_way_to_pay() -> None:
    form = make_form(show_listing(openapi=SAMPLE_DOCUMENT, price=Price.parse("0")), "get_quote")
    assert (form.is_free, form.ways) == (True, ())


def test_an_undocumented_api_asks_for_method_and_path() -> None:
    form = make_form(show_listing())
    assert form.is_any
    assert "PATCH" in form.methods
    assert form.body_type == "application/json"


def test_every_word_of_the_module_is_in_the_list() -> None:
    import re

    folder = TEMPLATES.parent / "ui"
    text = "".join((folder / name).read_text() for name in ("try.js", "call_slip.js"))
    used = set(re.findall(r"this\.say\(\s*\"(\w+)\"", text)) | set(re.findall(r"\bwords\.(\w+)", text))
    assert used - {"replace"} <= WORDS.keys()
    assert len(used) > 20
