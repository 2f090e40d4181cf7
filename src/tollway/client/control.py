"""Requests to the control plane: listings, history, payments. Builds them and reads their answers; sends nothing."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode

from tollway.client.failures import AnswerMalformed, GatewayRefused
from tollway.client.steps import HeaderPairs
from tollway.client.whole_answer import read_json
from tollway.errors import Code
from tollway.ids import TxHash

GatewayDocument = dict[str, Any]
"""A JSON object as the gateway wrote it; its members are those of the HTTP contract."""

API_PREFIX = "/api/v2"
NOT_FOUND = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRequest:
    """`path` under the API prefix, already encoded, with its query. `is_signed`: by the wallet (ERC-8128). `entries`: the
    member of the answer that is a list of objects."""

    method: str
    path: str
    headers: HeaderPairs = ()
    body: bytes = field(default=b"", repr=False)
    is_signed: bool = False
    entries: str | None = None


def publish_listing(draft: Mapping[str, object], *, dry_run: bool = False) -> ControlRequest:
    """Creates a listing; `dry_run` checks it only."""
    path = "/apis?dryRun=true" if dry_run else "/apis"
    return _build_json_request("POST", path, draft, ())


def update_listing(api_id: str, draft: Mapping[str, object], *, etag: str | None = None) -> ControlRequest:
    """Replaces a listing; with `etag` only while nobody else has changed it."""
    headers: HeaderPairs = () if etag is None else (("If-Match", etag),)
    return _build_json_request("PUT", f"/apis/{_encode_segment(api_id)}", draft, headers)


LISTING_DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "description": "",
        "tags": [],
        "methods": [],
        "operations": [],
        "otherPaths": "serve",
        "chargeOn": "success",
        "timeoutSeconds": 30,
        "forwardHeaders": [],
        "signature": "any",
        "rateLimit": None,
        "status": "active",
    }
)
"""What an update makes of a member that its body leaves out; of `payTo` it makes the provider's wallet."""
KEPT_MEMBERS = ("upstreamAuth", "openapi", "openapiUrl")
"""What an update keeps unless its body says null."""


def find_dropped_members(listing: Mapping[str, object], draft: Mapping[str, object]) -> tuple[str, ...]:
    """The members of a listing that an update by `draft` would take back to their defaults because it does not name them."""
    dropped = [
        name
        for name, default in LISTING_DEFAULTS.items()
        if name not in draft and listing.get(name, default) not in (default, None)
    ]
    provider, pay_to = (str(listing.get(name, "")).lower() for name in ("provider", "payTo"))
    if "payTo" not in draft and pay_to not in ("", provider):
        dropped.append("payTo")
    return tuple(dropped)


def retire_listing(api_id: str) -> ControlRequest:
    return ControlRequest(method="DELETE", path=f"/apis/{_encode_segment(api_id)}", is_signed=True)


def show_ownership(api_id: str) -> ControlRequest:
    return ControlRequest(method="GET", path=f"/apis/{_encode_segment(api_id)}/ownership")


def check_ownership(api_id: str) -> ControlRequest:
    return ControlRequest(method="POST", path=f"/apis/{_encode_segment(api_id)}/ownership", is_signed=True)


def list_apis(query: Mapping[str, object]) -> ControlRequest:
    return ControlRequest(method="GET", path="/apis" + _encode_query(query), entries="apis")


def search_apis(words: str | None, query: Mapping[str, object]) -> ControlRequest:
    """`list_apis`, ranked where there are words to rank by and no other order is asked for."""
    ranked = {"sort": "relevance"} if words else {}
    return list_apis({"q": words or None, **ranked, **{k: v for k, v in query.items() if v is not None}})


def describe_listing(api_id: str) -> ControlRequest:
    return ControlRequest(method="GET", path=f"/apis/{_encode_segment(api_id)}/agent")


def lacks_document(refusal: GatewayRefused) -> bool:
    """Whether a gateway knows no such document, rather than no such listing."""
    return refusal.status == NOT_FOUND and refusal.code != Code.API_NOT_FOUND.value


def show_listing(api_id: str) -> ControlRequest:
    return ControlRequest(method="GET", path=f"/apis/{_encode_segment(api_id)}")


def list_calls(query: Mapping[str, object]) -> ControlRequest:
    return ControlRequest(
        method="GET", path="/history" + _encode_query(query), is_signed=True, entries="calls"
    )


def find_call(call_id: str) -> ControlRequest:
    return ControlRequest(method="GET", path=f"/history/{_encode_segment(call_id)}", is_signed=True)


def find_payment(tx_hash: str) -> ControlRequest:
    """Raises ValueError on what is no transaction hash."""
    return ControlRequest(method="GET", path=f"/payments/{TxHash.parse(tx_hash)}", is_signed=True)


def read_document(control_request: ControlRequest, status: int, content: bytes) -> GatewayDocument:
    """The JSON object of an answer; `{}` for an empty one. Raises `GatewayRefused` for everything but success, and
    `AnswerMalformed` for a success that is not the document that was asked for."""
    is_success = 200 <= status <= 299
    try:
        document = read_json(content) if content else {}
    except ValueError:
        document = None
    if not is_success:
        if not isinstance(document, dict):
            document = {"detail": f"The gateway answered {status} with something that is not a JSON object."}
        raise GatewayRefused(status, document)
    if not isinstance(document, dict):
        raise AnswerMalformed(f"The gateway answered {status} with something that is not a JSON object.")
    if control_request.entries is not None:
        entries = document.get(control_request.entries)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise AnswerMalformed(f"The gateway's answer has no list `{control_request.entries}` of objects.")
    return document


def _build_json_request(
    method: str, path: str, draft: Mapping[str, object], headers: HeaderPairs
) -> ControlRequest:
    return ControlRequest(
        method=method,
        path=path,
        headers=(("Content-Type", "application/json"), *headers),
        body=json.dumps(draft, ensure_ascii=False, separators=(",", ":")).encode(),
        is_signed=True,
    )


def _encode_segment(text: str) -> str:
    return quote(text, safe="-_.~")


def _encode_query(query: Mapping[str, object]) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}
    return "?" + urlencode(words, quote_via=quote) if words else ""
