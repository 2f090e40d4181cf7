"""What of a provider's document a listing offers: the operations whose method it takes, the parameters that a caller has to
do with. Pure, and the same for the passage and for everything that describes a listing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tollway.registry.listing import Listing
from tollway.registry.openapi_document import DocumentParameter, ProviderDocument
from tollway.registry.path_reading import priced_verb
from tollway.registry.reserved import STANDARD_HEADERS, is_header_name, is_reserved_header

_IGNORED_HEADERS = frozenset({"accept", "content-type", "authorization"})
"""OpenAPI 3.1 §4.8.12.1: definitions of these are ignored."""


def accepts_method(methods: Sequence[str], method: str) -> bool:
    """`methods`: a listing's. HEAD is where GET is."""
    return not methods or method in methods or priced_verb(method) in methods


def is_sent_by_caller(listing: Listing, parameter: DocumentParameter) -> bool:
    """Not what the gateway adds by itself, nor a header that belongs to HTTP or to the gateway."""
    auth, lower = listing.upstream_auth, parameter.name.lower()
    if auth is not None and lower == auth.name.lower():
        return False
    if parameter.place != "header":
        return True
    return is_header_name(lower) and lower not in _IGNORED_HEADERS and not is_reserved_header(lower)


def has_documented_operations(content: Mapping[str, Any] | None, methods: Sequence[str]) -> bool:
    """Whether a document names anything that a listing of those methods would serve."""
    operations = ProviderDocument(content or {}).operations
    return any(accepts_method(methods, operation.method) for operation in operations)


def list_unforwarded(listing: Listing, *, most: int) -> list[str]:
    """Headers that the document has a caller send, and that would not reach the upstream: the first few."""
    passed = {name.lower() for name in (*STANDARD_HEADERS, *listing.forward_headers)}
    document = ProviderDocument(listing.openapi or {})
    found: dict[str, str] = {}
    for operation in document.operations:
        for parameter in document.list_parameters(operation):
            lower = parameter.name.lower()
            if parameter.place == "header" and lower not in passed and is_sent_by_caller(listing, parameter):
                found.setdefault(lower, parameter.name)
        if len(found) >= most:
            break
    return list(found.values())[:most]
