"""The form of a listing: from the stored listing to its fields, from its fields to the members of the body, and from the errors of the body to its fields. Pure.

A field has the name of its member; a member of an object has the name of both, such as `rateLimit.calls`. Lists are words with commas or spaces between them, and each
priced operation is a line: method, path, price. The table of operations (`PriceRow`) is those lines with a field for each price: its rows go before the lines that have no row. `formula_form` has the formulas.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tollway.discovery.safe_text import clean_line, clean_prose
from tollway.errors import FieldError, Refusal
from tollway.ids import format_network
from tollway.registry.draft import DESCRIPTION_LENGTH_MAX, NAME_LENGTH_MAX, ListingBody
from tollway.registry.listing import FreeCalls, Listing, Operation
from tollway.registry.listing_fields import BY_PAGE, FIELDS, Kind
from tollway.registry.metering import Metering
from tollway.web.http.json import parse_json_object
from tollway.web.pages.formula_form import (
    FIRST_ROWS,
    LISTING_FORMULA,
    describe_formula,
    find_formula_field,
    format_formula,
    list_calls,
    make_rows,
    read_formulas,
    read_whole,
    write_formula,
)

FormValues = Mapping[str, str]
"""The fields of the form, each with its text. A field of several values has them in its text, with spaces between them."""

_PARTS: Mapping[Kind, tuple[str, ...]] = {
    Kind.SECRET: ("upstreamAuth.in", "upstreamAuth.name", "upstreamAuth.value", "upstreamAuth.again"),
    Kind.METERING: (),
    Kind.RATE_LIMIT: ("rateLimit.calls", "rateLimit.perSeconds"),
    Kind.DOCUMENT: ("openapi", "fetchDocument", "removeDocument"),
}
"""`upstreamAuth.again`: a secret was typed into the form, and the page that came back does not have it."""
FORM_FIELDS = tuple(name for field in BY_PAGE for name in _PARTS.get(field.kind, (field.member,)))
"""In the order of the page, without the fields of formulas."""
NOT_COMPARED = (
    "upstreamAuth.value",
    "upstreamAuth.again",
    "openapi",
    "fetchDocument",
    "removeDocument",
    "status",
)
"""Fields that a comparison of two versions leaves out: what is not in the form of a stored listing, and what other forms change."""

_KINDS = {field.member: field.kind for field in FIELDS}
_CALL = ("method", "path")
_OF_LINES = (Kind.LINES, Kind.OPERATIONS, Kind.DOCUMENT)
_OF_ELEMENTS = (Kind.WORDS, Kind.PHRASES, Kind.NETWORKS)
_SPLIT = re.compile(r"[\s,]+")
_SHOWN_LENGTH_MAX = 64


TABLE_CALL, TABLE_PRICE = "operationCall", "operationPrice"
"""The fields of a row of the table of operations: the method and path, hidden, and the price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRow:
    """An operation in the table of the form. `call`: method and path. `price`: of its own, empty where it has that of the listing. `formula`: that of `price` in words. `id`: of its field."""

    id: str
    call: str
    summary: str
    price: str
    formula: str


def list_price_rows(
    values: FormValues, operations: Iterable[tuple[str, str]], *, formulas: Mapping[str, str]
) -> tuple[tuple[PriceRow, ...], str]:
    """The rows for these operations (call, summary), and the lines of the priced operations that have no row. `formulas`: in words, by call."""
    prices, rest = {}, []
    summaries = {call: summary for call, summary in operations if len(call.split()) == len(_CALL)}
    for line in values["operations"].split("\n"):
        call, _, price = (line.strip() if line.strip() not in summaries else f"{line.strip()} ").rpartition(
            " "
        )
        if call in summaries and call not in prices:
            prices[call] = price
        elif line.strip():
            rest.append(line)
    rows = (
        PriceRow(
            id=f"price-{number}",
            call=call,
            summary=summary,
            price=prices.get(call, ""),
            formula=formulas.get(call, ""),
        )
        for number, (call, summary) in enumerate(summaries.items(), 1)
    )
    return tuple(rows), "\n".join(rest)


