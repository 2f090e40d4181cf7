"""The form of one operation on its page, and what its module needs to pay for the call. Pure.

The module compares every 402 with this record: it signs for no other payee, token, chain or amount than the page has shown.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tollway.chain.networks import NetworkProfile
from tollway.discovery.forms import MULTIPART, FormField, bare_type, is_json
from tollway.discovery.listing_view import ListingView
from tollway.discovery.operations import ApiOperation, Argument
from tollway.discovery.requests import example_arguments
from tollway.discovery.safe_text import clean_line
from tollway.ids import ChainId
from tollway.limits import DEFAULT_LIMITS
from tollway.money import format_decimal
from tollway.registry.metering import describe_metering, offer

HINT_LENGTH_MAX = 160
FIELDS_MAX = 100
"""The most fields of a form that a page shows."""
_REFERENCES_MAX = 8
CHOICES_MAX = 100
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallField:
    """An argument, or a field of a body that is a form, as a form field. `place`: `form` for the latter, `body` for a body that is a file. `kind`: text, number, choice,
    json or file. `is_exploded`: a list becomes several parameters; `is_deep`: the members of an object do. `accept`: media types of a file."""

    id: str
    label: str
    place: str
    parameter: str
    kind: str
    value: str
    hint: str
    choices: tuple[str, ...]
    is_required: bool
    is_whole: bool
    is_exploded: bool
    least: str
    most: str
    is_list: bool = False
    is_deep: bool = False
    accept: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyMember:
    """A member of a body that is written as JSON. `kind`: the name of its type in the schema; empty for any."""

    name: str
    kind: str
    meaning: str
    is_required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """`body_members`: of a body in JSON, at most `FIELDS_MAX`. `target`: the path with its query, where the form has one field for both (`is_any`). `settings`: JSON for the module. `body_type`: None without a body;
    `has_body_text`: it is written as text, not as fields or a file. `ways`: what can be chosen, the first one first."""

    method: str
    path: str
    methods: tuple[str, ...]
    fields: tuple[CallField, ...]
    body_type: str | None
    has_body_text: bool
    body: str
    body_members: tuple[BodyMember, ...]
    is_body_required: bool
    is_any: bool
    target: str
    is_free: bool
    price: str
    formula: str
    currency: str
    ways: tuple[tuple[str, str, str], ...]
    settings: str


def make_call_form(
    view: ListingView,
    operation: ApiOperation,
    profiles: Mapping[ChainId, NetworkProfile],
    *,
    values: Mapping[str, Any] | None = None,
    target: str = "",
) -> CallForm:
    """The form of an operation. Its values are those of the operation's example, unless `values` has others."""
    values = (example_arguments(operation) or {}) if values is None else values
    body = next((one for one in operation.arguments if one.place == "body"), None)
    ways = _list_ways(view, operation, profiles)
    settings = {
        "apiId": view.listing.id,
        "gateway": view.public_url,
        "method": operation.method,
        "path": operation.path,
        "price": operation.price.text,
        "currency": view.listing.currency,
        "isMetered": operation.metering is not None,
        "bodyBytesMax": DEFAULT_LIMITS.bound_body_bytes_max,
        "ways": ways,
    }
    body_type = operation.body_type or ("application/json" if operation.is_any else None)
    body_fields = () if body is None else _make_body_fields(operation, body, values.get(body.name))
    return CallForm(
        method=operation.method,
        path=operation.path or "/",
        methods=_list_methods(operation) if operation.is_any else (),
        fields=(
            *(
                _make_field(number, operation, one, values)
                for number, one in enumerate(operation.arguments)
                if one.place != "body"
            ),
            *body_fields,
        ),
        body_type=body_type,
        has_body_text=body_type is not None and not body_fields and bare_type(body_type) != MULTIPART,
        body=_text_of(values[body.name]) if body is not None and body.name in values else "",
        body_members=() if body is None or body_fields else _list_members(operation, body),
        is_body_required=body is not None and body.is_required,
        is_any=operation.is_any,
        target=target,
        is_free=operation.price.is_free,
        price=operation.price.text,
        formula="" if operation.metering is None else describe_metering(operation.metering),
        currency=view.listing.currency,
        ways=tuple((way["id"], way["rail"], way["name"]) for way in ways),
        settings=json.dumps(settings),
    )


