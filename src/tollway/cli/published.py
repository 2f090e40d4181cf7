"""What `tollway listing publish` prints on a terminal: of a dry run the ten lines that decide, of a new listing what its provider does next."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from tollway.cli.outline import format_arguments
from tollway.cli.output import format_price, list_objects, read_object
from tollway.client.safe_text import format_value, plain_line

OPERATIONS_SHOWN_MAX = 4
DRY_RUN_LINES_MAX = 10
NAME_CHARACTERS_MAX, LINE_CHARACTERS_MAX = 80, 200
UNPROTECTED = "endpoint_unprotected"
"""The warning about an endpoint that answers requests that the gateway has not sent."""


def describe_dry_run(preview: Mapping[str, Any]) -> list[str]:
    """At most `DRY_RUN_LINES_MAX` lines about the listing that a dry run would create. Its warnings are not among them. `preview`: the gateway's response."""
    agent = read_object(preview.get("agent"))
    operations, left_out = list_objects(agent.get("operations")), agent.get("operationsLeftOut")
    count = len(operations) + (left_out if isinstance(left_out, int) else 0)
    networks = preview.get("networks")
    chains = [plain_line(format_value(one)) for one in networks] if isinstance(networks, list) else []
    lines = [
        "Nothing was created. The listing would be:",
        f"{_read(preview, 'name', NAME_CHARACTERS_MAX)}, {plain_line(format_price(preview))} a call, {_read(preview, 'status')}",
        f"paid to {_read(preview, 'payTo')} on {', '.join(chains)}",
        f"calls go to {_read(preview, 'endpoint')}",
        *(_describe_operation(one) for one in operations[:OPERATIONS_SHOWN_MAX]),
    ]
    if count > OPERATIONS_SHOWN_MAX:
        lines.append(f"  and {count - OPERATIONS_SHOWN_MAX} more operations")
    lines.append("--json prints all members, and the document that agents read")
    assert len(lines) <= DRY_RUN_LINES_MAX
    return lines


def _describe_operation(operation: Mapping[str, Any]) -> str:
    """Such as `  GET /quote/{symbol}  0.01 USDC  symbol* string`."""
    schema = read_object(operation.get("inputSchema"))
    arguments = format_arguments(schema) if schema.get("properties") else ""
    method, path, price = (_read(operation, name) for name in ("method", "path", "price"))
    return "  " + "  ".join(word for word in (f"{method} {path}".strip(), price, _cut(arguments)) if word)


def list_next_steps(listing: Mapping[str, Any], *, gateway: str) -> Iterator[str]:
    """The lines about a new listing: its page, the commands that prove and test it, and what is missing before it sells. `gateway`: the URL of the gateway."""
    api_id = shlex.quote(_read(listing, "id"))
    yield "Next:"
    yield f"  its page      {gateway}/apis/{api_id}"
    if listing.get("verified") is not True:
        yield f"  prove it      tollway listing verify {api_id} --show"
    yield f"  test a call   tollway listing test {' '.join([api_id, *_find_test_words(listing)])}"
    if any(warning.get("code") == UNPROTECTED for warning in list_objects(listing.get("warnings"))):
        yield "  protect it    Your API answers everybody: the endpoint answered a request without the gateway's signature."
        yield "                Require the signature or a secret there, before callers use the endpoint without payment."


def _find_test_words(listing: Mapping[str, Any]) -> list[str]:
    """The path of the first operation with a GET, as the words of `listing test`; else of the first one, with its method."""
    rows = list_objects(listing.get("operations"))
    row = next((one for one in rows if one.get("method") == "GET"), rows[0] if rows else None)
    if row is None:
        return []
    method, path = _read(row, "method"), _read(row, "path")
    return [shlex.quote(path), *([] if method == "GET" else ["-X", shlex.quote(method)])]


def _cut(text: str) -> str:
    return format_value(text, characters_max=LINE_CHARACTERS_MAX)


def _read(document: Mapping[str, Any], name: str, characters_max: int = LINE_CHARACTERS_MAX) -> str:
    return plain_line(format_value(document.get(name), characters_max=characters_max))
