"""Requests to the gateway: a call, checked and ready to be sent any number of times; and the control plane
(listings, history, payments) with its response documents. No I/O.
"""

import functools
import hashlib
import inspect
import json
import re
import secrets
from collections.abc import AsyncIterable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, TypedDict, TypeVar
from urllib.parse import quote, urlencode

import httpx
from httpx._client import UseClientDefault
from httpx._types import (
    HeaderTypes,
    QueryParamTypes,
    RequestContent,
    RequestData,
    RequestFiles,
    TimeoutTypes,
)

import tollway
from tollway.client.call_io import ControlRequest, HeaderPairs
from tollway.client.errors import GatewayRefused, GatewayResponseInvalid, HeaderInvalid
from tollway.client.own_channel import OwnChannel
from tollway.client.quote import Cap
from tollway.client.responses import read_json
from tollway.client.transfer import RAILS, CallRules, RailChoice
from tollway.errors import Code
from tollway.ids import TxHash, keccak256

T = TypeVar("T")


class GatewayDocument(dict[str, Any]):
    """A JSON object from the gateway; its members are those of the HTTP contract. `etag`: the entity tag of its response, for `If-Match`."""

    etag: str | None = None


API_PREFIX = "/api/v2"
NOT_FOUND = 404


def publish_listing(draft: Mapping[str, object], *, dry_run: bool = False) -> ControlRequest:
    """Creates a listing; with `dry_run` only checks it."""
    path = "/apis?dryRun=true" if dry_run else "/apis"
    return _build_json_request("POST", path, draft, ())


def update_listing(api_id: str, draft: Mapping[str, object], *, etag: str | None = None) -> ControlRequest:
    """Replaces a listing; with `etag` only if it has not changed since."""
    headers: HeaderPairs = () if etag is None else (("If-Match", etag),)
    return _build_json_request("PUT", f"/apis/{_encode_segment(api_id)}", draft, headers)


def patch_listing(
    api_id: str, patch: Mapping[str, object], *, etag: str | None = None, dry_run: bool = False
) -> ControlRequest:
    """Changes the members of a listing that `patch` names (RFC 7396); with `etag` only if it has not changed since, with `dry_run`
    only checks the patch."""
    headers: HeaderPairs = () if etag is None else (("If-Match", etag),)
    path = f"/apis/{_encode_segment(api_id)}" + ("?dryRun=true" if dry_run else "")
    return _build_json_request("PATCH", path, patch, headers, media_type="application/merge-patch+json")


def try_listing(api_id: str, trial: Mapping[str, object]) -> ControlRequest:
    """A trial call by the provider of a listing. `trial`: its method, path, headers and body, each optional."""
    return _build_json_request("POST", f"/apis/{_encode_segment(api_id)}/trial", trial, ())


def resolve_call(call_id: str, outcome: str) -> ControlRequest:
    """Decides a call whose outcome is unknown, as the provider: `consumed` (its price is charged) or `released`."""
    path = f"/history/{_encode_segment(call_id)}/resolution"
    return _build_json_request("POST", path, {"outcome": outcome}, ())


def refund_calls(call_ids: Sequence[str], transaction: str | None) -> ControlRequest:
    """Gives the price of calls back, as their provider: by a transfer, or with None as credit."""
    first, *others = call_ids
    body = {"credit": True} if transaction is None else {"transaction": transaction, "calls": others}
    return _build_json_request("POST", f"/history/{_encode_segment(first)}/refund", body, ())


def retire_listing(api_id: str) -> ControlRequest:
    return ControlRequest(method="DELETE", path=f"/apis/{_encode_segment(api_id)}", is_signed=True)


def show_ownership(api_id: str) -> ControlRequest:
    return ControlRequest(method="GET", path=f"/apis/{_encode_segment(api_id)}/ownership")


def check_ownership(api_id: str) -> ControlRequest:
    return ControlRequest(method="POST", path=f"/apis/{_encode_segment(api_id)}/ownership", is_signed=True)


def list_apis(query: Mapping[str, object]) -> ControlRequest:
    return ControlRequest(method="GET", path="/apis" + _encode_query(query), entries="apis")


def search_apis(words: str | None, query: Mapping[str, object]) -> ControlRequest:
    return list_apis({"q": words or None, **query})


def list_suspended() -> ControlRequest:
    """The suspended listings of the wallet itself."""
    return ControlRequest(method="GET", path="/apis?suspended=true", is_signed=True, entries="apis")


