"""The table of the fields of a listing, and the places that write a field by hand: each of them has every field."""

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

import tollway
from tests.kit.listings import sample_listing
from tollway.client.records import ListingDetails
from tollway.ids import Address
from tollway.registry.draft import ListingBody
from tollway.registry.listing import ListingMembers, write_members
from tollway.registry.listing_fields import BY_COLUMN, BY_DIFFERENCE, BY_OPTION, BY_PAGE, FIELDS, ListingField

PACKAGE = Path(tollway.__file__).parent
MEMBERS = [field.member for field in FIELDS]
ATTRIBUTES = {field.attribute for field in FIELDS}


def test_the_names_are_unique() -> None:
    options = [option for field in FIELDS for option in field.options]
    assert len(set(MEMBERS)) == len(ATTRIBUTES) == len(FIELDS)
    assert len(set(options)) == len(options)


def test_the_record_and_the_body_have_every_field_by_its_attribute() -> None:
    assert {one.name for one in fields(ListingMembers)} | {"pay_to"} == ATTRIBUTES
    assert set(ListingBody.model_fields) == ATTRIBUTES
    assert set(ListingBody.member_names()) == set(MEMBERS)


def test_the_contract_has_every_field_in_the_order_of_the_json() -> None:
    contract = yaml.safe_load((PACKAGE / "web/http/openapi.yaml").read_text())
    draft, listing = (contract["components"]["schemas"][name] for name in ("ListingDraft", "Listing"))
    assert list(write_members(sample_listing(provider=Address(20)))) == MEMBERS
    assert list(draft["properties"]) == MEMBERS
    assert set(MEMBERS) <= listing["properties"].keys() & set(listing["required"])


def test_the_record_of_the_client_has_every_field_but_the_document() -> None:
    names = {"price": "price_per_request", "timeout_s": "timeout_seconds"}
    read = {one.name for one in fields(ListingDetails)}
    assert {names.get(attribute, attribute) for attribute in ATTRIBUTES} - read == {"openapi"}


def test_the_form_has_a_label_and_a_control_for_every_field() -> None:
    template = (PACKAGE / "web/pages/templates/my_api_form.j2").read_text()
    parts = {"upstreamAuth": "upstreamAuth.in", "rateLimit": "rateLimit.calls"}
    names = [parts.get(member, member) for member in MEMBERS]
    assert [
        name for name in names if f'names["{name}"]' not in template or f'"{name}": _(' not in template
    ] == []


ORDERS = {"columns": BY_COLUMN, "options": BY_OPTION, "differences": BY_DIFFERENCE, "page": BY_PAGE}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_an_order_has_every_field_once(order: tuple[ListingField, ...]) -> None:
    assert sorted(field.member for field in order) == sorted(MEMBERS)


def test_a_field_takes_its_default_unless_an_update_keeps_it() -> None:
    kept = [field.member for field in FIELDS if field.is_kept]
    assert kept == ["openapi", "openapiUrl", "upstreamAuth"]