def read_values(fields: Mapping[str, Sequence[str]], *, previous: Listing | None = None) -> dict[str, str]:
    """The values of a form that was sent. `previous`: the stored listing, whose formula an added operation has. Absent fields are empty. An operation with a formula is a line also without its price, which then is an error."""
    values = {}
    for name in FORM_FIELDS:
        text = " ".join(fields.get(name, ())).replace("\r\n", "\n")
        values[name] = text.strip("\n") if _KINDS.get(name) in _OF_LINES else text.strip()
    rows = zip(fields.get(TABLE_CALL, ()), fields.get(TABLE_PRICE, ()), strict=False)
    table = [f"{' '.join(call.split())} {' '.join(price.split())}" for call, price in rows if price.strip()]
    values |= read_formulas(fields, stored=_list_formulas(previous))
    priced = {_read_call(line) for line in (*table, *values["operations"].split("\n"))}
    metered = (call for call, name in list_calls(values).items() if write_formula(values, name) is not None)
    table += [call for call in metered if call not in priced]
    values["operations"] = "\n".join([*table, values["operations"]]).strip("\n")
    return values


def make_first_values(*, currency: str) -> dict[str, str]:
    """The values of the form of a new listing: of a choice and of a number the default."""
    values = dict.fromkeys(FORM_FIELDS, "")
    for field in FIELDS:
        if field.kind in (Kind.CHOICE, Kind.NUMBER):
            values[field.member] = str(ListingBody.model_fields[field.attribute].default)
    return {**values, "currency": currency, **make_rows(LISTING_FORMULA, FIRST_ROWS)}


def describe_listing(listing: Listing, *, calls: Mapping[str, str] = {}) -> dict[str, str]:
    """The values of the form of a stored listing. It never has the secret, and not the document. `calls`: the operations whose formula it has (`list_calls`)."""
    auth, limit = listing.upstream_auth, listing.rate_limit
    values = dict.fromkeys(FORM_FIELDS, "")
    for field in FIELDS:
        if field.kind not in _PARTS:
            values[field.member] = _FORMAT.get(field.kind, str)(getattr(listing, field.attribute))
    values |= describe_formula(LISTING_FORMULA, listing.metering)
    formulas = _list_formulas(listing)
    for call, name in calls.items():
        values |= {f"{name}.call": call, **describe_formula(name, formulas.get(call))}
    if auth is not None:
        values |= {"upstreamAuth.in": auth.location, "upstreamAuth.name": auth.name}
    if limit is not None:
        values |= {"rateLimit.calls": str(limit.calls), "rateLimit.perSeconds": str(limit.per_s)}
    return values


def _list_formulas(listing: Listing | None) -> dict[str, Metering]:
    operations = () if listing is None else listing.operations
    return {f"{one.method} {one.path}": one.metering for one in operations if one.metering is not None}


def write_members(
    values: FormValues, *, previous: Listing | None
) -> tuple[dict[str, Any], tuple[FieldError, ...]]:
    """The members of the body, and the errors of the form itself: a document that is no JSON, a secret that must be typed again. `previous` None: of a new listing; else the members for `listing_patch.parse_form`, where
    `null` is the default."""
    members: dict[str, Any] = {
        field.member: _READ.get(field.kind, str)(values[field.member])
        for field in FIELDS
        if field.kind not in _PARTS and not field.is_kept
    }
    members["rateLimit"] = _read_rate_limit(values)
    if previous is not None:
        del members["status"]
    members |= _read_auth(values, previous)
    document, document_errors = _read_document(values, previous)
    members["metering"] = write_formula(values, LISTING_FORMULA)
    calls = list_calls(values)
    for operation in members["operations"]:
        name = calls.get(" ".join(operation.get(part, "") for part in _CALL))
        if name is not None:
            operation["metering"] = write_formula(values, name)
    members |= document
    errors = (*_find_lost_secret(values), *document_errors)
    if previous is None:
        members = {name: value for name, value in members.items() if value is not None}
    return members, errors


def describe_document(values: FormValues, document: Mapping[str, Any] | None, *, host: str) -> FormValues:
    """The values with the name and the description of a document where they are empty. `host`: the name where there is no other."""
    info = {} if document is None else document.get("info")
    about = info if isinstance(info, Mapping) else {}
    return {
        **values,
        "name": values["name"] or clean_line(about.get("title"), NAME_LENGTH_MAX) or host[:NAME_LENGTH_MAX],
        "description": values["description"] or clean_prose(about.get("description"), DESCRIPTION_LENGTH_MAX),
    }


