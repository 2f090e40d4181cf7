"""The wire format of x402, versions 2 and 1: parses payments, encodes requirements. Pure.

Only scheme `exact` by EIP-3009. The member `accepted` of a payment names its network and token and decides nothing else. The
shapes are those of the `x402` package, and the tests compare them. Its models are not used here, because they import an event
loop, sockets and randomness, and take twice the time to decode.
Sources: x402 specification v2 and v1, transports/http and schemes/exact.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tollway.errors import Problem, Refusal
from tollway.ids import ChainId, format_network, parse_network
from tollway.ledger.records import Dialect
from tollway.limits import Limits
from tollway.payments.pricing import PaymentRequirement
from tollway.payments.wire import (
    SIGNED_FIELDS,
    AuthorizationFields,
    AuthorizationReason,
    PresentedAuthorization,
    decode_object,
    explain_authorization,
    find_unknown_member,
    parse_transfer,
    take_address,
    take_object,
    take_text,
    unreadable,
)

PAYMENT_HEADER = b"payment-signature"
PAYMENT_HEADER_V1 = b"x-payment"
REQUIRED_HEADER = b"payment-required"
RESPONSE_HEADER = b"payment-response"
RESPONSE_HEADER_V1 = b"x-payment-response"

SCHEME = "exact"
PAYMENT_IDENTIFIER = "payment-identifier"
PAYMENT_IDENTIFIER_EXTENSION: Mapping[str, Any] = MappingProxyType(
    {
        "info": {"required": False},
        "schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "required": {"type": "boolean"},
                "id": {"type": "string", "minLength": 16, "maxLength": 128, "pattern": "^[a-zA-Z0-9_-]+$"},
            },
            "required": ["required"],
        },
    }
)
"""The extension by which a 402 accepts an id of the client; the client sends the id as `info.id`."""

# The EVM names of x402 1.2: its clients refuse a whole 402 for one unknown name. Where implementations disagree on a
# number, the number of that package is used.
_V1_CHAINS = {
    "base": 8453,
    "base-sepolia": 84532,
    "polygon": 137,
    "polygon-amoy": 80002,
    "avalanche": 43114,
    "avalanche-fuji": 43113,
    "abstract": 2741,
    "abstract-testnet": 11124,
    "sei": 1329,
    "sei-testnet": 1328,
    "iotex": 4689,
    "peaq": 3338,
    "story": 1514,
    "educhain": 41923,
    "skale-base-sepolia": 324705682,
}
_V1_NAMES = {ChainId(number): name for name, number in _V1_CHAINS.items()}
_V1_AMOUNT_DIGITS_MAX = 18

# The members that a payment may have. `extra`, `resource` and `extensions` are open, for later clients.
_ENVELOPE = frozenset({"x402Version", "payload", "accepted", "resource", "extensions"})
_ENVELOPE_V1 = frozenset({"x402Version", "scheme", "network", "payload"})
_PAYLOAD = frozenset({"signature", "authorization"})
_ACCEPTED = frozenset({"scheme", "network", "amount", "asset", "payTo", "maxTimeoutSeconds", "extra"})

# Members of version 1 and of older drafts of version 2, which may stand beside the members that they repeat.
_REPEATED = frozenset({"scheme", "network"})
_REPEATED_RESOURCE = (("resource", "url"), ("description", "description"), ("mimeType", "mimeType"))
_REPEATED_ACCEPTED = frozenset({"maxAmountRequired", *(name for name, _ in _REPEATED_RESOURCE)})

_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{16,128}")
_PRINTABLE = re.compile(r"[\x20-\x7e]+")
_NOT_PRINTABLE = re.compile(r"[^\x20-\x7e]+")
_LABEL_LENGTH_MAX, _TAGS_MAX = 32, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """The resource of a payment. `url`: the requested public URL with its query. The other fields are the provider's text."""

    url: str
    description: str = ""
    mime_type: str = "application/json"
    service_name: str = ""
    tags: tuple[str, ...] = ()


# ---- Parsing.


