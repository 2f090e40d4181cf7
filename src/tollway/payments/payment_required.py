"""The 402 in x402 v2 and v1, encoded from a JSON template, and the receipts in each dialect. Pure.

The requirements say what is owed; MPP's challenge is made in `mpp`. The `PAYMENT-REQUIRED` header is kept small, because clients
and proxies refuse large ones; what a client can do without goes first. A template is JSON that is the same each time but for a
few slots: encoded once, filled in as often as needed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tollway.ids import Address, ChainId, TxHash, format_network
from tollway.ledger.records import Dialect
from tollway.payments.mpp import METHOD, RECEIPT_HEADER, format_moment
from tollway.payments.pricing import PaymentRequirement
from tollway.payments.wire import encode_base64, encode_json, encode_object, encode_object_urlsafe
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
    """Stands where a value is not known yet, in any content. Its text is its name."""

    __slots__ = ()


class JsonTemplate:
    """Made from content with slots in it. May be filled by many at once."""

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
        """The whole. `values`: JSON for each slot, by its name; others are passed over."""
        return b"".join([piece if isinstance(piece, bytes) else values[piece] for piece in self._pieces])

    def count(self, values: Mapping[str, bytes]) -> int:
        """How many bytes `fill` would give."""
        return self._fixed_bytes + sum([len(values[name]) for name in self._names])


def _walk(content: object) -> Iterator[bytes | TemplateSlot]:
    """As `encode_json` writes it, piece by piece."""
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
"""Of the base64 in `PAYMENT-REQUIRED`. Node refuses 16 KiB of headers in all, some proxies 4 KiB."""
_DESCRIPTION_MAX, _DESCRIPTION_SHORT = 500, 100
_PATH_KEPT = 512

Header = tuple[bytes, bytes]

URL, ERROR = TemplateSlot("url"), TemplateSlot("error")
"""What differs between requests: the public URL that was asked for, and the code or the protocol's reason."""


class PaymentRequiredEncoder:
    """One 402 in the dialects of x402, written but for its slots. `members`: those of version 1, for the body; empty where
    its clients would choke. `requirements` is not empty."""

    def __init__(
        self,
        requirements: Sequence[PaymentRequirement],
        resource: Resource,
        *,
        extensions: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """`resource`: its URL is filled in later. `extensions`: each with `info` and `schema`; may have slots of its own."""
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
        self._templates = [JsonTemplate(next(self._drafts))]  # the others are made when a long URL needs them

    def encode_required(self, url: str, values: Mapping[str, bytes]) -> bytes:
        """The value of `PAYMENT-REQUIRED`: the fullest form that fits. `values`: for all slots but the URL's."""
        values = {**values, URL: encode_json(url)}
        for template in self._list_templates():
            if _encoded_bytes(template.count(values)) <= REQUIRED_BYTES_MAX:
                return encode_base64(template.fill(values))
        # A path of kilobytes: its beginning still names the listing.
        path = url.partition("?")[0]
        values[URL] = encode_json(path)
        if _encoded_bytes(template.count(values)) > REQUIRED_BYTES_MAX:
            values[URL] = encode_json(path[:_PATH_KEPT])
        return encode_base64(template.fill(values))

    def _list_templates(self) -> Iterator[JsonTemplate]:
        """From the fullest to the barest."""
        yield from self._templates
        for content in self._drafts:
            self._templates.append(JsonTemplate(content))
            yield self._templates[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PaymentRequiredDraft:
    """A `PaymentRequired` while it is being made to fit."""

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
    """Less and less of it: what goes first is what a client misses least; of the extensions the largest."""
    yield draft.to_json()
    extensions = {name: _without_details(extension) for name, extension in draft.extensions.items()}
    yield (draft := replace(draft, extensions=extensions)).to_json()
    yield (draft := replace(draft, resource=replace(draft.resource, tags=()))).to_json()
    resource = _describe_shortly(draft.resource, _DESCRIPTION_SHORT)
    yield (draft := replace(draft, resource=resource)).to_json()
    # What is filled in later is more than all that stands there now: offers, each with a signature.
    sizes = {name: (JsonTemplate(one).slots, len(encode_json(one))) for name, one in extensions.items()}
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        del extensions[name]
        yield draft.to_json()
    for _ in draft.requirements[1:]:
        yield (draft := replace(draft, requirements=draft.requirements[:-1])).to_json()


def _encoded_bytes(raw_bytes: int) -> int:
    """Of base64 with padding."""
    return -(-raw_bytes // 3) * 4


def _describe_shortly(resource: Resource, length_max: int) -> Resource:
    if len(resource.description) <= length_max:
        return resource
    return replace(resource, description=resource.description[: length_max - 1].rstrip() + "…")


def _without_details(extension: Mapping[str, Any]) -> dict[str, Any]:
    """The schema that still says yes to `info`: an object."""
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
    """The receipt of a transfer that is mined, in the dialect that paid. `extensions`: of x402 v2 only."""
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
    """`success: false`: surely nothing moved. MPP has no such thing: its 402 is all."""
    content: dict[str, Any] = {"success": False, "errorReason": reason, "transaction": ""}
    if dialect is Dialect.X402_V2:
        content |= {"network": format_network(network_chain_id), "payer": str(payer)}
        return RESPONSE_HEADER, encode_object(content)
    if dialect is Dialect.X402_V1:
        content |= {"network": network_name_v1(network_chain_id), "payer": str(payer)}
        return RESPONSE_HEADER_V1, encode_object(content)
    return None
