"""Requests as the pipeline gets them, without a server: `sample_request` gives one, `GivenBody` is the body of one."""

from tests.kit.gateway import NOW_MS
from tollway.gateway.messages import ClientGone, ProxyRequest
from tollway.gateway.target import Target
from tollway.ids import ListingId


class GivenBody:
    """A body in given chunks; `is_gone`: the caller leaves after them."""

    def __init__(self, *chunks: bytes, length: int | None = -1, is_gone: bool = False) -> None:
        """`length`: what the caller says; -1: the length of the chunks."""
        self.chunks = list(chunks)
        self.length = sum(map(len, chunks)) if length == -1 else length
        self.is_present = self.length != 0
        self.bytes_read = 0
        self.reserved = 0
        self.is_proven = False
        self.is_broken = False
        self.is_gone = is_gone

    def prove(self) -> None:
        self.is_proven = True

    def reserve(self, size: int) -> None:
        self.reserved += size

    async def read_chunk(self) -> bytes:
        if self.chunks:
            chunk = self.chunks.pop(0)
            self.bytes_read += len(chunk)
            return chunk
        if self.is_gone:
            self.is_broken = True
            raise ClientGone
        return b""

    async def has_disconnected(self) -> bool:
        return self.is_gone and not self.chunks


def sample_request(
    method: str = "GET",
    rest: str = "",
    query: str = "",
    *,
    client: str = "203.0.113.5",
    body: GivenBody | None = None,
    **headers: str,
) -> ProxyRequest:
    """`headers`: with `_` for `-`. `body` None: the request has none."""
    return ProxyRequest(
        method=method,
        listing_id=ListingId("api_quotes"),
        target=Target(
            api_id="api_quotes", rest=rest, query=query, signed=f"{rest}?{query}" if query else rest
        ),
        headers=[(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        body=body or GivenBody(),
        client_address=client,
        request_id="req_1",
        received_ms=NOW_MS,
    )
