"""Stored answers of upstreams: what a repeat of the same request gets. A port; `storage/answer_store.py` keeps them.

Bounded in size and time; encrypted at rest, because they are what somebody paid for. Losing one costs a repeat,
never money: the ledger do not depend on it.
"""

import struct
from dataclasses import dataclass, field
from typing import Protocol

from tollway.identifiers import Address, CallId


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """Status, headers as they went (or would have gone) to the caller without those about the call, and the body."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes = field(repr=False)


class StoredResponses(Protocol):
    """Safe to use from many tasks and gateways at once. Raises `StorageUnavailable`."""

    async def keep(self, call_id: CallId, payer: Address, answer: StoredResponse, *, now_ms: int) -> bool:
        """Stores an answer durably; older ones go where a limit asks for it. False when it is too large alone."""
        ...

    async def find(self, call_id: CallId, *, now_ms: int) -> StoredResponse | None:
        """The answer of that call, if it is kept and not older than 24 hours."""
        ...

    async def prune(self, *, now_ms: int) -> int:
        """Drops what is too old. Returns how many."""
        ...


_LENGTH = struct.Struct(">I")


def encode_stored_response(answer: StoredResponse) -> bytes:
    """Status, names and values, body: each with its length before it."""
    head = [part for header in answer.headers for part in header]
    parts = [str(answer.status).encode(), *head, answer.body]
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def decode_stored_response(encoded: bytes) -> StoredResponse:
    parts: list[bytes] = []
    at = 0
    while at < len(encoded):
        (length,) = _LENGTH.unpack_from(encoded, at)
        at += _LENGTH.size + length
        parts.append(encoded[at - length : at])
    status, *head, body = parts
    headers = tuple(zip(head[::2], head[1::2], strict=True))
    return StoredResponse(status=int(status), headers=headers, body=body)
