"""Warnings about what a provider's OpenAPI document loses in its listing: another base path, operations and references that cannot be read. Pure.

A document is never refused for these: what remains is sold. Without a warning the provider finds the loss when a caller pays for an operation that answers 404,
or when an agent sees an operation without its parameters.
"""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from tollway.registry.draft import ListingWarning
from tollway.registry.listing import Listing
from tollway.registry.openapi import METHODS, list_in, read_path, resolve_in, resolve_pointer
from tollway.registry.text import join_lines

NAMED_MAX, NAME_CHARACTERS_MAX = 5, 80
"""How many names a warning has, and the characters of each."""

_DATA_MEMBERS = frozenset({"example", "examples", "default", "enum", "const"})
"""Members whose values are data of the API. A `$ref` in them is no reference."""


def list_document_warnings(listing: Listing) -> tuple[ListingWarning, ...]:
    """The warnings about the document of a listing; none without a document."""
    document = listing.openapi
    if not document:
        return ()
    found = (
        _warn_about_servers(listing, document),
        _warn_about_operations(document),
        _warn_about_references(document),
    )
    return tuple(warning for warning in found if warning is not None)


def _warn_about_servers(listing: Listing, document: Mapping[str, Any]) -> ListingWarning | None:
    """The first server counts where none of them has the base path of the endpoint."""
    paths = [path for server in list_in(document, "servers") if (path := _read_base_path(server)) is not None]
    endpoint = urlsplit(listing.endpoint)
    own = endpoint.path.rstrip("/")
    if not paths or own in paths:
        return None
    proposed = f"{endpoint.scheme}://{endpoint.netloc}{paths[0]}"
    detail = (
        f"The servers of the document have the base path `{_name(paths[0]) or '/'}`, and the endpoint has `{own or '/'}`. The gateway calls "
        f"the endpoint, followed by the path of the operation. If the operations lie under the base path of the document, set the endpoint "
        f"to {_name(proposed)}."
    )
    return ListingWarning(code="servers_differ", detail=detail, pointer="/endpoint")


def _read_base_path(server: object) -> str | None:
    """The path of a server object, without its final slash; variables have their defaults. None where it cannot be read."""
    url = server.get("url") if isinstance(server, Mapping) else None
    if not isinstance(url, str):
        return None
    variables = server.get("variables") if isinstance(server, Mapping) else None
    for name, variable in variables.items() if isinstance(variables, Mapping) else ():
        default = variable.get("default") if isinstance(variable, Mapping) else None
        if isinstance(default, str):
            url = url.replace("{" + str(name) + "}", default)
    try:
        path = urlsplit(url).path.rstrip("/")
    except ValueError:
        return None
    return path if path.startswith("/") or not path else "/" + path


def _warn_about_operations(document: Mapping[str, Any]) -> ListingWarning | None:
    ignored = list(_find_ignored_operations(document))
    if not ignored:
        return None
    detail = (
        f"{len(ignored)} {'operations of the document are' if len(ignored) > 1 else 'operation of the document is'} not part of the listing, "
        f"because a path cannot be read: {_list_names(ignored)}. A path begins with `/`, has no query, no `.` or `..` segment, and no two "
        "variables side by side."
    )
    return ListingWarning(code="operations_ignored", detail=detail, pointer="/openapi")


def _find_ignored_operations(document: Mapping[str, Any]) -> Iterator[str]:
    paths = document.get("paths")
    for path, raw in paths.items() if isinstance(paths, Mapping) else ():
        entry = resolve_in(document, raw)
        if entry is not None and read_path(path) is None and not str(path).startswith("x-"):
            yield from (f"{method} {path}" for method in METHODS if isinstance(entry.get(method), Mapping))


def _warn_about_references(document: Mapping[str, Any]) -> ListingWarning | None:
    ignored = [
        reference
        for reference in dict.fromkeys(_find_references(document))
        if resolve_pointer(document, reference) is None
    ]
    if not ignored:
        return None
    detail = (
        f"{len(ignored)} {'references of the document lead' if len(ignored) > 1 else 'reference of the document leads'} outside it or to nothing, "
        f"and {'are' if len(ignored) > 1 else 'is'} left out: {_list_names(ignored)}. Bundle the document into one file: the gateway follows no "
        "reference to another one."
    )
    return ListingWarning(code="references_ignored", detail=detail, pointer="/openapi")


def _find_references(document: Mapping[str, Any]) -> Iterator[str]:
    """Every `$ref` of the document in its order, repeated ones included. Not recursive: a document may nest as deep as its parser allows."""
    pending: list[object] = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending.extend(reversed(value))
        elif isinstance(value, Mapping):
            reference = value.get("$ref")
            if isinstance(reference, str):
                yield reference
            pending.extend(value[name] for name in reversed(value) if name not in _DATA_MEMBERS)


def _list_names(names: list[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(f"`{_name(name)}`" for name in names[:NAMED_MAX]) + (
        f" and {more} more" if more > 0 else ""
    )


def _name(text: str) -> str:
    return join_lines(text)[:NAME_CHARACTERS_MAX]