def group_errors(
    errors: Iterable[FieldError], values: FormValues, *, calls: Sequence[str] = ()
) -> dict[str, str]:
    """The sentences of refused members, by the name of their field; by its call for a row of the table of operations (`calls`); under an empty name what
    belongs to none."""
    grouped: dict[str, list[str]] = {}
    for error in errors:
        name, place = _find_field(error.pointer or "", values, calls)
        grouped.setdefault(name, []).append(f"{place}{error.detail}")
    return {name: "; ".join(dict.fromkeys(sentences)) for name, sentences in grouped.items()}


def list_differences(stored: FormValues, given: FormValues) -> list[tuple[str, str, str]]:
    """The fields in which two forms differ: name, stored text, given text. Both have the formulas of the same operations; the name of such a formula is its call."""
    differences = [
        (name, stored[name], given[name])
        for name in FORM_FIELDS
        if name not in NOT_COMPARED and stored[name] != given[name]
    ]
    for call, name in {LISTING_FORMULA: LISTING_FORMULA, **list_calls(given)}.items():
        formulas = format_formula(stored, name), format_formula(given, name)
        if formulas[0] != formulas[1]:
            differences.append((call, *formulas))
    return differences


# ---- The texts of members.


def _split(text: str) -> list[str]:
    return [word for word in _SPLIT.split(text) if word]


def _read_phrases(text: str) -> list[str]:
    return [phrase for part in text.split(",") if (phrase := part.strip())]


def _read_operations(text: str) -> list[dict[str, str]]:
    names = (*_CALL, "pricePerRequest")
    return [
        dict(zip(names, line.split(maxsplit=2), strict=False)) for line in text.split("\n") if line.strip()
    ]


def _read_free_calls(text: str) -> dict[str, Any] | None:
    """`10`, or `10/86400`: 10 in each 86,400 seconds."""
    count, slash, seconds = text.partition("/")
    return (
        {"count": read_whole(count)} | ({"perSeconds": read_whole(seconds)} if slash else {})
        if text
        else None
    )


def _format_free_calls(free_calls: FreeCalls | None) -> str:
    if free_calls is None:
        return ""
    return str(free_calls.count) if free_calls.per_s is None else f"{free_calls.count}/{free_calls.per_s}"


def _format_operations(operations: Iterable[Operation]) -> str:
    return "\n".join(f"{one.method} {one.path} {one.price.text}" for one in operations)


_FORMAT: Mapping[Kind, Callable[[Any], str]] = {
    Kind.URL: lambda url: url or "",
    Kind.WORDS: " ".join,
    Kind.PHRASES: ", ".join,
    Kind.PRICE: lambda price: price.text,
    Kind.NETWORKS: lambda networks: " ".join(format_network(chain_id) for chain_id in networks),
    Kind.OPERATIONS: _format_operations,
    Kind.FREE_CALLS: _format_free_calls,
}
"""The text of a value in its field. Other kinds: `str`."""

_READ: Mapping[Kind, Callable[[str], Any]] = {
    Kind.URL: lambda text: text or None,
    Kind.CHOICE: lambda text: text or None,
    Kind.NUMBER: read_whole,
    Kind.WORDS: _split,
    Kind.PHRASES: _read_phrases,
    Kind.ADDRESS: lambda text: text or None,
    Kind.NETWORKS: lambda text: _SPLIT.split(text) if text else None,
    Kind.OPERATIONS: _read_operations,
    Kind.FREE_CALLS: _read_free_calls,
}
"""The member of a field's text, None for its default. Other kinds: the text."""


def _read_rate_limit(values: FormValues) -> dict[str, Any] | None:
    calls, seconds = values["rateLimit.calls"], values["rateLimit.perSeconds"]
    if not calls and not seconds:
        return None
    return {"calls": read_whole(calls), "perSeconds": read_whole(seconds)}


