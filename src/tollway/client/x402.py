"""x402 for the client: parses the requirements of a 402 and the receipt, and encodes the payment header. Pure.

It supports version 2, scheme `exact`, EIP-3009, paid after the service; other offers are left out (`client/channel_offer.py` has
those of channels). The gateway writes all of it. The client signs and echoes the header; where the gateway's own `payment.options` name the
same token with other numbers, the offer is dropped. Gateways of other products are not supported: their 402s differ.
"""

import base64
import json
import re
from binascii import Error as NotBase64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic_core import from_json

from tollway.client.quote import OPTIONS_MAX, read_amount
from tollway.ids import Address, ChainId, TxHash, parse_network
from tollway.money import TokenDomain

HEADER_CHARACTERS_MAX = 16 * 1024
TIMEOUT_MAX_S = 900
"""The maximum validity of an authorisation. A gateway needs its listing's timeout, at most 300 s, and one minute more."""

DOMAIN_CHARACTERS_MAX = 128
_DIGITS = re.compile(r"[0-9]{1,78}")
_PLAIN_FLOW = (None, "authorization")
_PLAIN_TRANSFER = (None, "eip3009")

JsonMembers = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class X402Offer:
    """An offer to pay one call by an authorisation. `amount` in base units; `symbol` and `decimals` are None where only
    the header names the token. The last three fields are JSON texts that the payment echoes."""

    chain_id: ChainId
    token: Address
    symbol: str | None
    decimals: int | None
    amount: int
    pay_to: Address
    timeout_s: int
    domain: TokenDomain
    accepted: str = field(repr=False)
    resource: str | None = field(default=None, repr=False)
    extensions: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementReceipt:
    """The content of a `PAYMENT-RESPONSE`. `transaction` None: missing, or no valid hash."""

    is_success: bool
    transaction: TxHash | None
    network: str | None
    payer: str | None
    amount: str | None
    reason: str | None


# ---- Parsing the offers.


def read_x402_offers(headers: Mapping[str, str], problem: JsonMembers) -> tuple[X402Offer, ...]:
    """The offers in the gateway's order: from `PAYMENT-REQUIRED`, or where that is missing from `payment.options`."""
    if "payment-required" in headers:
        return read_required(headers, problem, scheme="exact", rail="x402")
    offers = [
        _read_requirement("exact", _to_requirement(option), option)
        for option in _list_options(problem, "x402")
    ]
    return tuple(offer for offer in offers if offer is not None)


def read_required(
    headers: Mapping[str, str], problem: JsonMembers, *, scheme: str, rail: str
) -> tuple[X402Offer, ...]:
    """The offers of one scheme in `PAYMENT-REQUIRED`. `rail`: its name in `payment.options`."""
    required = decode_header(headers.get("payment-required", ""))
    if required is None or required.get("x402Version") != 2:
        return ()
    options = tuple(_list_options(problem, rail))
    resource, extensions = _text_of(required.get("resource")), _text_of(required.get("extensions"))
    return tuple(
        offer
        for requirement in _select_objects(required.get("accepts"))
        if (offer := _read_accepted(scheme, requirement, options, resource, extensions)) is not None
    )


def _list_options(problem: JsonMembers, rail: str) -> Iterable[JsonMembers]:
    payment = problem.get("payment")
    options = payment.get("options") if isinstance(payment, Mapping) else None
    return (option for option in _select_objects(options) if option.get("rail") == rail)


def _read_accepted(
    scheme: str,
    requirement: JsonMembers,
    options: Sequence[JsonMembers],
    resource: str | None,
    extensions: str | None,
) -> X402Offer | None:
    """A requirement of the header; None where the body names the same token with another price."""
    about = [option for option in options if _token_of(option, "token") == _token_of(requirement, "asset")]
    same = [option for option in about if _price_of(option) == _price_of(requirement)]
    if about and not same:
        return None
    return _read_requirement(scheme, requirement, same[0] if same else None, resource, extensions)


def _token_of(raw: JsonMembers, name: str) -> tuple[str, str]:
    return str(raw.get("network")), str(raw.get(name)).lower()


def _price_of(raw: JsonMembers) -> tuple[str, str]:
    return str(raw.get("amount")), str(raw.get("payTo")).lower()


def _to_requirement(option: JsonMembers) -> JsonMembers:
    """An option of the body as a requirement."""
    raw = {**option, "scheme": "exact", "asset": option.get("token")}
    names = ("scheme", "network", "amount", "asset", "payTo", "maxTimeoutSeconds", "extra")
    return {name: raw[name] for name in names if name in raw}