def parse_payment(value: bytes, *, limits: Limits) -> PresentedAuthorization:
    """Parses the value of `PAYMENT-SIGNATURE` (version 2). Raises `Refusal`."""
    content = decode_object(value, bytes_max=limits.payment_header_bytes_max)
    check_version(content, 2)
    accepted = take_object(content, "accepted")
    _check_scheme(accepted)
    chain_id = parse_accepted_network(accepted)
    payload = take_object(content, "payload")
    token = take_address(accepted, "asset")
    transfer = _parse_payload(payload)
    return PresentedAuthorization(
        **transfer,
        dialect=Dialect.X402_V2,
        chain_id=chain_id,
        token=token,
        identifier=find_identifier(content.get("extensions")),
        fault=find_envelope_fault(content, accepted, amount=str(transfer["base_units"]))
        or find_unknown_member(*_list_signed_places(payload)),
    )


def parse_accepted_network(accepted: Mapping[str, Any]) -> ChainId:
    """The chain that the entry `accepted` of a payment names. Raises `Refusal`."""
    try:
        return parse_network(take_text(accepted, "network"))
    except ValueError as exc:
        raise Refusal(explain_authorization(AuthorizationReason.NETWORK)) from exc


def find_envelope_fault(
    content: Mapping[str, Any], accepted: Mapping[str, Any], *, scheme: str = SCHEME, amount: str = ""
) -> Problem | None:
    """The problem of a member outside `payload` that version 2 does not define, or that contradicts one that it defines; None without
    one. `accepted` has a scheme and a network. `amount`: the amount where `accepted` has none."""
    return _find_contradiction(
        content, accepted, scheme, accepted.get("amount", amount)
    ) or find_unknown_member(
        ("", content, _ENVELOPE | _REPEATED),
        ("accepted", accepted, _ACCEPTED | _REPEATED_ACCEPTED),
    )


def _find_contradiction(
    content: Mapping[str, Any], accepted: Mapping[str, Any], scheme: str, amount: object
) -> Problem | None:
    """The problem of a member of version 1 or of an older draft that does not repeat its member of version 2. Clients that pay both versions send them;
    an equal value has one reading, a different one has two."""
    resource = content.get("resource")
    offered: Mapping[str, Any] = resource if isinstance(resource, dict) else {}
    network = accepted["network"]
    repeated = [
        ("scheme", content, (scheme,)),
        ("network", content, (network, network_name_v1(parse_network(network)))),
        ("maxAmountRequired", accepted, (amount,)),
        *((name, accepted, (offered[key],)) for name, key in _REPEATED_RESOURCE if key in offered),
    ]
    for name, fields, allowed in repeated:
        if name in fields and fields[name] not in allowed:
            path = name if fields is content else f"accepted.{name}"
            detail = f"`{path}` contradicts another member of this payment; remove it. Nothing was settled."
            return explain_authorization(AuthorizationReason.UNREADABLE, detail)
    return None


def parse_payment_v1(value: bytes, *, limits: Limits) -> PresentedAuthorization:
    """Parses the value of `X-PAYMENT` (version 1). Raises `Refusal`."""
    content = decode_object(value, bytes_max=limits.payment_header_bytes_max)
    check_version(content, 1)
    _check_scheme(content)
    chain_id = _V1_CHAINS.get(take_text(content, "network"))
    if chain_id is None:
        raise Refusal(explain_authorization(AuthorizationReason.NETWORK))
    payload = take_object(content, "payload")
    return PresentedAuthorization(
        **_parse_payload(payload),
        dialect=Dialect.X402_V1,
        chain_id=ChainId(chain_id),
        token=None,
        fault=find_unknown_member(("", content, _ENVELOPE_V1), *_list_signed_places(payload)),
    )


def check_version(content: Mapping[str, Any], version: int) -> None:
    """Raises `Refusal` where the content is of another version of x402."""
    sent = content.get("x402Version")
    if type(sent) is not int:
        raise unreadable("`x402Version` must be an integer.")
    if sent != version:
        raise Refusal(explain_authorization(AuthorizationReason.WRONG_VERSION))


def _check_scheme(fields: Mapping[str, Any]) -> None:
    if take_text(fields, "scheme") != SCHEME:
        raise Refusal(explain_authorization(AuthorizationReason.SCHEME))


