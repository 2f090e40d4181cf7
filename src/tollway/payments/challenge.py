"""The 402 in the dialects of x402 v2, x402 v1 and MPP, and the receipts in each of them. Pure.

Nothing here says what is owed: the requirements do. The `PAYMENT-REQUIRED` header is kept small, because clients and
proxies refuse large ones; what a client can do without goes first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tollway.identifiers import Address, ChainId, TxHash, format_network
from tollway.ledger.authorization import Dialect
from tollway.payments.authorization_wire import encode_object, encode_object_urlsafe
from tollway.payments.mpp import (
    CHALLENGE_HEADER,
    METHOD,
    RECEIPT_HEADER,
    Challenger,
    Route,
    format_moment,
)
from tollway.payments.requirement import Requirement
from tollway.payments.x402 import (
    REQUIRED_HEADER,
    RESPONSE_HEADER,
    RESPONSE_HEADER_V1,
    Resource,
    network_name_v1,
    requirement_json,
    requirement_json_v1,
    resource_json,
)

REQUIRED_BYTES_MAX = 4 * 1024
"""Of the base64 in `PAYMENT-REQUIRED`. Node refuses 16 KiB of headers in all, some proxies 4 KiB."""
_DESCRIPTION_MAX, _DESCRIPTION_SHORT = 500, 100
_PATH_KEPT = 512

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """What a 402 says beside the problem: `headers`, and the `members` of x402 v1 in its body. Empty where an
    authorisation cannot pay."""

    headers: list[Header]
    members: dict[str, Any]


def build_challenge(
    requirements: Sequence[Requirement],
    resource: Resource,
    *,
    error: str,
    extensions: Mapping[str, Mapping[str, Any]],
    challenger: Challenger | None,
    route: Route,
    now_s: float,
    salt: bytes = b"",
) -> Challenge:
    """One 402 for every dialect. `error`: the code, or the protocol's reason. `extensions`: each with `info` and `schema`.

    MPP's challenge is of the first requirement alone: its clients take the first of several without looking further.
    `salt`: random bytes that make it one of its kind.
    """
    if not requirements:
        return Challenge(headers=[], members={})
    headers = [(REQUIRED_HEADER, _fit(requirements, resource, error, extensions))]
    if challenger is not None:
        headers.append(
            (CHALLENGE_HEADER, challenger.challenge(requirements[0], route, now_s=now_s, salt=salt))
        )
    accepts_v1 = [requirement_json_v1(requirement, resource) for requirement in requirements]
    kept = [accepted for accepted in accepts_v1 if accepted is not None]
    members = {"x402Version": 1, "error": error, "accepts": kept} if kept else {}
    return Challenge(headers=headers, members=members)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A `PaymentRequired` while it is being made to fit."""

    requirements: Sequence[Requirement]
    resource: Resource
    error: str
    extensions: Mapping[str, Mapping[str, Any]]

    def encode(self) -> bytes:
        content: dict[str, Any] = {
            "x402Version": 2,
            "error": self.error,
            "resource": resource_json(self.resource),
            "accepts": [requirement_json(requirement) for requirement in self.requirements],
        }
        if self.extensions:
            content["extensions"] = {name: dict(extension) for name, extension in self.extensions.items()}
        return encode_object(content)


def _fit(
    requirements: Sequence[Requirement],
    resource: Resource,
    error: str,
    extensions: Mapping[str, Mapping[str, Any]],
) -> bytes:
    draft = _Draft(
        requirements=requirements,
        resource=_describe_shortly(resource, _DESCRIPTION_MAX),
        error=error,
        extensions=extensions,
    )
    encoded = draft.encode()
    for shrink in _shrinks(draft):
        if len(encoded) <= REQUIRED_BYTES_MAX:
            break
        draft = shrink(draft)
        encoded = draft.encode()
    return encoded


def _shrinks(draft: _Draft) -> Iterator[Callable[[_Draft], _Draft]]:
    """What goes first is what a client misses least; of the extensions the largest."""
    yield lambda d: replace(d, extensions={name: _without_details(ext) for name, ext in d.extensions.items()})
    yield lambda d: replace(d, resource=replace(d.resource, tags=()))
    yield lambda d: replace(d, resource=_describe_shortly(d.resource, _DESCRIPTION_SHORT))
    for name in sorted(draft.extensions, key=lambda one: -len(encode_object(dict(draft.extensions[one])))):
        yield partial(_without_extension, name)
    for _ in draft.requirements[1:]:
        yield lambda d: replace(d, requirements=d.requirements[:-1])
    yield lambda d: replace(d, resource=replace(d.resource, url=d.resource.url.partition("?")[0]))
    # A path of kilobytes: its beginning still names the listing.
    yield lambda d: replace(d, resource=replace(d.resource, url=d.resource.url[:_PATH_KEPT]))


def _without_extension(name: str, draft: _Draft) -> _Draft:
    return replace(draft, extensions={one: ext for one, ext in draft.extensions.items() if one != name})


def _describe_shortly(resource: Resource, length_max: int) -> Resource:
    if len(resource.description) <= length_max:
        return resource
    return replace(resource, description=resource.description[: length_max - 1].rstrip() + "…")


def _without_details(extension: Mapping[str, Any]) -> Mapping[str, Any]:
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
