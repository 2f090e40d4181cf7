"""The operations of a listing as somebody outside uses them: what to send, what comes back, what it costs. One model for
the documents, the tools of MCP and the pages. Pure.

The provider's document is a stranger's: nothing here fails on it, texts are cleaned and cut, and its words never become
the name of a tool.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tollway.money import Price
from tollway.registry.listing import Listing

Place = Literal["path", "query", "header", "body"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of an operation. `name` is unique in it; `parameter` is what it is called at its place (empty for a
    body)."""

    name: str
    place: Place
    parameter: str
    is_required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SoldOperation:
    """`tool`: a name made by the gateway, unique in the listing and stable over its revisions, `[a-z0-9_]{1,64}`.
    `path`: the template below the endpoint as in the provider's document, such as `/v1/cities/{city}`; empty for the
    endpoint itself. `summary`, `description`: the provider's words, cleaned; untrusted. `input_schema`: one closed object over the
    names of `arguments`, whole in itself (local `$defs` only). `body_type`: the media type of a body, None without one.
    `is_any`: nothing is documented, so the method and path stand for whatever the listing serves."""

    tool: str
    method: str
    path: str
    summary: str
    description: str
    arguments: tuple[Argument, ...]
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    body_type: str | None
    price: Price
    is_any: bool = False


def list_sold_operations(listing: Listing) -> tuple[SoldOperation, ...]:
    """In the order of the document; then priced operations that it does not name. Never empty."""
    raise NotImplementedError