def _read_auth(values: FormValues, previous: Listing | None) -> dict[str, Any]:
    """`upstreamAuth`; absent where the stored one stays as it is."""
    place, name, secret = (values[f"upstreamAuth.{part}"] for part in ("in", "name", "value"))
    stored = None if previous is None else previous.upstream_auth
    if not place and not name and not secret:
        return {} if stored is None else {"upstreamAuth": None}
    if stored is not None and not secret and (place, name) == (stored.location, stored.name):
        return {}
    given = {"in": place, "name": name, "value": secret}
    return {"upstreamAuth": {part: text for part, text in given.items() if text}}


def _find_lost_secret(values: FormValues) -> tuple[FieldError, ...]:
    """The error of a form whose secret was typed into an earlier page: without it the stored secret would stay, and nothing would say so."""
    is_wanted = bool(values["upstreamAuth.in"] or values["upstreamAuth.name"])
    if not values["upstreamAuth.again"] or values["upstreamAuth.value"] or not is_wanted:
        return ()
    detail = "type the secret again, because no page holds it; to keep a stored one, open this page anew"
    return (FieldError(code="required", detail=detail, pointer="/upstreamAuth/value"),)


def _read_document(
    values: FormValues, previous: Listing | None
) -> tuple[dict[str, Any], tuple[FieldError, ...]]:
    """`openapi` and `openapiUrl`; absent where they stay as they are."""
    url = values["openapiUrl"]
    members: dict[str, Any] = {}
    stored = None if previous is None else previous.openapi_url
    if url != (stored or "") or values["fetchDocument"]:
        members["openapiUrl"] = url or None
    if values["removeDocument"] and previous is not None:
        return {"openapiUrl": None, "openapi": None}, ()
    if not values["openapi"].strip():
        return members, ()
    try:
        document = parse_json_object(values["openapi"].encode("utf-8", "surrogatepass"))
    except Refusal as refusal:
        detail = f"must be a JSON object. {refusal.problem.detail}"
        return members, (FieldError(code="openapi", detail=detail, pointer="/openapi"),)
    return {**members, "openapi": document}, ()


# ---- The places of errors.


def _find_field(pointer: str, values: FormValues, calls: Sequence[str]) -> tuple[str, str]:
    """The field of a pointer (RFC 6901), and what the sentence says before it."""
    head, *rest = pointer.removeprefix("/").split("/")
    if head == "operations" and rest and rest[0].isdecimal():
        part = {"method": "method ", "path": "path ", "pricePerRequest": "price "}.get(
            rest[-1] if len(rest) > 1 else "", ""
        )
        call = _find_call(values["operations"], int(rest[0]))
        if rest[1:2] == ["metering"]:
            name = list_calls(values).get(call)
            if name is not None:
                return find_formula_field(name, rest[2:]), ""
            part = f"formula: {'/'.join(rest[2:])} "
        if call in calls:
            return call, part.removeprefix("price ")
        return head, f"{clean_line(call, _SHOWN_LENGTH_MAX)}: {part}"
    if head == LISTING_FORMULA:
        return find_formula_field(head, rest), ""
    kind = _KINDS.get(head)
    if kind in _OF_ELEMENTS and rest and rest[0].isdecimal():
        words = values[head].split(",") if kind is Kind.PHRASES else _split(values[head])
        index = int(rest[0])
        return head, f"“{clean_line(words[index], _SHOWN_LENGTH_MAX)}” " if index < len(words) else ""
    whole = f"{head}.{rest[0]}" if rest else head
    if whole in FORM_FIELDS:
        return whole, ""
    if head == "upstreamAuth":
        return "upstreamAuth.name", ""
    if head == "rateLimit":
        return "rateLimit.calls", ""
    if head in FORM_FIELDS:
        return head, f"{clean_line('/'.join(rest), _SHOWN_LENGTH_MAX)} " if rest else ""
    return "", f"{clean_line(pointer, _SHOWN_LENGTH_MAX)} " if head else ""


def _find_call(text: str, index: int) -> str:
    """The method and path of the operation of that index."""
    lines = [line for line in text.split("\n") if line.strip()]
    return _read_call(lines[index]) if index < len(lines) else str(index + 1)


def _read_call(line: str) -> str:
    return " ".join(line.split(maxsplit=2)[: len(_CALL)])