def describe_listing(api_id: str, page: int = 1) -> ControlRequest:
    query = {"page": page} if page != 1 else {}
    return ControlRequest(method="GET", path=f"/apis/{_encode_segment(api_id)}/agent" + _encode_query(query))


def count_listings(words: str | None) -> ControlRequest:
    return ControlRequest(method="GET", path="/facets" + _encode_query({"q": words or None}))


def show_stats(api_id: str) -> ControlRequest:
    return ControlRequest(method="GET", path=f"/apis/{_encode_segment(api_id)}/stats", entries="days")


def list_networks() -> ControlRequest:
    return ControlRequest(method="GET", path="/networks", entries="networks")


def show_status() -> ControlRequest:
    return ControlRequest(method="GET", path="/status", entries="networks")


def lacks_document(refusal: GatewayRefused) -> bool:
    """Whether the gateway has no agent documents; False where it has no such listing."""
    return refusal.status == NOT_FOUND and refusal.code != Code.API_NOT_FOUND.value


def show_listing(api_id: str) -> ControlRequest:
    return ControlRequest(method="GET", path=f"/apis/{_encode_segment(api_id)}")


def list_calls(query: Mapping[str, object]) -> ControlRequest:
    return ControlRequest(
        method="GET", path="/history" + _encode_query(query), is_signed=True, entries="calls"
    )


def find_call(call_id: str, wallet: str | None = None) -> ControlRequest:
    path = f"/history/{_encode_segment(call_id)}" + _encode_query({"wallet": wallet})
    return ControlRequest(method="GET", path=path, is_signed=True)


def list_webhooks() -> ControlRequest:
    return ControlRequest(method="GET", path="/webhooks", is_signed=True, entries="webhooks")


def add_webhook(
    url: str, types: Sequence[str], secret: str | None, *, is_shared: bool = False
) -> ControlRequest:
    body: dict[str, object] = {"url": url, "types": list(types)}
    if secret is not None:
        body["secret"] = secret
    if is_shared:
        body["shared"] = True
    return _build_json_request("POST", "/webhooks", body, ())


def remove_webhook(webhook_id: str) -> ControlRequest:
    return ControlRequest(method="DELETE", path=_webhook_path(webhook_id), is_signed=True)


def list_deliveries(webhook_id: str, query: Mapping[str, object]) -> ControlRequest:
    path = f"{_webhook_path(webhook_id)}/deliveries" + _encode_query(query)
    return ControlRequest(method="GET", path=path, is_signed=True, entries="deliveries")


def resend_event(webhook_id: str, event_id: str) -> ControlRequest:
    path = f"{_webhook_path(webhook_id)}/deliveries/{_encode_segment(event_id)}/resend"
    return ControlRequest(method="POST", path=path, is_signed=True)


def _webhook_path(webhook_id: str) -> str:
    return f"/webhooks/{_encode_segment(webhook_id)}"


def find_receipt(call_id: str) -> ControlRequest:
    return ControlRequest(method="GET", path=f"/history/{_encode_segment(call_id)}/receipt", is_signed=True)


def show_sales(query: Mapping[str, object]) -> ControlRequest:
    return ControlRequest(method="GET", path="/sales" + _encode_query(query), is_signed=True, entries="sales")


def show_spending(query: Mapping[str, object]) -> ControlRequest:
    return ControlRequest(
        method="GET", path="/spending" + _encode_query(query), is_signed=True, entries="spending"
    )


def list_payments(query: Mapping[str, object]) -> ControlRequest:
    return ControlRequest(
        method="GET", path="/payments" + _encode_query(query), is_signed=True, entries="payments"
    )


def find_payment(tx_hash: str, wallet: str | None = None) -> ControlRequest:
    """Raises ValueError for text that is no transaction hash."""
    path = f"/payments/{TxHash.parse(tx_hash)}" + _encode_query({"wallet": wallet})
    return ControlRequest(method="GET", path=path, is_signed=True)


def export_calls(query: Mapping[str, object]) -> ControlRequest:
    return export_page("/history.csv" + _encode_query(query))


def export_payments(query: Mapping[str, object]) -> ControlRequest:
    return export_page("/payments.csv" + _encode_query(query))


def export_page(path: str) -> ControlRequest:
    """One page of a CSV file. `path`: with its query. The text is requested without a coding."""
    headers = (("Accept", "text/csv"), ("Accept-Encoding", "identity"))
    return ControlRequest(method="GET", path=path, headers=headers, is_signed=True)


def list_viewers() -> ControlRequest:
    return ControlRequest(method="GET", path="/viewers", is_signed=True, entries="viewers")