def _list_methods(operation: ApiOperation) -> tuple[str, ...]:
    """The methods of the form of a whole listing, the operation's first."""
    return (operation.method, *(one for one in METHODS if one != operation.method))


def _make_field(
    number: int, operation: ApiOperation, argument: Argument, values: Mapping[str, Any]
) -> CallField:
    schema = _resolve(
        _mapping(operation.input_schema.get("properties")).get(argument.name), operation.input_schema
    )
    kind, choices = _kind_of(schema)
    value = _text_of(values[argument.name]) if argument.name in values else ""
    return CallField(
        id=f"argument-{number}",
        label=clean_line(argument.parameter, 80),
        place=argument.place,
        parameter=argument.parameter,
        kind=kind,
        value=value,
        hint=clean_line(schema.get("description"), HINT_LENGTH_MAX),
        choices=choices,
        is_required=argument.is_required,
        is_whole=schema.get("type") == "integer",
        is_exploded=argument.is_exploded,
        least=_number_of(schema.get("minimum")),
        most=_number_of(schema.get("maximum")),
    )


def _make_body_fields(operation: ApiOperation, body: Argument, example: Any) -> tuple[CallField, ...]:
    """The fields of a form, required ones first where there are more than `FIELDS_MAX`; the one field of a body that is a file."""
    whole = operation.input_schema
    schema = _resolve(_mapping(whole.get("properties")).get(body.name), whole)
    if operation.is_body_file:
        field = FormField(name="body", is_file=True)
        return (_make_form_field(0, field, schema, None, place="body", is_required=body.is_required),)
    needed = schema.get("required", ())
    fields = sorted(operation.form_fields, key=lambda field: field.name not in needed)[:FIELDS_MAX]
    shown = [field for field in operation.form_fields if field in fields]
    described, given = _mapping(schema.get("properties")), _mapping(example)
    return tuple(
        _make_form_field(
            number,
            field,
            _resolve(described.get(field.name), whole),
            None if field.is_file else given.get(field.name),
            place="form",
            is_required=body.is_required and field.name in needed,
        )
        for number, field in enumerate(shown)
    )


def _list_members(operation: ApiOperation, body: Argument) -> tuple[BodyMember, ...]:
    whole = operation.input_schema
    schema = _resolve(_mapping(whole.get("properties")).get(body.name), whole)
    needed = schema.get("required", ())
    members = list(_mapping(schema.get("properties")).items())[:FIELDS_MAX]
    return tuple(_make_member(name, _resolve(own, whole), name in needed) for name, own in members)


def _make_member(name: str, schema: Mapping[str, Any], is_required: bool) -> BodyMember:
    kind = schema.get("type")
    return BodyMember(
        name=clean_line(name, 80),
        kind=clean_line(kind, 32),
        meaning=clean_line(schema.get("description"), HINT_LENGTH_MAX),
        is_required=is_required,
    )


def _make_form_field(
    number: int, field: FormField, schema: Mapping[str, Any], value: Any, *, place: str, is_required: bool
) -> CallField:
    kind, choices = ("file", ()) if field.is_file else _kind_of(schema)
    if kind == "json" and any(map(is_json, field.media_types)):
        kind = "text"  # one value, as it is typed
    return CallField(
        id=f"field-{number}",
        label=clean_line(field.name, 80),
        place=place,
        parameter=field.name,
        kind=kind,
        value="" if value is None else _text_of(value),
        hint="" if field.is_file else clean_line(schema.get("description"), HINT_LENGTH_MAX),
        choices=choices,
        is_required=is_required,
        is_whole=schema.get("type") == "integer",
        is_exploded=field.is_exploded,
        least=_number_of(schema.get("minimum")),
        most=_number_of(schema.get("maximum")),
        is_list=field.is_list,
        is_deep=field.style == "deepObject",
        accept=",".join(field.media_types) if field.is_file else "",
    )


