"""Reads what a person told a command: keys, chain nodes, drafts, bodies, headers. Raises ValueError in plain words.

A key is read from a file or from the environment, and never from an argument.
"""

import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import httpx
from pydantic_core import from_json

from tollway.client import Wallet
from tollway.client.deadline import fetch_bounded
from tollway.client.desk import check_tls

NODE_DEADLINE_S = 10.0
NODE_BYTES_MAX = 64 * 1024
_CHAIN_ID_REQUEST = b'{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}'
DRAFT_BYTES_MAX = 2 * 1024 * 1024


def has_key(key_file: Path | None) -> bool:
    return key_file is not None or bool(os.environ.get("TOLLWAY_PRIVATE_KEY"))


def read_wallet(key_file: Path | None) -> Wallet:
    if key_file is not None:
        return Wallet.from_file(key_file, password=os.environ.get("TOLLWAY_KEY_PASSWORD"))
    return Wallet.from_environment(os.environ)


def read_nodes(given: tuple[str, ...], *, allow_http: bool = False) -> dict[int, str]:
    """`CHAINID=URL` as it is; a bare URL is asked which chain it serves."""
    nodes: dict[int, str] = {}
    for entry in given:
        number, separator, url = entry.partition("=")
        if separator and number.isascii() and number.isdigit():
            nodes[int(number)] = url
        else:
            check_tls(entry, allow_http=allow_http)
            nodes[_fetch_chain_id(entry)] = entry
    return nodes


def _fetch_chain_id(url: str) -> int:
    try:
        _, content = fetch_bounded(
            "POST", url, deadline_s=NODE_DEADLINE_S, bytes_max=NODE_BYTES_MAX, content=_CHAIN_ID_REQUEST
        )
        return int(from_json(content)["result"], 16)
    except (OSError, httpx.HTTPError, httpx.InvalidURL, KeyError, TypeError, ValueError):
        raise ValueError("a chain node does not answer; --rpc takes its URL, or CHAINID=URL") from None


def read_draft(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        raw = file.read_bytes()[:DRAFT_BYTES_MAX]
        draft = tomllib.loads(raw.decode()) if file.suffix == ".toml" else from_json(raw)
    except OSError as exc:
        raise ValueError(f"{file} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise ValueError(f"{file} is neither JSON nor TOML: {exc}") from exc
    if isinstance(draft, dict):
        return draft
    raise ValueError(f"{file} does not hold an object")


def read_content(given: str | None) -> bytes | None:
    if given is None or not given.startswith("@"):
        return None if given is None else given.encode()
    if given == "@-":
        return sys.stdin.buffer.read()
    try:
        return Path(given[1:]).read_bytes()
    except OSError as exc:
        raise ValueError(f"{given[1:]} cannot be read: {exc.strerror}") from exc


def read_headers(given: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in given:
        name, separator, value = line.partition(":")
        if not separator or not name.strip():
            raise ValueError("a header is written as Name: value")
        headers[name.strip()] = value.strip()
    return headers
