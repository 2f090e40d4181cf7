"""The members of a listing as options: one option for each member, and how its text becomes the member of the body.

A secret comes from a file and never from an argument, which every user of the machine can read. An input that cannot be read raises ValueError with a
sentence.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic_core import from_json

from tollway.cli.inputs import DRAFT_BYTES_MAX
from tollway.client.safe_text import plain_line

SECRET_BYTES_MAX = 8 * 1024

Name = Annotated[str | None, typer.Option("--name", help="The name of the API.")]
Price = Annotated[str | None, typer.Option("--price", help="Per request, such as 0.01.")]
Currency = Annotated[str | None, typer.Option("--currency", help="USDC, ETH, …")]
EndpointUrl = Annotated[
    str | None, typer.Option("--endpoint", help="The URL that the gateway calls. It is public.")
]
Description = Annotated[str | None, typer.Option("--description", help="Plain text.")]
PayTo = Annotated[str | None, typer.Option("--pay-to", help="The wallet that receives payments.")]
Networks = Annotated[list[str] | None, typer.Option("--network", help="eip155:…, repeatable.")]
Methods = Annotated[
    list[str] | None, typer.Option("--method", help="GET, POST, …, repeatable. Default: any.")
]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Repeatable.")]
Operations = Annotated[
    list[str] | None,
    typer.Option("--operation", help='A price of its own: "GET /cities/{city}=0.05", repeatable.'),
]
OtherPaths = Annotated[
    str | None, typer.Option("--other-paths", help="serve, or refuse: only operations are served.")
]
OpenApi = Annotated[
    str | None,
    typer.Option(
        "--openapi", help="The OpenAPI document: a file, or the URL from which the gateway reads it."
    ),
]
SecretFile = Annotated[
    Path | None,
    typer.Option("--secret-file", help="The file with the secret that the gateway sends upstream."),
]
SecretHeader = Annotated[
    str | None, typer.Option("--secret-header", help="The header that carries the secret.")
]
SecretQuery = Annotated[
    str | None, typer.Option("--secret-query", help="The query parameter that carries the secret.")
]
Timeout = Annotated[
    int | None, typer.Option("--timeout", help="Seconds until the upstream must have answered.")
]
ChargeOnOption = Annotated[
    str | None, typer.Option("--charge-on", help="success, or answered: also for most 4xx of the upstream.")
]
Rate = Annotated[
    str | None, typer.Option("--rate", help="Calls of one payer: 100/60 is 100 calls in 60 seconds.")
]
ForwardHeaders = Annotated[
    list[str] | None,
    typer.Option("--forward-header", help="A request header that goes upstream, repeatable."),
]
Signature = Annotated[
    str | None, typer.Option("--signature", help="any, or bound: only signatures that cover the request.")
]
ForwardSignatureOption = Annotated[
    str | None, typer.Option("--forward-signature", help="ed25519, or none: forwarded calls are not signed.")
]

_OPERATION = re.compile(r"([A-Za-z-]+)\s+(\S+)\s*=\s*([0-9.]+)")
_RATE = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")
_URL = re.compile(r"https?://", re.IGNORECASE)


def read_members(given: Mapping[str, Any]) -> dict[str, Any]:
    """The members of the body that the options name. `given`: the parameters of a command; an option that is absent is None, or empty."""
    members = {member: given[option] for option, member in _PLAIN.items() if _is_given(given, option)}
    for option, (member, read) in _READ.items():
        if _is_given(given, option):
            members[member] = read(given[option])
    openapi = given.get("openapi")
    if openapi is not None:
        members |= (
            {"openapiUrl": openapi} if _URL.match(openapi) else {"openapi": read_document(Path(openapi))}
        )
    secret = _read_secret(given)
    return members if secret is None else {**members, "upstreamAuth": secret}


def _is_given(given: Mapping[str, Any], option: str) -> bool:
    """A repeatable option that is absent is an empty tuple or list."""
    value = given.get(option)
    return value is not None and value not in ((), [])


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


_PLAIN = {
    "name": "name",
    "price": "pricePerRequest",
    "currency": "currency",
    "endpoint": "endpoint",
    "description": "description",
    "pay_to": "payTo",
    "network": "networks",
    "method": "methods",
    "tag": "tags",
    "other_paths": "otherPaths",
    "timeout": "timeoutSeconds",
    "charge_on": "chargeOn",
    "forward_header": "forwardHeaders",
    "signature": "signature",
    "forward_signature": "forwardSignature",
    "status": "status",
}
"""Parameter of a command -> member of the body, where the text of the option is the value of the member."""

_READ: dict[str, tuple[str, Callable[[Any], object]]] = {
    "operation": ("operations", _read_operations),
    "rate": ("rateLimit", _read_rate),
}
