"""The gateway's own HTTP contract (`/openapi.json`): `openapi.yaml` with what the process fills in, then paid operations of listings.

`openapi.yaml` names error codes and no statuses. The statuses come from the table in `web/http/problems.py`, so the document cannot declare a problem that does
not exist. Crawlers of paid APIs read one file of an origin and stop at 64 KiB: the document never exceeds that. Featured operations first lose their schemas,
then are left out. Texts of providers are cleaned and truncated before they reach this module, and never become a name.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic_core import from_json

from tollway.discovery.form_fields import FILE_BYTES_SCHEMA
from tollway.discovery.gateway_operator import UNNAMED, GatewayOperator
from tollway.discovery.operations import ApiOperation, Argument
from tollway.errors import Code
from tollway.registry.openapi import METHODS, parse_yaml_object
from tollway.web.http.problems import PROBLEM_KINDS, PROBLEM_TYPE

CONTRACT_PATH = Path(__file__).with_name("openapi.yaml")
DOCUMENT_BYTES_MAX = 63_900
FEATURED_MAX = 40
SUMMARY_LENGTH_MAX = 120
PROBLEM_MEDIA_TYPE = PROBLEM_TYPE.decode()

_QUOTE_RESPONSE, _RELAYED_RESPONSE = "PaymentRequired", "Relayed"
_PROBLEMS, _PROBLEM_SETS = "x-problems", "x-problem-sets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The public facts of a gateway in the documents of its site. `public_url` has no final slash."""

    public_url: str
    version: str
    operator: GatewayOperator = UNNAMED


@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturedOperation:
    """A paid operation of a listing. `payment`: its `x-payment-info`. `title`: the cleaned name of the listing."""

    listing_id: str
    title: str
    operation: ApiOperation
    payment: Mapping[str, Any]

    @property
    def method(self) -> str:
        """The name of the operation in a path item."""
        return self.operation.method.lower()


class SiteContract:
    """Builds `/openapi.json`. Reads a file and takes milliseconds: call it in a thread."""

    def __init__(self, site: Site) -> None:
        self._site = site
        # The first build loads the document and the YAML parser, so that a start and an idle process need neither. After that only the JSON text stays.
        self._template: bytes | None = None

    def build(self, featured: Sequence[FeaturedOperation] = ()) -> bytes:
        """The document as compact JSON of at most `DOCUMENT_BYTES_MAX`, with at most `FEATURED_MAX` operations of `featured`."""
        if self._template is None:
            self._template = _render(load_contract(CONTRACT_PATH.read_bytes(), self._site))
        return _render_with_featured(from_json(self._template), featured[:FEATURED_MAX])


# ---- The file.


def load_contract(raw: bytes, site: Site) -> dict[str, Any]:
    """The OpenAPI document without featured operations. `raw`: the text of `openapi.yaml`.

    Raises ValueError for text that is not such YAML, for an unknown code or set of codes, and for a code that no operation declares.
    """
    document = parse_yaml_object(raw)
    sets: dict[str, list[str]] = document.pop(_PROBLEM_SETS)
    written = document["components"]["responses"]
    problems = _ProblemResponses(quote_response=written[_QUOTE_RESPONSE])
    for operation in _list_operations(document):
        operation["responses"] = _expand_problems(operation["responses"], sets, problems)
    problems.refuse_undeclared()
    plain = {name: one for name, one in written.items() if PROBLEM_MEDIA_TYPE not in one.get("content", {})}
    document["components"]["responses"] = {**plain, **problems.components, **written}
    _fill_in(document, site)
    return document


