"""The operations of a listing, for a request that none of them serves or that names no path: those of the provider's document, and those with a price of their own. Pure.

Everything here is untrusted text of a gateway and a provider: a member of a wrong type is left out, and every number of operations and characters has a maximum.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from tollway.client.safe_text import format_value, plain_line

OPERATIONS_MAX = 2_000
"""As many as a document may have."""
ROOT_OPERATIONS_MAX = 10
PATH_CHARACTERS_MAX = 200
"""A longer path is left out: a comparison takes the square of its length."""
SIMILARITY_MIN = 0.6

_METHODS = ("get", "put", "post", "delete", "options", "head", "patch")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedOperation:
    """`path`: a template. `price`: with the currency, such as `0.01 USDC` or, of a metered price, `up to 0.02 USDC`; empty where it is not known."""

    method: str
    path: str
    price: str

    def describe(self) -> str:
        return f"{self.method} {self.path}  {self.price}".rstrip()


def list_operations(details: Mapping[str, Any]) -> list[OfferedOperation]:
    """The operations of the details of a listing: the document's in its order, then priced ones that it does not have."""
    priced = list(_list_priced(details))
    common = _format_price(details, details)
    methods = details.get("methods")
    served = {one.upper() for one in methods if isinstance(one, str)} if isinstance(methods, list) else set()
    documented = [
        OfferedOperation(method=method, path=path, price=_find_price(priced, method, path, common))
        for method, path in _list_documented(details.get("openapi"))
        if not served or method in served or (method == "HEAD" and "GET" in served)
    ]
    known = {(one.method, _shape(one.path)) for one in documented}
    return [*documented, *(one for one in priced if (one.method, _shape(one.path)) not in known)]


def _list_priced(details: Mapping[str, Any]) -> Iterator[OfferedOperation]:
    operations = details.get("operations")
    for operation in operations[:OPERATIONS_MAX] if isinstance(operations, list) else []:
        if isinstance(operation, Mapping):
            method, path = _clean(operation.get("method")), _clean(operation.get("path"))
            if len(path) <= PATH_CHARACTERS_MAX:
                price = _format_price(operation, details)
                yield OfferedOperation(method=method, path=path, price=price)


def _list_documented(document: object) -> Iterator[tuple[str, str]]:
    paths = document.get("paths") if isinstance(document, Mapping) else None
    remaining = OPERATIONS_MAX
    for path, entry in paths.items() if isinstance(paths, Mapping) else ():
        if not isinstance(path, str) or not path.startswith("/") or len(path) > PATH_CHARACTERS_MAX:
            continue
        for method in _METHODS:
            if isinstance(entry, Mapping) and isinstance(entry.get(method), Mapping) and remaining > 0:
                remaining -= 1
                yield method.upper(), _clean(path)


def _find_price(priced: Sequence[OfferedOperation], method: str, path: str, common: str) -> str:
    """The price of the most specific priced operation that covers the path, as the gateway finds it; else the common one."""
    found = [one for one in priced if one.method == method and _covers(one.path, path)]
    best = min(found, key=lambda one: [_is_variable(part) for part in one.path.split("/")], default=None)
    return common if best is None else best.price


def _covers(template: str, path: str) -> bool:
    parts, given = template.rstrip("/").split("/"), path.rstrip("/").split("/")
    return len(parts) == len(given) and all(
        _is_variable(part) or part == here for part, here in zip(parts, given, strict=True)
    )


def _is_variable(segment: str) -> bool:
    """A parameter of a priced operation is a whole segment."""
    return segment.startswith("{") and segment.endswith("}")


def _shape(path: str) -> str:
    return "/".join("{}" if _is_variable(part) else part for part in path.rstrip("/").split("/"))


def _format_price(priced: Mapping[str, Any], details: Mapping[str, Any]) -> str:
    price = priced.get("pricePerRequest")
    if not isinstance(price, str):
        return ""
    words = f"{_clean(price)} {_clean(details.get('currency'))}"
    return words if priced.get("metering") is None else f"up to {words}"


def _clean(text: object) -> str:
    return plain_line(format_value(text))


# ---- A request without a path.


def list_beside_root(document: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], int]:
    """The operations of an API that has none at `/`, at most `ROOT_OPERATIONS_MAX`, and how many more it has. None where the root is an operation, or where the API
    names no operation: a request without a path is then a call of it. `document`: for agents, or the details."""
    given = document.get("operations")
    operations = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    if any(one.get("path") in ("", "/") for one in operations):
        return [], 0
    left_out = document.get("operationsLeftOut")
    shown = operations[:ROOT_OPERATIONS_MAX]
    return shown, len(operations) - len(shown) + (left_out if isinstance(left_out, int) else 0)


def describe_entry(operation: Mapping[str, Any]) -> str:
    """Such as `GET /quote/{symbol}  0.01 USDC`, of an operation of an agent document."""
    words = [_clean(operation.get(name)) for name in ("method", "path", "price")]
    return f"{words[0]} {words[1]}  {words[2]}".rstrip()


# ---- The nearest one.


def serves(operations: Sequence[OfferedOperation], *, method: str, path: str) -> bool:
    """Whether an operation has exactly this method and path. Its 404 is then about what the path names."""
    given = _read_path(path)
    return any(one.method == method.upper() and _fill(one.path, given) == given for one in operations)


def order_by_similarity(
    operations: Sequence[OfferedOperation], *, method: str, path: str
) -> list[OfferedOperation]:
    """The operations, those first that are most similar to a request; equal ones in their order."""
    scores = {id(one): _score(one, method=method, given=_read_path(path)) for one in operations}
    return sorted(operations, key=lambda one: -scores[id(one)])


def find_near_operation(operations: Sequence[OfferedOperation], *, method: str, path: str) -> str | None:
    """The operation that is most similar to a request, with the parameters of the request in its template; None where none is similar, or where one serves it."""
    if not operations or serves(operations, method=method, path=path):
        return None
    given = _read_path(path)
    best = order_by_similarity(operations, method=method, path=path)[0]
    if _score(best, method=method, given=given) <= SIMILARITY_MIN:
        return None
    return f"{best.method} {_fill(best.path, given)}"


def _score(operation: OfferedOperation, *, method: str, given: str) -> float:
    similarity = SequenceMatcher(None, _fill(operation.path, given).lower(), given.lower()).ratio()
    return similarity + (0.05 if operation.method.upper() == method.upper() else 0.0)


def _read_path(path: str) -> str:
    given = path.partition("?")[0].partition("#")[0][:PATH_CHARACTERS_MAX]
    return given if given.startswith("/") else f"/{given}"


def _fill(template: str, path: str) -> str:
    """The template with the segments of the path in place of its parameters."""
    segments, given = template.split("/"), path.split("/")
    if len(segments) != len(given):
        return template
    return "/".join(
        here if _is_variable(part) and here else part for part, here in zip(segments, given, strict=True)
    )
