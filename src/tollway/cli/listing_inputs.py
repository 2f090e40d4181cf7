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

from tollway.cli.inputs import DRAFT_BYTES_MAX, read_file
from tollway.client.safe_text import plain_line
from tollway.registry.listing_fields import BY_OPTION, Kind, ListingField

SECRET_BYTES_MAX = 8 * 1024

_TYPES: Mapping[Kind, Any] = {
    Kind.NUMBER: int,
    Kind.WORDS: list[str],
    Kind.PHRASES: list[str],
    Kind.NETWORKS: list[str],
    Kind.OPERATIONS: list[str],
    Kind.METERING: Path,
}
"""The type of a field's option. Other kinds: `str`."""

_OPERATION = re.compile(r"([A-Za-z-]+)\s+(\S+)\s*=\s*([0-9.]+)")
_RATE = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")
_COUNT = re.compile(r"[0-9]{1,9}")
_URL = re.compile(r"https?://", re.IGNORECASE)


_Command = TypeVar("_Command", bound=Callable[..., None])


def add_member_options(command: _Command) -> _Command:
    """Gives a command an option for each member of a listing, after `--file`. The command gets their values as `**members`."""
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=None,
            annotation=Annotated[_type_of(field, name) | None, typer.Option(help=text)],
        )
        for field in BY_OPTION
        for name, text in field.options.items()
    ]
    signature = inspect.signature(command)
    own = [parameter for name, parameter in signature.parameters.items() if name != "members"]
    start = list(signature.parameters).index("file") + 1
    command.__signature__ = signature.replace(  # type: ignore[attr-defined]  # typer reads it
        parameters=[*own[:start], *options, *own[start:]]
    )
    return command


def _type_of(field: ListingField, option: str) -> Any:
    return Path if option == "secret_file" else _TYPES.get(field.kind, str)


def read_members(given: Mapping[str, Any]) -> dict[str, Any]:
    """The members of the body that the options name. `given`: an option that is absent is None, or empty."""
    members: dict[str, Any] = {}
    for field in BY_OPTION:
        for option in field.options if field.kind not in _OWN_KINDS else ():
            value = given.get(option)
            if value not in (None, (), []):
                members[field.member] = _READ[field.kind](value) if field.kind in _READ else value
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


def _read_free_calls(given: str) -> dict[str, int]:
    count, slash, period = given.strip().partition("/")
    if not _COUNT.fullmatch(count) or bool(slash) != bool(_COUNT.fullmatch(period)):
        raise ValueError("write free calls as COUNT, such as 10, or as COUNT/SECONDS, such as 10/86400")
    return {"count": int(count)} | ({"perSeconds": int(period)} if slash else {})


def read_document(file: Path) -> dict[str, Any]:
    """The OpenAPI document of a JSON file. The gateway reads YAML at a URL."""
    return _read_object(
        file, name="an OpenAPI document", advice="Convert it, or give the URL of the document with --openapi"
    )


def _read_metering(file: Path) -> dict[str, Any]:
    advice = "It has the member `metering` of a listing, such as the documentation shows"
    return _read_object(file, name="the formula of a metered price", advice=advice)


def _read_object(file: Path, *, name: str, advice: str) -> dict[str, Any]:
    raw = read_file(file, DRAFT_BYTES_MAX)
    try:
        document = from_json(raw)
    except ValueError as exc:
        raise ValueError(f"{file} is not JSON: {exc}. {advice}") from exc
    if isinstance(document, dict):
        return document
    raise ValueError(f"{file} must contain one object: {name}")


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
            secret["value"] = read_file(file, SECRET_BYTES_MAX).decode().strip()
        except UnicodeDecodeError as exc:
            raise ValueError(f"{file} is not text in UTF-8") from exc
    return secret or None


_OWN_KINDS = (Kind.DOCUMENT, Kind.SECRET)
"""Their options are not one member: `read_members` reads them apart."""
_READ: Mapping[Kind, Callable[[Any], object]] = {
    Kind.OPERATIONS: _read_operations,
    Kind.METERING: _read_metering,
    Kind.RATE_LIMIT: _read_rate,
    Kind.FREE_CALLS: _read_free_calls,
}
"""The member of an option's text, where the text is not the member."""
