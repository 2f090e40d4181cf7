"""The provider's document as the passage uses it: which operations it has, and what a call of one cannot do without. What a
caller forgot is told before any money is looked at.

Pure. The document is a stranger's: whatever it says, nothing here fails, and what is unclear is not required. It refuses
only a call that the provider's own words make useless.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import unquote_plus

from tollway.errors import Code, FieldError, Problem
from tollway.registry.listing import Listing
from tollway.registry.offered_operations import accepts_method, is_sent_by_caller
from tollway.registry.openapi_document import DocumentOperation, DocumentParameter, ProviderDocument
from tollway.registry.path_reading import loose_path, normal_path
from tollway.registry.path_tree import PathTree

REQUEST_SCHEMAS_MAX = 1_000

_PLAIN_TYPES = ("string", "number", "integer", "boolean", "array")
_PLAIN_STYLES = (None, "form", "spaceDelimited", "pipeDelimited")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredParts:
    """What one operation cannot do without."""

    query: tuple[str, ...]
    headers: tuple[str, ...]
    has_body: bool


T = TypeVar("T")


class DescribedOperations(Generic[T]):
    """The operations that a document describes, each with a value, found by method and path."""

    def __init__(self) -> None:
        self._exact: dict[str, PathTree[T]] = {}
        self._loose: dict[str, PathTree[bool]] = {}

    def add(self, *, method: str, path: str, value: T) -> None:
        """`path`: the template as the document writes it."""
        normal = normal_path(path)
        self._exact.setdefault(method, PathTree()).add(normal, value)
        self._loose.setdefault(method, PathTree()).add(loose_path(normal).casefold(), True)

    def find(self, *, method: str, path: str) -> T | None:
        """`path` in normal form."""
        tree = self._exact.get(method)
        found = None if tree is None else tree.find(path)
        if found is None and method == "HEAD":  # where GET is, HEAD is too (RFC 9110 §9.3.2)
            return self.find(method="GET", path=path)
        return found

    def describes(self, *, method: str, rest: str) -> bool:
        return self.find(method=method, path=normal_path(rest)) is not None

    def may_match(self, *, method: str, reading: str) -> bool:
        """Whether a server that ignores case and decodes could take that reading of a path for one of the operations."""
        verbs = ("HEAD", "GET") if method == "HEAD" else (method,)
        trees = (self._loose.get(verb) for verb in verbs)
        return any(tree is not None and tree.find(reading.casefold()) is not None for tree in trees)


class RequestSchema:
    """One listing's document."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._document = ProviderDocument(listing.openapi or {})
        self._required: dict[tuple[str, str], RequiredParts] = {}
        self.operations: DescribedOperations[DocumentOperation] = DescribedOperations()
        for operation in self._document.operations:
            if accepts_method(listing.methods, operation.method):
                self.operations.add(method=operation.method, path=operation.path, value=operation)

    def check(
        self,
        *,
        method: str,
        rest: str,
        query: str,
        headers: Sequence[tuple[bytes, bytes]],
        has_body: bool = True,
    ) -> Problem | None:
        """Refuses (`validation_failed`) a call without what is required; an operation unknown here passes."""
        operation = self.operations.find(method=method.upper(), path=normal_path(rest))
        if operation is None:
            return None
        required = self._read(operation)
        named = {unquote_plus(part.partition("=")[0]) for part in query.split("&")}
        sent = {name.decode("latin-1").lower() for name, _ in headers}
        missing = [name for name in required.query if name not in named]
        missing += [name for name in required.headers if name.lower() not in sent]
        lacks_body = required.has_body and not has_body
        if not missing and not lacks_body:
            return None
        detail = "the provider's document requires it"
        errors = [FieldError(code="required", detail=detail, parameter=name) for name in missing]
        if lacks_body:
            missing.append("the request body")
            errors.append(FieldError(code="required", detail=detail, pointer=""))
        return Problem(
            code=Code.VALIDATION_FAILED,
            detail=f"Missing: {', '.join(missing)}. Nothing was paid or sent.",
            errors=tuple(errors),
            payment_state="none",
        )

    # ---- Reading the document.

    def _read(self, operation: DocumentOperation) -> RequiredParts:
        """When it is first called: a document has many operations, and most are not."""
        key = (operation.method, operation.path)
        required = self._required.get(key)
        if required is None:
            needed = [one for one in self._document.list_parameters(operation) if self._is_needed(one)]
            body = self._document.resolve(operation.content.get("requestBody"))
            required = self._required[key] = RequiredParts(
                query=tuple(one.name for one in needed if one.place == "query"),
                headers=tuple(one.name for one in needed if one.place == "header"),
                has_body=body is not None and body.get("required") is True,
            )
        return required

    def _is_needed(self, parameter: DocumentParameter) -> bool:
        if not parameter.is_required or not is_sent_by_caller(self._listing, parameter):
            return False
        if parameter.place != "query":
            return parameter.place == "header"
        # An object is spread over names of its own, and `content` may mean anything.
        schema = self._document.resolve(parameter.content.get("schema"))
        kind = schema.get("type") if schema is not None else None
        return kind in _PLAIN_TYPES and parameter.content.get("style") in _PLAIN_STYLES


class RequestSchemas:
    """Each document read once per revision of its listing. One per process; safe to use from many tasks at once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], RequestSchema] = {}

    def find(self, listing: Listing) -> RequestSchema | None:
        """None for a listing without a document."""
        if listing.openapi is None:
            return None
        key = (listing.id, listing.revision)
        schema = self._known.get(key)
        if schema is None:
            if len(self._known) >= REQUEST_SCHEMAS_MAX:
                self._known.clear()
            schema = self._known[key] = RequestSchema(listing)
        return schema
