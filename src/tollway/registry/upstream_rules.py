"""The rules of how a listing's upstream is called: endpoint, headers, secret, and the document that describes it. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, cast

from tollway.limits import MIB
from tollway.registry.draft_rules import ENDPOINT_POLICY, DraftRules
from tollway.registry.form import ObjectReader
from tollway.registry.listing import Listing, UpstreamAuth
from tollway.registry.openapi_document import DOCUMENT_OPERATIONS_MAX, count_operations
from tollway.registry.reserved import is_header_name, is_reserved_header

URL_LENGTH_MAX = 2_048
FORWARD_HEADERS_MAX, HEADER_NAME_LENGTH_MAX = 20, 128
SECRET_LENGTH_MAX = 4_096
DOCUMENT_BYTES_MAX = 1 * MIB

_OPENAPI_VERSION = re.compile(r"3\.[012](\.[0-9]+)?(-[0-9A-Za-z.-]+)?")
_DOCUMENT_URL = re.compile(
    r"https?://[A-Za-z0-9._~%\[\]:-]+(/[\x21-\x22\x24-\x7e]*)?(\?[\x21-\x22\x24-\x7e]*)?"
)
_QUERY_NAME = re.compile(r"[A-Za-z0-9._~-]{1,128}")
_SECRET = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


def read_endpoint(reader: ObjectReader, rules: DraftRules) -> str | None:
    endpoint = reader.required_text("endpoint", length_max=URL_LENGTH_MAX)
    if endpoint is None:
        return None
    fault = rules.check_endpoint(endpoint)
    if fault is not None:
        reader.refuse("endpoint", ENDPOINT_POLICY if fault.is_policy else "endpoint", fault.detail)
    return endpoint


def read_forward_headers(reader: ObjectReader) -> tuple[str, ...]:
    if not reader.has("forwardHeaders"):
        return ()
    names = reader.texts("forwardHeaders", count_max=FORWARD_HEADERS_MAX, length_max=HEADER_NAME_LENGTH_MAX)
    for pointer, name in names or ():
        _check_header(reader, pointer, name)
    return tuple(name for _, name in names or ())


def _check_header(reader: ObjectReader, pointer: str, name: str) -> None:
    if not is_header_name(name):
        reader.refuse_at(pointer, "header", "must be a header name of letters, digits and -")
    elif is_reserved_header(name):
        reader.refuse_at(pointer, "header", f"{name} belongs to HTTP or to the gateway")


def read_upstream_auth(
    reader: ObjectReader,
    rules: DraftRules,
    previous: Listing | None,
    *,
    endpoint: str | None,
    forwarded: tuple[str, ...],
) -> UpstreamAuth | None:
    if reader.is_null("upstreamAuth"):
        return None
    if reader.has("upstreamAuth"):
        auth = _read_secret(reader)
    else:
        auth = previous.upstream_auth if previous is not None else None
    if auth is None:
        return None
    if auth.location == "header" and auth.name.lower() in {name.lower() for name in forwarded}:
        reader.refuse("forwardHeaders", "conflict", f"{auth.name} is set by upstreamAuth")
    is_plain = endpoint is not None and not endpoint.lower().startswith("https:")
    if is_plain and not rules.allow_private_endpoints:
        reader.refuse("endpoint", "endpoint", "must be https: the gateway sends the listing's secret there")
    return auth


def _read_secret(reader: ObjectReader) -> UpstreamAuth | None:
    auth = reader.reader("upstreamAuth")
    if auth is None:
        return None
    auth.refuse_unknown(("in", "name", "value"))
    location = auth.one_of("in", ("header", "query"))
    name = auth.required_text("name", length_max=HEADER_NAME_LENGTH_MAX)
    value = auth.required_text("value", length_max=SECRET_LENGTH_MAX)
    if location == "header" and name is not None:
        _check_header(auth, "/upstreamAuth/name", name)
    elif name is not None and not _QUERY_NAME.fullmatch(name):
        auth.refuse("name", "name", "must be letters, digits, and - . _ ~")
    if value is not None and not _SECRET.fullmatch(value):
        auth.refuse("value", "bad_character", "must be printable ASCII without spaces around it")
    if location is None or name is None or value is None:
        return None
    return UpstreamAuth(location=cast(Literal["header", "query"], location), name=name, value=value)


def read_openapi(reader: ObjectReader, previous: Listing | None) -> Mapping[str, Any] | None:
    if not reader.has("openapi"):
        # A new address for the document is fetched by the caller, and replaces what was there.
        return previous.openapi if previous is not None else None
    if reader.is_null("openapi"):
        return None
    document = reader.object("openapi")
    fault = find_document_fault(document) if document is not None else None
    if fault is not None:
        reader.refuse("openapi", "openapi", fault)
    return document


def find_document_fault(document: Mapping[str, Any]) -> str | None:
    """Why this is no OpenAPI document that can be listed; None when it is one. Its details are not judged: what cannot be
    read of it is left out."""
    if "swagger" in document:
        return "is Swagger 2.0; convert it to OpenAPI 3.0 or later"
    version = document.get("openapi")
    if not isinstance(version, str) or not _OPENAPI_VERSION.fullmatch(version):
        return "must be an OpenAPI 3.0, 3.1 or 3.2 document (`openapi: 3.x`)"
    if not isinstance(document.get("paths", {}), Mapping):
        return "must have an object of paths"
    count = count_operations(document)
    if count > DOCUMENT_OPERATIONS_MAX:
        return f"must have at most {DOCUMENT_OPERATIONS_MAX} operations; it has {count}"
    try:
        size = len(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())
    except UnicodeEncodeError:
        return "must be text that UTF-8 can write"
    if size > DOCUMENT_BYTES_MAX:
        return f"must have at most {DOCUMENT_BYTES_MAX} bytes"
    return None


def read_openapi_url(reader: ObjectReader, previous: Listing | None) -> str | None:
    if not reader.has("openapiUrl"):
        return previous.openapi_url if previous is not None else None
    if reader.is_null("openapiUrl"):
        return None
    url = reader.text("openapiUrl", length_max=URL_LENGTH_MAX)
    if url is not None and not _DOCUMENT_URL.fullmatch(url):
        reader.refuse("openapiUrl", "url", "must be an absolute http(s) URL without user name and fragment")
    return url