def _parse_payload(payload: Mapping[str, Any]) -> AuthorizationFields:
    if "authorization" not in payload and ("permit2Authorization" in payload or "delegator" in payload):
        raise Refusal(explain_authorization(AuthorizationReason.TRANSFER_METHOD))
    return parse_transfer(take_object(payload, "authorization"), payload.get("signature"))


def _list_signed_places(
    payload: Mapping[str, Any],
) -> tuple[tuple[str, Mapping[str, Any], frozenset[str]], ...]:
    authorization = take_object(payload, "authorization")
    return ("payload", payload, _PAYLOAD), ("payload.authorization", authorization, SIGNED_FIELDS)


def find_identifier(extensions: object) -> str | None:
    """The client's id for this payment. A malformed id is refused, not ignored, because the client relies on it."""
    extension = extensions.get(PAYMENT_IDENTIFIER) if isinstance(extensions, dict) else None
    info = extension.get("info") if isinstance(extension, dict) else None
    identifier = info.get("id") if isinstance(info, dict) else None
    if identifier is None:
        return None
    if not isinstance(identifier, str) or not _IDENTIFIER.fullmatch(identifier):
        raise Refusal(explain_authorization(AuthorizationReason.BAD_IDENTIFIER))
    return identifier


# ---- Encoding. No nulls: clients refuse them.


def resource_json(resource: Resource) -> dict[str, Any]:
    """`ResourceInfo`, without names and tags that facilitators drop."""
    content: dict[str, Any] = {"url": resource.url}
    if resource.description:
        content["description"] = resource.description
    content["mimeType"] = resource.mime_type
    service_name = _NOT_PRINTABLE.sub("", resource.service_name).strip()[:_LABEL_LENGTH_MAX].strip()
    if service_name:
        content["serviceName"] = service_name
    tags = [tag for tag in resource.tags if len(tag) <= _LABEL_LENGTH_MAX and _PRINTABLE.fullmatch(tag)]
    if tags:
        content["tags"] = tags[:_TAGS_MAX]
    return content


def requirement_json(requirement: PaymentRequirement) -> dict[str, Any]:
    """`PaymentRequirements` of version 2."""
    extra: dict[str, Any] = dict(domain_json(requirement))
    offer = requirement.channel
    if offer is not None:
        # `withdrawDelay` is a JSON number: clients replace a string by their own default, and compute another channel.
        extra |= {
            "minDeposit": str(offer.deposit_min),
            "receiverAuthorizer": str(offer.authorizer),
            "withdrawDelay": offer.withdraw_delay,
        }
    return {
        "scheme": requirement.scheme,
        "network": requirement.network,
        "amount": str(requirement.base_units),
        "asset": str(requirement.asset.token),
        "payTo": str(requirement.pay_to),
        "maxTimeoutSeconds": requirement.max_timeout_s,
        "extra": extra,
    }


def requirement_json_v1(requirement: PaymentRequirement, resource: Resource) -> dict[str, Any] | None:
    """`PaymentRequirements` of version 1; None where its clients cannot parse the network or the amount, and for a channel."""
    if requirement.channel is not None:
        return None
    name = _V1_NAMES.get(requirement.asset.chain_id)
    amount = str(requirement.base_units)
    if name is None or len(amount) > _V1_AMOUNT_DIGITS_MAX:
        return None
    return {
        "scheme": SCHEME,
        "network": name,
        "maxAmountRequired": amount,
        "resource": resource.url,
        "description": resource.description,
        "mimeType": resource.mime_type,
        "payTo": str(requirement.pay_to),
        "maxTimeoutSeconds": requirement.max_timeout_s,
        "asset": str(requirement.asset.token),
        "extra": domain_json(requirement),
    }


def domain_json(requirement: PaymentRequirement) -> dict[str, str]:
    domain = requirement.asset.domain
    assert domain is not None  # every requirement has a token with a domain
    return {"name": domain.name, "version": domain.version}


def network_name_v1(chain_id: ChainId) -> str:
    """The name of a chain in version 1; a chain without one has its name of version 2."""
    return _V1_NAMES.get(chain_id, format_network(chain_id))