def put_viewer(address: str, until: str) -> ControlRequest:
    return _build_json_request("PUT", f"/viewers/{_encode_segment(address)}", {"until": until}, ())


def delete_viewer(address: str) -> ControlRequest:
    return ControlRequest(method="DELETE", path=f"/viewers/{_encode_segment(address)}", is_signed=True)


def decline_wallet(address: str) -> ControlRequest:
    return ControlRequest(method="DELETE", path=f"/viewers/of/{_encode_segment(address)}", is_signed=True)


def show_budgets(agent: str | None) -> ControlRequest:
    """The policies for an agent that its reader may see; None: those that the wallet signed."""
    path = "/budgets" if agent is None else f"/budgets/{_encode_segment(agent)}"
    return ControlRequest(method="GET", path=path, is_signed=True)


def put_budget(agent: str, policy: Mapping[str, object], signature: str) -> ControlRequest:
    """Stores the policy of the wallet, which signed it (EIP-712), for an agent."""
    draft = {"policy": policy, "signature": signature}
    return _build_json_request("PUT", f"/budgets/{_encode_segment(agent)}", draft, ())


def accept_owner(agent: str, owner: str, nonce: int, signature: str) -> ControlRequest:
    """Accepts the owner, as the agent."""
    draft = {"owner": owner, "nonce": nonce, "signature": signature}
    return _build_json_request("PUT", f"/budgets/{_encode_segment(agent)}", draft, ())


def delete_budget(agent: str, nonce: int, signature: str, *, is_unbinding: bool = False) -> ControlRequest:
    """Revokes the policy of the wallet for an agent; with `is_unbinding` the agent has no owner any more."""
    draft = {"nonce": nonce, "signature": signature, "unbind": is_unbinding}
    return _build_json_request("DELETE", f"/budgets/{_encode_segment(agent)}", draft, ())


def format_moment(name: str, moment: datetime | None) -> str | None:
    """RFC 3339 in UTC with milliseconds. Raises ValueError for a moment without a time zone."""
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise ValueError(f"{name} needs a time zone, such as datetime.now(UTC)")
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_document(
    control_request: ControlRequest, status: int, content: bytes, *, etag: str | None = None
) -> GatewayDocument:
    """The JSON object of a response; `{}` for an empty one. `etag`: its entity tag. Raises `GatewayRefused` for every other status than 2xx, and
    `GatewayResponseInvalid` for a 2xx that is not the requested document."""
    is_success = 200 <= status <= 299
    try:
        document = read_json(content) if content else {}
    except ValueError:
        document = None
    if not is_success:
        if not isinstance(document, dict):
            document = {
                "detail": f"The gateway responded with status {status} and a body that is no JSON object."
            }
        raise GatewayRefused(status, document)
    if not isinstance(document, dict):
        raise GatewayResponseInvalid(
            f"The gateway responded with status {status} and a body that is no JSON object."
        )
    if control_request.entries is not None:
        entries = document.get(control_request.entries)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise GatewayResponseInvalid(
                f"The gateway's response has no list `{control_request.entries}` of objects."
            )
    read = GatewayDocument(document)
    read.etag = etag
    return read


def _build_json_request(
    method: str,
    path: str,
    draft: Mapping[str, object],
    headers: HeaderPairs,
    *,
    media_type: str = "application/json",
) -> ControlRequest:
    return ControlRequest(
        method=method,
        path=path,
        headers=(("Content-Type", media_type), *headers),
        body=json.dumps(draft, ensure_ascii=False, separators=(",", ":")).encode(),
        is_signed=True,
    )


def _encode_segment(text: str) -> str:
    return quote(text, safe="-_.~")


def _encode_query(query: Mapping[str, object]) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}
    return "?" + urlencode(words, quote_via=quote) if words else ""


CapText = str | Mapping[str, str] | Cap | None

REQUEST_BYTES_MAX = 64 * 1024 * 1024
"""The maximum of a body. The client keeps it in memory, because its signature covers it and a 402 makes the client send it again."""

