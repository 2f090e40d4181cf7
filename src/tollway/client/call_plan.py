"""One call as the caller wants it: read, checked, and ready to be sent any number of times. No I/O."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TypedDict

import httpx

from tollway import __version__
from tollway.client.checkout import RAILS, CallRules, RailChoice
from tollway.client.control import API_PREFIX
from tollway.client.failures import HeaderInvalid
from tollway.client.quote import Cap
from tollway.ids import keccak256

CapText = str | Mapping[str, str] | Cap | None

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
    """One call as the caller wants it. `target` is what the signature covers of its URL."""

    api_id: str
    method: str
    url: httpx.URL
    target: bytes
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)
    rules: CallRules

    @property
    def idempotency_key(self) -> str:
        """Empty without one."""
        return str(httpx.Headers(list(self.headers)).get("Idempotency-Key", ""))

    def digest(self, gateway: str) -> bytes:
        """What makes two runs the same request: gateway, listing, method, target, idempotency key, body."""
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
    """What a call takes beside the listing and the path.

    `prepay`: how many calls to pay for when a payment is due (default 1). `max_price`: for this call, instead of the
    client's; `max_fee` and `rail` likewise. `idempotency_key`: makes a repeat get the stored answer, and lets the client repeat on a broken connection.
    """

    method: str
    json: object
    content: bytes | str | None
    params: Mapping[str, str] | None
    headers: Mapping[str, str] | None
    max_price: CapText
    max_fee: CapText
    rail: RailChoice
    prepay: int
    idempotency_key: str | None


def plan_call(root: str, api_id: str, path: str, options: CallOptions, *, defaults: CallRules) -> CallPlan:
    """`root`: the gateway's URL. Raises ValueError for what cannot be sent, TypeError for an unknown
    option."""
    check_names(options, CallOptions.__annotations__, of="a call")
    if not _API_ID.fullmatch(api_id):
        raise ValueError("an API id consists of letters, digits, _ and -")
    prefix = f"{API_PREFIX}/gateway/{api_id}"
    rest = path if path[:1] in ("", "/", "?") else "/" + path
    url = httpx.URL(f"{root}{prefix}{rest}")
    url = _with_params(url, options.get("params"))
    if not url.raw_path.startswith(prefix.encode()):
        raise ValueError("the path leaves the listing")
    target = url.raw_path[len(prefix) :]
    if target[:1] not in (b"", b"/", b"?"):
        raise ValueError("the path leaves the listing")
    headers, body = _read_content(options)
    method = options.get("method", "GET").upper()
    if not _TOKEN.fullmatch(method):
        raise ValueError("a method is a word such as GET")
    max_price, max_fee = options.get("max_price"), options.get("max_fee")
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
            prepay=options.get("prepay", 1),
            patience=defaults.patience,
            is_repeatable=method in _SAFE_METHODS or "Idempotency-Key" in headers,
            rail=check_rail(options.get("rail", defaults.rail)),
        ),
    )


def check_names(given: Iterable[str], known: Collection[str], *, of: str) -> None:
    """Raises TypeError for the first option that is not known: a limit that is misspelt would not hold."""
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise TypeError(f"{of} has no option {name!r}{hint}")


def check_rail(rail: RailChoice) -> RailChoice:
    """Raises ValueError for another word."""
    if rail not in RAILS:
        raise ValueError("the rail is auto, tx or x402")
    return rail


def _with_params(url: httpx.URL, params: Mapping[str, str] | None) -> httpx.URL:
    return url.copy_merge_params(params) if params else url


def _read_content(options: CallOptions) -> tuple[httpx.Headers, bytes]:
    """The headers and the body of a call. Raises ValueError."""
    json_body, content = options.get("json"), options.get("content")
    if json_body is not None and content is not None:
        raise ValueError("a call has either json or content")
    headers = httpx.Headers(_check_headers(options.get("headers") or {}))
    if any(name in headers for name in _PAYMENT_HEADERS):
        raise ValueError("the client sets the payment headers itself")
    body = content.encode() if isinstance(content, str) else content or b""
    if json_body is not None:
        body = json.dumps(json_body, ensure_ascii=False, separators=(",", ":")).encode()
        headers.setdefault("Content-Type", "application/json")
    headers.setdefault("Accept-Encoding", "identity")  # the gateway never inflates; neither need we
    headers.setdefault("User-Agent", f"tollway/{__version__}")
    key = options.get("idempotency_key")
    if key is not None:
        headers.update(_check_headers({"Idempotency-Key": key}))
    return headers, body


def _check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The same. RFC 9110 §5.1 and §5.5, without obs-text. Raises `HeaderInvalid`."""
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise HeaderInvalid(f"{name[:80]!r} is no name of a header: letters, digits and !#$%&'*+.^_`|~-")
        if not _FIELD_VALUE.fullmatch(value):
            raise HeaderInvalid(
                f"the value of the header {name[:80]} has characters other than visible ASCII"
            )
    return headers