def _list_operations(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for item in document["paths"].values():
        yield from (operation for method, operation in item.items() if method in METHODS)


def _expand_problems(
    responses: Mapping[str, Any], sets: Mapping[str, Sequence[str]], problems: "_ProblemResponses"
) -> dict[str, Any]:
    """The responses by status, with those of the problems at the place of `x-problems`."""
    expanded: dict[str, Any] = {}
    for status, response in responses.items():
        expanded.update(
            problems.refer(_list_codes(response, sets)) if status == _PROBLEMS else {status: response}
        )
    return expanded


def _list_codes(names: Sequence[str], sets: Mapping[str, Sequence[str]]) -> Iterator[Code]:
    for name in names:
        if not name.startswith("$"):
            yield Code(name)
        elif name[1:] in sets:
            yield from _list_codes(sets[name[1:]], sets)
        else:
            raise ValueError(f"{_PROBLEM_SETS} has no set {name}")


def _fill_in(document: dict[str, Any], site: Site) -> None:
    """The version, the operator, and the public URL in front of each path of the site."""
    operator = site.operator
    contact_uri = operator.contact or operator.url or f"{site.public_url}/"
    is_mail = contact_uri.startswith("mailto:")
    reached = {"email": contact_uri.removeprefix("mailto:")} if is_mail else {"url": contact_uri}
    about, service = document["info"], document["x-service-info"]
    about["version"] = site.version
    about["contact"] = {"name": operator.name or about["contact"]["name"], **reached}
    if operator.terms_url is not None:
        about["termsOfService"] = operator.terms_url
    document["servers"] = [{"url": site.public_url}]
    for paths in (service["docs"], document["x-agentcash-guidance"]):
        paths.update({name: site.public_url + path for name, path in paths.items()})


class _ProblemResponses:
    """The response components of problems: one for each status, with every code that an operation declares under it. Operations refer to them. One for
    each set of codes would take 3 KB more of the 64 KiB."""

    def __init__(self, *, quote_response: Mapping[str, Any]) -> None:
        self._quote_response = quote_response
        schema = quote_response["content"][PROBLEM_MEDIA_TYPE]["schema"]
        self._quote_codes = {Code(name) for name in schema["properties"]["code"]["enum"]}
        self._by_status: dict[int, set[Code]] = {}
        self._declared: set[Code] = set()
        self.components: dict[str, Any] = {}

    def refer(self, codes: Iterable[Code]) -> dict[str, Any]:
        """A reference for each status of the codes."""
        by_status: dict[int, list[Code]] = {}
        for code in sorted(set(codes), key=list(Code).index):
            by_status.setdefault(PROBLEM_KINDS[code].status, []).append(code)
            self._declared.add(code)
        return {
            str(status): _response_ref(self._name(status, tuple(found)))
            for status, found in sorted(by_status.items())
        }

    def refuse_undeclared(self) -> None:
        missing = set(Code) - self._declared - {Code.INTERNAL_ERROR}
        if missing:
            raise ValueError(f"no operation declares {', '.join(sorted(missing))}")

    def _name(self, status: int, codes: tuple[Code, ...]) -> str:
        if self._quote_codes.issuperset(codes):
            self.components[_QUOTE_RESPONSE] = self._quote_response
            return _QUOTE_RESPONSE
        declared = self._by_status.setdefault(status, set())
        declared.update(codes)
        name = f"P{status}"
        self.components[name] = _describe_problem(sorted(declared, key=list(Code).index))
        return name


def _describe_problem(codes: Sequence[Code]) -> dict[str, Any]:
    """A response that is a problem with one of these codes."""
    is_delayed = all(PROBLEM_KINDS[code].retry_after_s is not None for code in codes)
    headers = {"headers": {"Retry-After": {"$ref": "#/components/headers/Retry-After"}}} if is_delayed else {}
    schema = {
        "$ref": "#/components/schemas/Problem",
        "properties": {"code": {"enum": [code.value for code in codes]}},
    }
    return {"description": "A problem.", **headers, "content": {PROBLEM_MEDIA_TYPE: {"schema": schema}}}


def _response_ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/responses/{name}"}


# ---- Featured operations.


def _render_with_featured(document: dict[str, Any], featured: Sequence[FeaturedOperation]) -> bytes:
    """Adds operations without their schemas up to `DOCUMENT_BYTES_MAX`, then the schemas of those operations in the remaining bytes."""
    bytes_left = DOCUMENT_BYTES_MAX - len(_render(document))
    added: list[tuple[FeaturedOperation, dict[str, Any]]] = []
    for one in featured:
        path, short = describe_featured(one, has_schemas=False)
        methods = document["paths"].get(path, {})
        cost = len(_render({path: {one.method: short}}))
        if cost <= bytes_left and one.method not in methods:
            document["paths"][path] = {**methods, one.method: short}
            added.append((one, short))
            bytes_left -= cost
    for one, short in added:
        path, whole = describe_featured(one, has_schemas=True)
        cost = len(_render(whole)) - len(_render(short))
        if cost <= bytes_left:
            document["paths"][path][one.method] = whole
            bytes_left -= cost
    return _render(document)


def describe_featured(featured: FeaturedOperation, *, has_schemas: bool) -> tuple[str, dict[str, Any]]:
    """Path and operation. Without schemas each argument still has its name."""
    operation = featured.operation
    path = f"/api/v2/gateway/{featured.listing_id}" + quote(operation.path, safe="/{}%:@!$&'()*+,;=~-._")
    summary = operation.summary or featured.title or operation.method
    described: dict[str, Any] = {
        "operationId": f"{featured.listing_id}.{operation.tool}",
        "tags": ["Featured"],
        "summary": summary[:SUMMARY_LENGTH_MAX],
        "security": [],
        "x-payment-info": _keep_first_offer(featured.payment),
    }
    parameters = [
        _describe_parameter(one, operation.input_schema, has_schema=has_schemas)
        for one in operation.arguments
        if one.place != "body"
    ]
    if parameters:
        described["parameters"] = parameters
    body = next((one for one in operation.arguments if one.place == "body"), None)
    if body is not None:
        schema = _body_schema(operation, body) if has_schemas else {}
        described["requestBody"] = {
            "required": body.is_required,
            "content": {operation.body_type or "application/json": {"schema": schema}},
        }
    described["responses"] = _featured_responses()
    if has_schemas and operation.output_schema is not None and _is_self_contained(operation.output_schema):
        described["responses"]["200"] = {
            "description": "OK",
            "content": {"application/json": {"schema": operation.output_schema}},
        }
    return path, described


def _featured_responses() -> dict[str, Any]:
    """Short, since there may be forty of them. The operations of a gateway call declare the other responses."""
    status = PROBLEM_KINDS[Code.PAYMENT_REQUIRED].status
    return {"default": _response_ref(_RELAYED_RESPONSE), str(status): _response_ref(_QUOTE_RESPONSE)}


def _keep_first_offer(payment: Mapping[str, Any]) -> dict[str, Any]:
    """The API's own OpenAPI document has all offers, with their descriptions."""
    short = dict(payment)
    offers = short.get("offers")
    if offers:
        short["offers"] = [{name: value for name, value in offers[0].items() if name != "description"}]
    return short


def _describe_parameter(
    argument: Argument, input_schema: Mapping[str, Any], *, has_schema: bool
) -> dict[str, Any]:
    return {
        "name": argument.parameter,
        "in": argument.place,
        "required": argument.is_required or argument.place == "path",
        "schema": _argument_schema(argument, input_schema) if has_schema else {"type": "string"},
    }


def _argument_schema(argument: Argument, input_schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of the argument; an open one where it refers to definitions, which this document does not contain."""
    schema = input_schema.get("properties", {}).get(argument.name, {})
    return dict(schema) if _is_self_contained(schema) else {}


def _body_schema(operation: ApiOperation, body: Argument) -> dict[str, Any]:
    """The schema of a body over HTTP, where a file is its bytes and not base64."""
    if operation.is_body_file:
        return dict(FILE_BYTES_SCHEMA)
    schema = _argument_schema(body, operation.input_schema)
    properties = schema.get("properties", {})
    files = {field.name: field for field in operation.form_fields if field.is_file}
    if files.keys().isdisjoint(properties):
        return schema
    one, many = dict(FILE_BYTES_SCHEMA), {"type": "array", "items": dict(FILE_BYTES_SCHEMA)}
    written = {
        name: (many if files[name].is_list else one) if name in files else own
        for name, own in properties.items()
    }
    return {**schema, "properties": written}


def _is_self_contained(schema: Mapping[str, Any]) -> bool:
    return '"$ref"' not in json.dumps(schema)


def _render(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), default=dict).encode()
