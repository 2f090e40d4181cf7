"""What a contract is written with: operations, parameters, and the answers that each of them can give, by error code and
not by status. Pure.

Which status a code gets, and its title, is told by whoever builds the document (`SiteProblemKind`): it stands in one table of
the door. A problem is declared nowhere but through its code, so that the document cannot name one that does not exist.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tollway.discovery.site_schemas import Schema, schema_ref
from tollway.errors import Code

PROBLEM_TYPE = "application/problem+json"
QUOTE_CODES = frozenset(
    {
        Code.PAYMENT_REQUIRED,
        Code.PAYMENT_MALFORMED,
        Code.PAYMENT_EXPIRED,
        Code.PAYMENT_METHOD_UNSUPPORTED,
        Code.PAYMENT_SETTLEMENT_FAILED,
        Code.PAYMENT_INSUFFICIENT,
        Code.PAYMENT_VERIFICATION_FAILED,
    }
)
"""These come with terms: what is to be paid, and how."""

QUOTE_RESPONSE = "PaymentRequired"
"""The name of their answer among the components."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteProblemKind:
    """What is the same for every problem of one code. `is_delayed`: it comes with `Retry-After`."""

    status: int
    is_delayed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteOperation:
    """One method of one path. `responses`: by status, what is no problem. `codes`: what else it can answer.

    `is_wallet`: a wallet proves itself. `sign_in_status`: where its refusals come under another status than their own.
    """

    method: str
    path: str
    name: str
    tag: str
    summary: str
    responses: Mapping[str, Schema]
    codes: tuple[Code, ...]
    description: str = ""
    parameters: tuple[Schema, ...] = ()
    body: Schema | None = None
    is_wallet: bool = False
    is_session: bool = False


def parameter(name: str, schema: Schema, description: str = "", *, place: str = "query") -> dict[str, Any]:
    """Optional, but in a path."""
    described = {"description": description} if description else {}
    needed = {"required": True} if place == "path" else {}
    return {"name": name, "in": place, **needed, **described, "schema": schema}


def parameter_ref(name: str) -> dict[str, Any]:
    """A parameter of the components by its name."""
    return {"$ref": f"#/components/parameters/{name}"}


def json_body(schema: Schema, *, is_required: bool = True) -> dict[str, Any]:
    return {"required": is_required, "content": {"application/json": {"schema": schema}}}


def response(
    description: str,
    schema: Schema | None = None,
    *,
    media_type: str = "application/json",
    headers: Sequence[str] = (),
) -> dict[str, Any]:
    """An answer that is no problem. `headers`: names of the components."""
    content = {} if schema is None else {"content": {media_type: {"schema": schema}}}
    return {"description": description, **_headers(headers), **content}


def _headers(names: Sequence[str]) -> dict[str, Any]:
    return {"headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names}} if names else {}


class ProblemResponses:
    """Collects the problems of all operations, each set of codes once. `components` are what the operations refer to."""

    def __init__(self, kinds: Mapping[Code, SiteProblemKind]) -> None:
        self._kinds = kinds
        self._names: dict[tuple[int, tuple[Code, ...]], str] = {}
        self.components: dict[str, Any] = {}

    def refer(self, codes: Iterable[Code]) -> dict[str, Any]:
        """The answers of these codes by status."""
        by_status: dict[int, list[Code]] = {}
        for code in sorted(set(codes), key=list(Code).index):
            by_status.setdefault(self._kinds[code].status, []).append(code)
        return {
            str(status): {"$ref": f"#/components/responses/{self._name(status, tuple(found))}"}
            for status, found in sorted(by_status.items())
        }

    def _name(self, status: int, codes: tuple[Code, ...]) -> str:
        if QUOTE_CODES.issuperset(codes):
            self.components.setdefault(QUOTE_RESPONSE, _quote_response())
            return QUOTE_RESPONSE
        known = self._names.get((status, codes))
        if known is None:
            number = sum(1 for other, _ in self._names if other == status)
            known = f"P{status}" + (f"-{number + 1}" if number else "")
            self._names[status, codes] = known
            self.components[known] = self.problem(status, codes)
        return known

    def problem(self, status: int, codes: Sequence[Code], *, headers: Sequence[str] = ()) -> dict[str, Any]:
        """An answer that is one of these problems."""
        described = {"code": {"enum": [code.value for code in codes]}}
        schema = {**schema_ref("Problem"), "properties": described}
        delay = ["Retry-After"] if all(self._kinds[code].is_delayed for code in codes) else []
        return response("A problem.", schema, media_type=PROBLEM_TYPE, headers=[*delay, *headers])


def _quote_response() -> dict[str, Any]:
    described: dict[str, Any] = {
        "code": {"enum": sorted(code.value for code in QUOTE_CODES)},
        "payment": schema_ref("Terms"),
        "x402Version": {"const": 1},
        "error": {"type": "string"},
        "accepts": {"type": "array", "items": {"type": "object"}},
    }
    return response(
        "What is to be paid, and how: `payment` for every rail, `PAYMENT-REQUIRED` for x402 v2, `accepts` for "
        "x402 v1, `WWW-Authenticate: Payment` for MPP. Nothing was spent.",
        {**schema_ref("Problem"), "properties": described},
        media_type=PROBLEM_TYPE,
        headers=["PAYMENT-REQUIRED", "WWW-Authenticate"],
    )
