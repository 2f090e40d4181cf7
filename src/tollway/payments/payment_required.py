"""Encodes the 402 of x402 v2 and v1 from JSON templates, and the receipts of each dialect. Pure. `mpp` makes MPP challenges.

Clients and proxies refuse large headers, so a `PAYMENT-REQUIRED` that is too large loses its least important parts first. A
template is JSON that is constant except for a few slots: it is encoded once and filled for each response.
"""

from binascii import b2a_base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tollway.ids import Address, ChainId, TxHash, format_network
from tollway.ledger.records import Dialect
from tollway.payments.mpp import METHOD, RECEIPT_HEADER, format_moment
from tollway.payments.pricing import PaymentRequirement
from tollway.payments.wire import encode_json, encode_object, encode_object_urlsafe
from tollway.payments.x402 import (
    RESPONSE_HEADER,
    RESPONSE_HEADER_V1,
    Resource,
    network_name_v1,
    requirement_json,
    requirement_json_v1,
    resource_json,
)


class TemplateSlot(str):
    """A placeholder for a value that is known later. Its text is its name."""

    __slots__ = ()


class JsonTemplate:
    """Encoded JSON with slots."""

    __slots__ = ("_fixed_bytes", "_names", "_pieces")

    def __init__(self, content: object) -> None:
        pieces: list[bytes | TemplateSlot] = []
        for piece in _walk(content):
            if pieces and not isinstance(piece, TemplateSlot) and isinstance(last := pieces[-1], bytes):
                pieces[-1] = last + piece
            else:
                pieces.append(piece)
        self._pieces = tuple(pieces)
        self._names = tuple(piece for piece in pieces if isinstance(piece, TemplateSlot))
        self._fixed_bytes = sum(len(piece) for piece in pieces if isinstance(piece, bytes))

    @property
    def slots(self) -> int:
        return len(self._names)

    def fill(self, values: Mapping[str, bytes]) -> bytes:
        """The complete JSON. `values`: encoded JSON for each slot by its name; other names are ignored."""
        return b"".join([piece if isinstance(piece, bytes) else values[piece] for piece in self._pieces])

    def count(self, values: Mapping[str, bytes]) -> int:
        return self._fixed_bytes + sum([len(values[name]) for name in self._names])


def _walk(content: object) -> Iterator[bytes | TemplateSlot]:
    if isinstance(content, TemplateSlot):
        yield content
    elif isinstance(content, Mapping):
        yield b"{"
        for number, (name, value) in enumerate(content.items()):
            yield (b"," if number else b"") + encode_json(name) + b":"
            yield from _walk(value)
        yield b"}"
    elif isinstance(content, Sequence) and not isinstance(content, str):
        yield b"["
        for number, value in enumerate(content):
            if number:
                yield b","
            yield from _walk(value)
        yield b"]"
    else:
        yield encode_json(content)


REQUIRED_BYTES_MAX = 4 * 1024
"""The maximum of the base64 in `PAYMENT-REQUIRED`. Node refuses 16 KiB of headers in total, some proxies 4 KiB."""
_DESCRIPTION_MAX, _DESCRIPTION_SHORT = 500, 100
_PATH_KEPT = 512

Header = tuple[bytes, bytes]

URL, ERROR = TemplateSlot("url"), TemplateSlot("error")
"""The slots that differ between requests: the requested public URL, and the code or the protocol's reason."""