_API_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_VALUE = re.compile(r"[\t\x20-\x7e]*")
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_PAYMENT_HEADERS = (
    *("x-payment-tx", "x-payment-network", "x-signature", "x-signature-params", "tollway-max-price"),
    *("payment-signature", "x-payment"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlan:
    """A checked call, ready to be sent. `target`: the part of its URL that the signature covers."""

    api_id: str
    method: str
    url: httpx.URL
    target: bytes
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)
    rules: CallRules
    timeout: httpx.Timeout

    @property
    def idempotency_key(self) -> str:
        """The key of the call; empty without one."""
        return str(httpx.Headers(list(self.headers)).get("Idempotency-Key", ""))

    def digest(self, gateway: str) -> bytes:
        """A hash over gateway, listing, method, target, idempotency key and body: equal for two runs of the same request."""
        key = self.idempotency_key
        parts = (
            gateway.encode(),
            self.api_id.encode(),
            self.method.encode(),
            self.target,
            key.encode(),
            self.body,
        )
        return keccak256(b"".join(keccak256(part) for part in parts))


class CallOptions(TypedDict, total=False):
    """The options of a call, beside the listing and the path; see `AsyncTollwayClient.call`."""

    method: str | None
    params: QueryParamTypes | None
    headers: HeaderTypes | None
    content: RequestContent | None
    data: RequestData | None
    files: RequestFiles | None
    json: object
    timeout: TimeoutTypes | UseClientDefault
    max_price: CapText
    max_fee: CapText
    rail: RailChoice | None
    prepay: int
    idempotency_key: str | None


def plan_call(
    root: str,
    api_id: str,
    path: str,
    options: CallOptions,
    *,
    defaults: CallRules,
    timeout: httpx.Timeout,
) -> CallPlan:
    """Checks a call and builds its plan. `root`: the gateway's URL. `defaults`, `timeout`: those of the client. Raises ValueError for a call that
    cannot be sent, TypeError for a value of a wrong type."""
    if not _API_ID.fullmatch(api_id):
        raise ValueError("an API id must consist of letters, digits, _ and -")
    prefix = f"{API_PREFIX}/gateway/{api_id}"
    rest = path if path[:1] in ("", "/", "?") else "/" + path
    url = httpx.URL(f"{root}{prefix}{rest}")
    params = options.get("params")
    url = url.copy_merge_params(params) if params else url
    if not url.raw_path.startswith(prefix.encode()):
        raise ValueError("the path leaves the listing")
    target = url.raw_path[len(prefix) :]
    if target[:1] not in (b"", b"/", b"?"):
        raise ValueError("the path leaves the listing")
    headers = _read_headers(options)
    body = _read_body(url, headers, options)
    method = (options.get("method") or ("POST" if body else "GET")).upper()
    if not _TOKEN.fullmatch(method):
        raise ValueError("a method must be a token such as GET")
    max_price, max_fee, prepay = options.get("max_price"), options.get("max_fee"), options.get("prepay", 1)
    if type(prepay) is not int:
        raise TypeError(f"prepay must be a whole number of calls, not {type(prepay).__name__}")
    own_timeout = options.get("timeout", httpx.USE_CLIENT_DEFAULT)
    return CallPlan(
        api_id=api_id,
        method=method,
        url=url,
        target=target,
        headers=tuple(headers.multi_items()),
        body=body,
        rules=CallRules(
            max_price=defaults.max_price if max_price is None else Cap.parse(max_price),
            max_fee=defaults.max_fee if max_fee is None else Cap.parse(max_fee),
            max_deposit=defaults.max_deposit,
            prepay=prepay,
            patience=defaults.patience,
            is_repeatable=method in _SAFE_METHODS or "Idempotency-Key" in headers,
            rail=check_rail(options.get("rail") or defaults.rail),
        ),
        timeout=timeout if isinstance(own_timeout, UseClientDefault) else httpx.Timeout(own_timeout),
    )


def plan_refund(root: str, channel: OwnChannel, *, defaults: CallRules, timeout: httpx.Timeout) -> CallPlan:
    """The plan of requests to the refund URL of a channel, at which nothing is sold."""
    config = channel.config
    parts = (channel.asset.network, config.token, config.receiver, config.receiver_authorizer)
    path = f"{API_PREFIX}/channels/" + "/".join(str(part) for part in parts)
    return CallPlan(
        api_id="",
        method="GET",
        url=httpx.URL(f"{root}{path}"),
        target=path.encode(),
        headers=tuple(_read_headers({}).multi_items()),
        body=b"",
        rules=replace(defaults, is_repeatable=True),
        timeout=timeout,
    )


def check_names(given: Iterable[str], known: Collection[str], *, of: str) -> None:
    """Raises TypeError for the first unknown option: a misspelt limit would not apply."""
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise TypeError(f"{of} has no option {name!r}{hint}")


def named_options(kind: type[T]) -> type[T]:
    """A class whose public methods raise TypeError with the nearest name for an unknown option: a misspelt limit would not apply."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, _check_options(method))
    return kind


def _check_options(method: Callable[..., Any]) -> Callable[..., Any]:
    known, name = inspect.signature(method).parameters, f"{method.__name__}()"

    @functools.wraps(method)
    def run(*args: Any, **options: Any) -> Any:
        check_names(options, known, of=name)
        return method(*args, **options)

    @functools.wraps(method)
    async def run_async(*args: Any, **options: Any) -> Any:
        check_names(options, known, of=name)
        return await method(*args, **options)

    return run_async if inspect.iscoroutinefunction(method) else run


def check_rail(rail: RailChoice) -> RailChoice:
    """Raises ValueError for an unknown rail."""
    if rail not in RAILS:
        raise ValueError("the rail must be auto, tx, x402 or channel")
    return rail


def _read_headers(options: CallOptions) -> httpx.Headers:
    """The headers of a call, without those of its body. Raises ValueError."""
    given = options.get("headers") or {}
    pairs = given.multi_items() if isinstance(given, httpx.Headers) else given
    headers = httpx.Headers(_check_headers(pairs.items() if isinstance(pairs, Mapping) else pairs))
    if any(name in headers for name in _PAYMENT_HEADERS):
        raise ValueError("the client sets the payment headers; remove them from headers")
    headers.setdefault(
        "Accept-Encoding", "identity"
    )  # the gateway never decodes bodies, so the client requests no coding
    headers.setdefault("User-Agent", f"tollway/{tollway.__version__}")
    key = options.get("idempotency_key")
    if key is not None:
        headers.update(_check_headers([("Idempotency-Key", key)]))
    return headers


_BODIES = ("content", "data", "files", "json")


def _read_body(url: httpx.URL, headers: httpx.Headers, options: CallOptions) -> bytes:
    """The body of a call, as httpx encodes it; sets its `Content-Type`. Raises ValueError, TypeError."""
    content, data, files = options.get("content"), options.get("data"), options.get("files")
    given = [name for name in _BODIES if options.get(name) is not None]
    if len(given) > 1 and given != ["data", "files"]:
        raise ValueError(f"a call takes one body, not {' and '.join(given)}; only data and files go together")
    if data is not None and not isinstance(data, Mapping):
        raise TypeError("data must be a mapping of form fields; pass bytes and text as content")
    if isinstance(content, AsyncIterable) and not isinstance(content, Iterable):
        raise TypeError("an asynchronous iterator cannot be read here; pass content as bytes")
    boundary = secrets.token_hex(16)
    has_boundary = bool(files) and "Content-Type" not in headers
    if has_boundary:
        headers["Content-Type"] = f"multipart/form-data; boundary={boundary}"
    request = httpx.Request(
        "POST", url, headers=headers, content=content, data=data, files=files, json=options.get("json")
    )
    body = _read_stream(request)
    if "Content-Type" in request.headers:
        headers["Content-Type"] = request.headers["Content-Type"]
    if has_boundary:
        # The boundary follows from the body, so that two runs of the same request have the same bytes and the same idempotency key
        # names both. The first boundary is random, so no file contains it.
        parts = body.split(boundary.encode())
        final = hashlib.sha256(b"\0".join(parts)).hexdigest()[: len(boundary)]
        headers["Content-Type"] = f"multipart/form-data; boundary={final}"
        body = final.encode().join(parts)
    return body


def _read_stream(request: httpx.Request) -> bytes:
    """The bytes of a body, an iterator's too: it is sent again after a 402. Raises ValueError above `REQUEST_BYTES_MAX`."""
    assert isinstance(request.stream, httpx.SyncByteStream)
    body = bytearray()
    for chunk in request.stream:
        body += chunk
        if len(body) > REQUEST_BYTES_MAX:
            raise ValueError(
                f"a body must have at most {REQUEST_BYTES_MAX >> 20} MiB; split it into several calls"
            )
    return bytes(body)


def _check_headers(pairs: Iterable[tuple[str | bytes, str | bytes]]) -> list[tuple[str, str]]:
    """Returns the headers if they are valid by RFC 9110 §5.1 and §5.5, without obs-text. Raises `HeaderInvalid`."""
    checked = []
    for raw_name, raw_value in pairs:
        name, value = (
            part.decode("latin-1") if isinstance(part, bytes) else part for part in (raw_name, raw_value)
        )
        if not _TOKEN.fullmatch(name):
            raise HeaderInvalid(
                f"{name[:80]!r} is no valid name of a header: use letters, digits and !#$%&'*+.^_`|~-"
            )
        if not _FIELD_VALUE.fullmatch(value):
            raise HeaderInvalid(f"the value of the header {name[:80]} must be visible ASCII, spaces and tabs")
        checked.append((name, value))
    return checked