def _resolve(raw: object, whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema without its reference to a definition, and without the alternative null of an optional value."""
    schema = _mapping(raw)
    for _ in range(_REFERENCES_MAX):
        options = [one for one in schema.get("anyOf", ()) if _mapping(one).get("type") != "null"]
        if isinstance(reference := schema.get("$ref"), str):
            schema = _mapping(_mapping(whole.get("$defs")).get(reference.removeprefix("#/$defs/")))
        elif len(options) == 1 and "type" not in schema:
            words = {"description": schema["description"]} if "description" in schema else {}
            schema = {**_mapping(options[0]), **words}
        else:
            break
    return schema


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _kind_of(schema: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    allowed = schema.get("enum")
    if isinstance(allowed, list) and 0 < len(allowed) <= CHOICES_MAX:
        return "choice", tuple(_text_of(one) for one in allowed)
    match schema.get("type"):
        case "boolean":
            return "choice", ("true", "false")
        case "integer" | "number":
            return "number", ()
        case "array" | "object":
            return "json", ()
        case _:
            return "text", ()


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _number_of(value: Any) -> str:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def _list_ways(
    view: ListingView, operation: ApiOperation, profiles: Mapping[ChainId, NetworkProfile]
) -> list[dict[str, Any]]:
    """The ways to pay this operation, signatures before transactions; each with what a wallet needs to know of its network."""
    options = view.options.get(offer(operation), ()) if not operation.price.is_free else ()
    ways = [
        _describe_way(option, profiles.get(ChainId(option["chainId"])))
        for option in options
        if option["rail"] != "channel"  # the page keeps no channel
    ]
    return sorted(ways, key=lambda way: way["rail"] != "x402")


def _describe_way(option: Mapping[str, Any], profile: NetworkProfile | None) -> dict[str, Any]:
    name = profile.name if profile else option["network"]
    return {
        "id": f"{option['rail']}-{option['chainId']}-{option.get('token', 'native')}",
        "rail": option["rail"],
        "name": name,
        "chainId": option["chainId"],
        "token": option.get("token"),
        "symbol": option["symbol"],
        "decimals": option["decimals"],
        "amount": option["amount"],
        "price": format_decimal(int(option["amount"]), decimals=option["decimals"]),
        "payTo": option["payTo"],
        "explorer": profile.link_transaction("") if profile else None,
        "network": describe_wallet_network(option["chainId"], profile),
    }


def describe_wallet_network(chain_id: int, profile: NetworkProfile | None) -> dict[str, Any] | None:
    """The parameter of `wallet_addEthereumChain` (EIP-3085); None where the settings have no RPC URL for wallets."""
    if profile is None or profile.wallet_rpc_url is None or profile.native_symbol is None:
        return None
    return {
        "chainId": hex(chain_id),
        "chainName": profile.name,
        "nativeCurrency": {
            "name": profile.native_symbol,
            "symbol": profile.native_symbol,
            "decimals": profile.native_decimals,
        },
        "rpcUrls": [profile.wallet_rpc_url],
        "blockExplorerUrls": [profile.explorer_url] if profile.explorer_url else [],
    }


WORDS: Mapping[str, str] = {
    "pay": "Pay {0} and call",
    "connectAndPay": "Connect a wallet, pay {0} and call",
    "fromProgram": "No wallet here: call from a program",
    "call": "Call",
    "again": "Ask again",
    "price": "Price",
    "upTo": "up to {0}",
    "cost": "Cost",
    "back": "Came back",
    "total": "Total",
    "free": "free",
    "to": "To",
    "from": "From",
    "network": "Network",
    "credit": "Credit",
    "left": "Left",
    "sending": "The payment is sent with the call.",
    "sent": "Paid in",
    "confirmations": "Confirmations",
    "confirmed": "{0} of {1}",
    "answer": "Answer",
    "callId": "Call",
    "transaction": "Transaction",
    "declined": "You declined. Nothing has moved.",
    "noWallet": "No wallet was found in this browser. Install one, or open this page in the browser of your wallet, or call from a program.",
    "choose": "Choose a wallet:",
    "silent": "The wallet does not respond. Look at your wallet: it may wait for you in a window of its own.",
    "wrongChain": "The wallet stays on another network. Choose {0} (chain id {1}) in your wallet, then try again.",
    "unknownChain": "The wallet does not know {0} (chain id {1}). Add the network in your wallet, then try again.",
    "otherDomain": "The gateway names another site than this one. Nothing was signed. Open the gateway under its own address.",
    "tooLittle": "The wallet has {0} and the call costs {1} on {2}. Send some to {3}.",
    "dearer": "The price is now {0}; this page showed {1}. Press the button again to pay it.",
    "differs": "The gateway asks for another payment than this page shows. Nothing was signed. Reload the page.",
    "noWay": "No way to pay that this page shows is open now. Nothing was signed.",
    "accountChanged": "The wallet changed its account. Nothing was signed. Try again.",
    "walletFailed": "The wallet failed: {0}",
    "waiting": "Asking again in {0} s. Nothing new is signed.",
    "pending": "A payment of this page has no result yet. Ask again: the same payment is sent, nothing new is signed.",
    "sendingUnknown": "The page was closed while your wallet sent a payment. Look at your wallet: if it shows the transfer, enter its transaction hash below.",
    "signInForCredit": "Sign a message in your wallet, so that the gateway says what earlier transfers of your wallet have left. It moves no money.",
    "noCredit": "Among the newest 100 payments of this wallet, no transfer has enough left for a call of this payee. Pay with a new transfer.",
    "creditFound": "The next call is paid from it, without another transfer.",
    "signInToAsk": "Your wallet does not show the transfer as mined. Sign a message in it, so that the gateway says what became of it. It moves no money.",
    "inPool": "The transfer waits on its network. Ask again later, or let your wallet speed it up.",
    "unseen": "The gateway's nodes do not know this transfer. It may still be on its way: ask again later. If your wallet replaced it, enter the transaction hash that your wallet shows now. Five minutes after it was sent, this page lets you give it up.",
    "mayGiveUp": "Check the box only if your wallet shows no transfer, not even one that waits: the call is then paid anew.",
    "enteredFailed": "The transaction that you entered failed. The first transfer is kept, because it may still move: ask again, or enter another transaction hash.",
    "firstKept": "The transaction that you entered did not pay this call. The first transfer is kept, because it may still move: ask again.",
    "reverted": "The transaction failed. Only its network fee was paid.",
    "released": "You were not charged.",
    "charged": "You were charged {0}.",
    "held": "The price is held until the outcome of the call is known. Ask again later.",
    "measuring": "{0} is held until the answer ends. Then the call costs what it has used, and the rest comes back: the ticket of the call says it.",
    "unreachable": "The gateway does not respond.",
    "bodyTooLarge": "This page sends at most {0} KiB in one request. Nothing was sent. Choose smaller files, or use one of the programs below.",
    "fileUnreadable": "The browser cannot read a chosen file. Nothing was sent. Choose the file again.",
    "notGateway": "This answer is not from the API or the gateway: something between them and you replaced it. Nothing was signed. Try again.",
    "notKnown": "This answer does not say what became of the payment. The same payment is sent again.",
    "redirect": "The answer is a redirect, which this page does not follow. Nothing was signed.",
    "redirectPaid": "The answer is a redirect, which this page does not follow, and it hides whether you were charged. Your calls say it. For another call, check the box above the button.",
    "download": "Download the answer ({0} bytes)",
    "picture": "The picture of the answer",
    "cut": "Only the beginning is shown.",
    "problem": "What this means",
    "CHARGED": "CHARGED",
    "RELEASED": "RELEASED",
    "HELD": "HELD",
    "FAILED": "FAILED",
    "FREE": "FREE",
}
"""The messages of the module in English, by key; catalogs translate them. `{0}` and `{1}` are filled in by the module."""
