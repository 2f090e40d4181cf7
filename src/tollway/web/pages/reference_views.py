"""The gateway's contract as records for the pages of the reference: every operation by group, one operation, one schema. Pure.

The document is `openapi.yaml` as it is written: ours alone, without featured operations, so no text of a provider is on these pages. It names the problems of
each operation, which `/openapi.json` names for each status only. The template gets parameters and schemas as they are written, with the functions that describe them.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tollway.errors import Code
from tollway.registry.openapi import METHODS

_SCHEMAS = "#/components/schemas/"
_PROBLEMS, _PROBLEM_SETS = "x-problems", "x-problem-sets"
_PROBLEM = "application/problem+json"

Contents = Sequence[tuple[str, Mapping[str, Any]]]
"""Media types of a body, each with its schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceLine:
    """An operation in the list. `id`: its name in the contract and in the path of its page."""

    id: str
    group: str
    method: str
    path: str
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceResponse:
    """A response of an operation. `status`: a status or `default`. `problems`: the names and codes of those that it can be, where it names them itself."""

    status: str
    description: str
    contents: Contents
    problems: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceOperation:
    """An operation with all that its page shows. `credentials`: the ways to sign in, one of which is needed; empty where none is. `problems`: their names and codes."""

    line: ReferenceLine
    description: str
    credentials: Sequence[str]
    parameters: Sequence[Mapping[str, Any]]
    bodies: Contents
    responses: Sequence[ReferenceResponse]
    problems: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSchema:
    """A named schema. `text`: as JSON; `used`: the names of the schemas that it refers to."""

    name: str
    text: str
    used: Sequence[str]


class Reference:
    """The operations and schemas of a contract, by name. It never changes after its construction. `name_problem`: of the page of a problem."""

    def __init__(self, document: Mapping[str, Any], *, name_problem: Callable[[Code], str]) -> None:
        self._name_problem = name_problem
        self._components = document["components"]
        self._security: Sequence[Mapping[str, Any]] = document.get("security", ())
        self._sets: Mapping[str, Sequence[str]] = document[_PROBLEM_SETS]
        self.operations = {
            operation["operationId"]: self._view_operation(path, method, item, operation)
            for path, item in document["paths"].items()
            for method, operation in item.items()
            if method in METHODS
        }
        self.schemas = {
            name: ReferenceSchema(
                name=name, text=write_schema(schema), used=tuple(sorted(set(_list_refs(schema))))
            )
            for name, schema in self._components["schemas"].items()
        }
        order = {group["name"]: place for place, group in enumerate(document["tags"])}
        lines = sorted(
            (one.line for one in self.operations.values()),
            key=lambda line: (order.get(line.group, len(order)), line.group),
        )
        self.groups = [(name, tuple(found)) for name, found in groupby(lines, key=lambda line: line.group)]

    def _view_operation(
        self, path: str, method: str, item: Mapping[str, Any], operation: Mapping[str, Any]
    ) -> ReferenceOperation:
        line = ReferenceLine(
            id=operation["operationId"],
            group=_group_of(path, operation),
            method=method.upper(),
            path=path,
            summary=operation.get("summary", ""),
        )
        responses = dict(operation["responses"])
        codes = self._list_codes(responses.pop(_PROBLEMS, ()))
        return ReferenceOperation(
            line=line,
            description=operation.get("description", ""),
            credentials=_list_credentials(operation.get("security", self._security)),
            parameters=[
                self._resolve(one) for one in (*item.get("parameters", ()), *operation.get("parameters", ()))
            ],
            bodies=_list_contents(operation.get("requestBody", {})),
            responses=[self._view_response(str(status), one) for status, one in responses.items()],
            problems=self._name_problems(dict.fromkeys(codes)),
        )

    def _view_response(self, status: str, given: Mapping[str, Any]) -> ReferenceResponse:
        response = self._resolve(given)
        problem = response.get("content", {}).get(_PROBLEM, {}).get("schema", {})
        codes = problem.get("properties", {}).get("code", {}).get("enum", ())
        return ReferenceResponse(
            status=status,
            description=response.get("description", ""),
            contents=[one for one in _list_contents(response) if not (codes and one[0] == _PROBLEM)],
            problems=self._name_problems(codes),
        )

    def _name_problems(self, codes: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """The names of the pages of problems, with their codes."""
        return tuple((self._name_problem(Code(code)), code) for code in codes)

    def _list_codes(self, names: Sequence[str]) -> Iterator[str]:
        """The codes of a list that names codes and sets of codes."""
        for name in names:
            if name.startswith("$"):
                yield from self._list_codes(self._sets[name[1:]])
            else:
                yield name

    def _resolve(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part itself, in place of a reference to a component."""
        if "$ref" not in given:
            return given
        kind, name = given["$ref"].removeprefix("#/components/").split("/")
        found: Mapping[str, Any] = self._components[kind][name]
        return found


def _group_of(path: str, operation: Mapping[str, Any]) -> str:
    """The first tag of the operation; without one, the resource of its path below `/api/v2`."""
    tags = operation.get("tags")
    return str(tags[0]) if tags else path.removeprefix("/api/v2/").split("/")[0].capitalize()


def _list_credentials(security: Sequence[Mapping[str, Any]]) -> list[str]:
    """The credentials of which an operation needs one; none where it also works without (an empty alternative)."""
    return [] if {} in security else [name for one in security for name in one]


def _list_contents(part: Mapping[str, Any]) -> Contents:
    return [(media_type, one.get("schema", {})) for media_type, one in part.get("content", {}).items()]


def name_schema(schema: Mapping[str, Any]) -> str:
    """The name of the schema that this one is a reference to, with nothing beside it; else empty."""
    return str(schema["$ref"]).removeprefix(_SCHEMAS) if set(schema) == {"$ref"} else ""


def describe_schema(schema: Mapping[str, Any]) -> str:
    """A schema of a parameter in a few words: its type and its limits."""
    if "enum" in schema:
        kind = " | ".join(str(one) for one in schema["enum"])
    else:
        kind = str(schema.get("type", "string"))
    words = {"minimum": "≥", "maximum": "≤", "maxLength": "characters ≤", "default": "default"}
    limits = [f"{word} {schema[name]}" for name, word in words.items() if name in schema]
    return ", ".join([kind, *limits])


def write_schema(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False)


def _list_refs(schema: object) -> Iterator[str]:
    """The names of the schemas that a schema refers to."""
    if isinstance(schema, Mapping):
        for name, value in schema.items():
            if name == "$ref" and isinstance(value, str):
                yield value.removeprefix(_SCHEMAS)
            yield from _list_refs(value)
    elif isinstance(schema, list):
        for one in schema:
            yield from _list_refs(one)
