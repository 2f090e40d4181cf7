"""Writes `docs/response-headers.md` from the table in the code: `python -m tests.kit.response_header_page`."""

from pathlib import Path

from tollway.registry.response_headers import DROPPED_HEADERS, URL_HEADERS, DroppedHeaders, Group, UrlHeaders

PAGE = Path(__file__).parents[2] / "docs" / "response-headers.md"

INTRODUCTION = """# Response headers

A caller gets the status, the headers and the body of an API as the API sends them. The headers of this page are the exception: the gateway drops them by class, because
its address is shared by all APIs and by its own pages, and because proxies and caches stand in front of it. `*` stands for any text, and an underscore in a name
counts as a hyphen. Trailers and interim responses (`103`) of an API are not returned either. In a few headers the gateway [rewrites URLs](#urls).

A [trial call](providers.md#test-it-without-paying) names each dropped header in `warnings`, as `header_not_returned`; so does the response to a create or an edit for
the response headers of an OpenAPI document.

This page is written from the code (`tollway/registry/response_headers.py`, `python -m tests.kit.response_header_page`); a test compares both.
"""

TITLES: tuple[tuple[Group, str, str], ...] = (
    (
        "intermediary",
        "What a proxy or a cache obeys",
        "An edge in front of the gateway reads these in every response, and takes them for the words of its operator.",
    ),
    (
        "origin",
        "What a browser keeps for an origin",
        "All APIs and the pages of a gateway are one origin.",
    ),
    (
        "gateway",
        "What the gateway itself says",
        "Of these a caller gets the gateway's own, or none.",
    ),
    (
        "framing",
        "What belongs to one connection",
        "The gateway frames its responses itself.",
    ),
)

CACHE_RULE = """## Cache-Control

The response to a paid call is for its caller. The gateway reads `Cache-Control` directive by directive (RFC 9111 §5.2): `private` or `no-store` without an argument stays;
without one of them `private` is added. `public`, `s-maxage`, `must-understand` and `private="…"` are removed, and a value that is no list of directives becomes
`private, no-store`. So does a response without the header, also that of a free call. The rule of a free call is otherwise returned as it is.
"""


URLS = """## URLs

A URL in one of these headers leads through the gateway where it is below your `endpoint`: `Link: </v1/items?page=2>; rel="next"` of an API at `https://api.example.com/v1`
becomes `Link: </api/v2/gateway/{apiId}/items?page=2>; rel="next"`. A relative URL that is not below it becomes absolute, because that path at the gateway is another page.
A URL elsewhere is returned as it is, and so is a value that cannot be read; only `Location` is dropped then. In `Link` (RFC 8288 §3) the targets and the `anchor` are rewritten, and
nothing else. The query parameter of `upstreamAuth` is removed from all of them. URLs in bodies are not rewritten.
"""

BUFFERING = """## X-Accel-Buffering

A response of the type `text/event-stream` has `X-Accel-Buffering: no` from the gateway, so that nginx and proxies like it send each event at once. The API's own
`X-Accel-Buffering` is dropped, as all of its family.
"""


def write_page() -> str:
    parts = [INTRODUCTION]
    for group, title, sentence in TITLES:
        lines = ["| header | what it does | source |", "|---|---|---|"]
        lines += [_write_row(row) for row in DROPPED_HEADERS if row.group == group]
        parts.append(f"## {title}\n\n{sentence}\n\n" + "\n".join(lines) + "\n")
    rows = ["| header | what the URL is | source |", "|---|---|---|", *map(_write_url_row, URL_HEADERS)]
    return "\n".join([*parts, URLS, "\n".join(rows) + "\n", BUFFERING, CACHE_RULE])


def _write_row(row: DroppedHeaders) -> str:
    names = ", ".join(f"`{name}`" for name in row.names)
    schemes = f" with {', '.join(row.schemes)}" if row.schemes else ""
    return f"| {names}{schemes} | {row.effect} | {_link(row.source)} |"


def _write_url_row(row: UrlHeaders) -> str:
    return f"| {', '.join(f'`{name}`' for name in row.names)} | {row.effect} | {_link(row.source)} |"


def _link(source: str) -> str:
    label = source.removeprefix("https://").partition("/")[0] if "://" in source else "here"
    return f"[{label}]({source})"


if __name__ == "__main__":
    PAGE.write_text(write_page())