def _read_requirement(
    scheme: str,
    raw: JsonMembers,
    option: JsonMembers | None,
    resource: str | None = None,
    extensions: str | None = None,
) -> X402Offer | None:
    """The offer of a requirement; None for another scheme and for invalid members."""
    extra, timeout_s = raw.get("extra"), raw.get("maxTimeoutSeconds")
    if raw.get("scheme") != scheme or not isinstance(extra, Mapping) or type(timeout_s) is not int:
        return None
    name, version = extra.get("name"), extra.get("version")
    if not isinstance(name, str) or not isinstance(version, str) or not 1 <= timeout_s <= TIMEOUT_MAX_S:
        return None
    if max(len(name), len(version)) > DOMAIN_CHARACTERS_MAX:
        return None
    is_plain = extra.get("paymentFlow") in _PLAIN_FLOW and extra.get("assetTransferMethod") in _PLAIN_TRANSFER
    symbol, decimals = (option or {}).get("symbol"), (option or {}).get("decimals")
    if not is_plain or (option is not None and not (isinstance(symbol, str) and type(decimals) is int)):
        return None
    try:
        return X402Offer(
            chain_id=parse_network(str(raw["network"])),
            token=Address.parse(str(raw["asset"])),
            symbol=symbol if isinstance(symbol, str) else None,
            decimals=decimals if isinstance(decimals, int) else None,
            amount=read_amount(raw.get("amount")),
            pay_to=Address.parse(str(raw["payTo"])),
            timeout_s=timeout_s,
            domain=TokenDomain(name=name, version=version),
            accepted=_encode_json(raw),
            resource=resource,
            extensions=extensions,
        )
    except (KeyError, ValueError):
        return None


# ---- The payment and its receipt.


def encode_payment(
    offer: X402Offer,
    *,
    payer: Address,
    nonce: bytes,
    valid_after: int,
    valid_before: int,
    signature: bytes,
) -> str:
    """The value of `PAYMENT-SIGNATURE`. It echoes the gateway's resource and extensions, as x402 requires."""
    authorization = {
        "from": str(payer),
        "to": str(offer.pay_to),
        "value": str(offer.amount),
        "validAfter": str(valid_after),
        "validBefore": str(valid_before),
        "nonce": "0x" + nonce.hex(),
    }
    return encode_payload(offer, {"signature": "0x" + signature.hex(), "authorization": authorization})


def encode_payload(offer: X402Offer, payload: JsonMembers) -> str:
    """The value of `PAYMENT-SIGNATURE` with this payload, of any scheme."""
    payment: dict[str, object] = {
        "x402Version": 2,
        "payload": payload,
        "accepted": from_json(offer.accepted),
    }
    if offer.resource is not None:
        payment["resource"] = from_json(offer.resource)
    if offer.extensions is not None:
        payment["extensions"] = from_json(offer.extensions)
    return base64.b64encode(_encode_json(payment).encode()).decode()


def read_receipt(headers: Mapping[str, str]) -> SettlementReceipt | None:
    """Parses `PAYMENT-RESPONSE`; None where it is missing or invalid. `headers` in lower case."""
    raw = decode_header(headers.get("payment-response", ""))
    if raw is None or not isinstance(raw.get("success"), bool):
        return None
    try:
        transaction = TxHash.parse(str(raw.get("transaction")))
    except ValueError:
        transaction = None
    amount = raw.get("amount")
    return SettlementReceipt(
        is_success=raw["success"] is True,
        transaction=transaction,
        network=_bound_text(raw.get("network")),
        payer=_bound_text(raw.get("payer")),
        amount=amount if isinstance(amount, str) and _DIGITS.fullmatch(amount) else None,
        reason=_bound_text(raw.get("errorReason")),
    )


def _bound_text(raw: object) -> str | None:
    return raw[:128] if isinstance(raw, str) and raw else None


# ---- JSON in base64.


def decode_header(text: str) -> JsonMembers | None:
    """The JSON object in a header of x402; None for any other text."""
    if not 0 < len(text) <= HEADER_CHARACTERS_MAX:
        return None
    try:
        document = from_json(base64.b64decode(text + "=" * (-len(text) % 4), validate=True))
    except (ValueError, NotBase64):
        return None
    return document if isinstance(document, dict) else None


def _encode_json(document: object) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _text_of(document: object) -> str | None:
    return _encode_json(document) if isinstance(document, Mapping) else None


def _select_objects(raw: object) -> Iterable[JsonMembers]:
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        return ()
    return (entry for entry in raw[:OPTIONS_MAX] if isinstance(entry, Mapping))