class PaymentRequiredEncoder:
    """One 402 in the dialects of x402, encoded except for its slots. `members`: the members of version 1 for the body; empty where
    clients of version 1 would fail to parse them. `requirements` is not empty."""

    def __init__(
        self,
        requirements: Sequence[PaymentRequirement],
        resource: Resource,
        *,
        extensions: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """`resource`: its URL becomes a slot. `extensions`: each with `info` and `schema`, and possibly with slots."""
        resource = replace(resource, url=URL)
        accepts_v1 = [requirement_json_v1(requirement, resource) for requirement in requirements]
        kept = [accepted for accepted in accepts_v1 if accepted is not None]
        self.members = {"x402Version": 1, "error": ERROR, "accepts": kept} if kept else {}
        draft = _PaymentRequiredDraft(
            requirements=requirements,
            resource=_describe_shortly(resource, _DESCRIPTION_MAX),
            extensions=extensions,
        )
        self._drafts = _shrink(draft)
        self._templates = [
            JsonTemplate(next(self._drafts))
        ]  # shorter ones are made when a long URL needs them

    def encode_required(self, url: str, values: Mapping[str, bytes]) -> bytes:
        """The value of `PAYMENT-REQUIRED`: the longest draft that fits. `values`: for all slots except the URL."""
        values = {**values, URL: encode_json(url)}
        for template in self._list_templates():
            if _encoded_bytes(template.count(values)) <= REQUIRED_BYTES_MAX:
                return b2a_base64(template.fill(values), newline=False)
        # A path of kilobytes: its beginning still names the listing.
        path = url.partition("?")[0]
        values[URL] = encode_json(path)
        if _encoded_bytes(template.count(values)) > REQUIRED_BYTES_MAX:
            values[URL] = encode_json(path[:_PATH_KEPT])
        return b2a_base64(template.fill(values), newline=False)

    def _list_templates(self) -> Iterator[JsonTemplate]:
        yield from self._templates
        for content in self._drafts:
            self._templates.append(JsonTemplate(content))
            yield self._templates[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PaymentRequiredDraft:
    requirements: Sequence[PaymentRequirement]
    resource: Resource
    extensions: Mapping[str, Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        content: dict[str, Any] = {
            "x402Version": 2,
            "error": ERROR,
            "resource": resource_json(self.resource),
            "accepts": [requirement_json(requirement) for requirement in self.requirements],
        }
        if self.extensions:
            content["extensions"] = dict(self.extensions)
        return content


def _shrink(draft: _PaymentRequiredDraft) -> Iterator[dict[str, Any]]:
    """Shorter and shorter drafts: the parts that clients need least go first, of the extensions the largest."""
    yield draft.to_json()
    extensions = {name: _without_details(extension) for name, extension in draft.extensions.items()}
    yield (draft := replace(draft, extensions=extensions)).to_json()
    yield (draft := replace(draft, resource=replace(draft.resource, tags=()))).to_json()
    resource = _describe_shortly(draft.resource, _DESCRIPTION_SHORT)
    yield (draft := replace(draft, resource=resource)).to_json()
    # Slots first: a slot of signed offers grows beyond every other extension.
    sizes = {name: (JsonTemplate(one).slots, len(encode_json(one))) for name, one in extensions.items()}
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        del extensions[name]
        yield draft.to_json()
    for gone in _list_dispensable(draft.requirements):
        kept = [one for one in draft.requirements if one is not gone]
        yield (draft := replace(draft, requirements=kept)).to_json()


def _list_dispensable(requirements: Sequence[PaymentRequirement]) -> list[PaymentRequirement]:
    """The requirements in the order in which they go, never the first one: the single authorisations of further networks, those in further tokens, channels last."""
    first = requirements[0]
    single = [one for one in reversed(requirements[1:]) if one.channel is None]
    return [
        *(one for one in single if one.asset.chain_id != first.asset.chain_id),
        *(one for one in single if one.asset.chain_id == first.asset.chain_id),
        *(one for one in reversed(requirements[1:]) if one.channel is not None),
    ]


def _encoded_bytes(raw_bytes: int) -> int:
    return -(-raw_bytes // 3) * 4


def _describe_shortly(resource: Resource, length_max: int) -> Resource:
    if len(resource.description) <= length_max:
        return resource
    return replace(resource, description=resource.description[: length_max - 1].rstrip() + "…")


def _without_details(extension: Mapping[str, Any]) -> dict[str, Any]:
    """The extension with a minimal schema that still accepts `info`."""
    return {**extension, "schema": {"type": "object"}}


# ---- Receipts.


def encode_receipt(
    dialect: Dialect,
    *,
    transaction: TxHash,
    network_chain_id: ChainId,
    payer: Address,
    base_units: int,
    challenge_id: str = "",
    now: float,
    extensions: Mapping[str, Any] | None = None,
) -> Header:
    """The receipt of a mined transfer, in the dialect of the payment. `extensions`: for x402 v2 only."""
    if dialect is Dialect.MPP:
        receipt: dict[str, Any] = {
            "status": "success",
            "method": METHOD,
            "timestamp": format_moment(int(now)),
            "reference": str(transaction),
            "chainId": network_chain_id,
        }
        if challenge_id:
            receipt["challengeId"] = challenge_id
        return RECEIPT_HEADER, encode_object_urlsafe(receipt).encode("ascii")
    content: dict[str, Any] = {"success": True, "transaction": str(transaction)}
    if dialect is Dialect.X402_V1:
        content |= {"network": network_name_v1(network_chain_id), "payer": str(payer)}
        return RESPONSE_HEADER_V1, encode_object(content)
    content |= {"network": format_network(network_chain_id), "payer": str(payer), "amount": str(base_units)}
    if extensions:
        content["extensions"] = dict(extensions)
    return RESPONSE_HEADER, encode_object(content)


def encode_failure(
    dialect: Dialect, *, reason: str, network_chain_id: ChainId, payer: Address
) -> Header | None:
    """The response header with `success: false`: no money moved. None for MPP, which has only its 402."""
    content: dict[str, Any] = {"success": False, "errorReason": reason, "transaction": ""}
    if dialect is Dialect.X402_V2:
        content |= {"network": format_network(network_chain_id), "payer": str(payer)}
        return RESPONSE_HEADER, encode_object(content)
    if dialect is Dialect.X402_V1:
        content |= {"network": network_name_v1(network_chain_id), "payer": str(payer)}
        return RESPONSE_HEADER_V1, encode_object(content)
    return None
