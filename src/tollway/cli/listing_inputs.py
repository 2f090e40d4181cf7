"""The members of a listing as options: one option for each member, and how its text becomes the member of the body.

A secret comes from a file and never from an argument, which every user of the machine can read. An input that cannot be read raises ValueError with a
sentence.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic_core import from_json

from tollway.cli.inputs import DRAFT_BYTES_MAX
from tollway.client.safe_text import plain_line

SECRET_BYTES_MAX = 8 * 1024

_OPTIONS: dict[str, tuple[Any, str | None, str]] = {
    "name": (str, "name", "The name of the API."),
    "price": (str, "pricePerRequest", "Per request, such as 0.01."),
    "currency": (str, "currency", "USDC, ETH, …"),
    "endpoint": (str, "endpoint", "The URL that the gateway calls. It is public."),
    "description": (str, "description", "Plain text."),
    "pay_to": (str, "payTo", "The wallet that receives payments."),
    "network": (list[str], "networks", "eip155:…, repeatable."),
    "method": (list[str], "methods", "GET, POST, …, repeatable. Default: any."),
    "tag": (list[str], "tags", "Repeatable."),
    "operation": (list[str], "operations", 'A price of its own: "GET /cities/{city}=0.05", repeatable.'),
    "other_paths": (str, "otherPaths", "serve, or refuse: only operations are served."),
    "openapi": (str, None, "The OpenAPI document: a file, or the URL from which the gateway reads it."),
    "secret_file": (Path, None, "The file with the secret that the gateway sends upstream."),
    "secret_header": (str, None, "The header that carries the secret."),
    "secret_query": (str, None, "The query parameter that carries the secret."),
    "timeout": (int, "timeoutSeconds", "Seconds until the upstream must have answered."),
    "charge_on": (str, "chargeOn", "success, or answered: also for most 4xx of the upstream."),
    "rate": (str, "rateLimit", "Calls of one payer: 100/60 is 100 calls in 60 seconds."),
    "forward_header": (list[str], "forwardHeaders", "A request header that goes upstream, repeatable."),
    "signature": (str, "signature", "any, or bound: only signatures that cover the request."),
    "forward_signature": (str, "forwardSignature", "ed25519, or none: forwarded calls are not signed."),
}
"""Option, as the parameter of a command -> its type, the member of the body where one option is one member, and its help."""

_OPERATION = re.compile(r"([A-Za-z-]+)\s+(\S+)\s*=\s*([0-9.]+)")
_RATE = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")
_URL = re.compile(r"https?://", re.IGNORECASE)


_Command = TypeVar("_Command", bound=Callable[..., None])


def add_member_options(command: _Command) -> _Command:
    """Gives a command an option for each member of a listing, after `--file`. The command gets their values as `**members`."""
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=None,
            annotation=Annotated[kind | None, typer.Option(help=text)],
        )
        for name, (kind, _, text) in _OPTIONS.items()
    ]
    signature = inspect.signature(command)
    own = [parameter for name, parameter in signature.parameters.items() if name != "members"]
    start = list(signature.parameters).index("file") + 1
    command.__signature__ = signature.replace(  # type: ignore[attr-defined]  # typer reads it
        parameters=[*own[:start], *options, *own[start:]]
    )
    return command


def read_members(given: Mapping[str, Any]) -> dict[str, Any]:
    """The members of the body that the options name. `given`: an option that is absent is None, or empty."""
    members: dict[str, Any] = {}
    for option, (_, member, _) in _OPTIONS.items():
        value = given.get(option)
        if member is not None and value not in (None, (), []):
            members[member] = _READ[option](value) if option in _READ else value
    openapi = given.get("openapi")
    if openapi is not None:
        members |= (
            {"openapiUrl": openapi} if _URL.match(openapi) else {"openapi": read_document(Path(openapi))}
        )
    secret = _read_secret(given)
    return members if secret is None else {**members, "upstreamAuth": secret}


def _read_operations(given: list[str]) -> list[dict[str, str]]:
    operations = []
    for text in given:
        match = _OPERATION.fullmatch(text.strip())
        if match is None:
            raise ValueError(f'write an operation as "GET /cities/{{city}}=0.05", not {plain_line(text)!r}')
        operations.append({"method": match[1].upper(), "path": match[2], "pricePerRequest": match[3]})
    return operations


def _read_rate(given: str) -> dict[str, int]:
    match = _RATE.fullmatch(given.strip())
    if match is None:
        raise ValueError("write a rate as CALLS/SECONDS, such as 100/60")
    return {"calls": int(match[1]), "perSeconds": int(match[2])}


def read_document(file: Path) -> dict[str, Any]:
    """The OpenAPI document of a JSON file. The gateway reads YAML at a URL."""
    try:
        with file.open("rb") as opened:
            raw = opened.read(DRAFT_BYTES_MAX)
        document = from_json(raw)
    except OSError as exc:
        raise ValueError(f"{file} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise ValueError(
            f"{file} is not JSON: {exc}. Convert it, or give the URL of the document with --openapi"
        ) from exc
    if isinstance(document, dict):
        return document
    raise ValueError(f"{file} must contain one object: an OpenAPI document")


def _read_secret(given: Mapping[str, Any]) -> dict[str, str] | None:
    """The members of `upstreamAuth` that the options name; None without one."""
    file, header, query = (given.get(name) for name in ("secret_file", "secret_header", "secret_query"))
    if header is not None and query is not None:
        raise ValueError("a secret goes into --secret-header or --secret-query, not both")
    secret: dict[str, str] = {}
    if header is not None or query is not None:
        secret = {"in": "header" if query is None else "query", "name": str(query or header)}
    if file is not None:
        try:
            with file.open("rb") as opened:
                secret["value"] = opened.read(SECRET_BYTES_MAX).decode().strip()
        except OSError as exc:
            raise ValueError(f"{file} cannot be read: {exc.strerror}") from exc
        except UnicodeDecodeError as exc:
            raise ValueError(f"{file} is not text in UTF-8") from exc
    return secret or None


_READ: dict[str, Callable[[Any], object]] = {"operation": _read_operations, "rate": _read_rate}
"""Option -> what makes the member of its text, where the text is not the member."""
