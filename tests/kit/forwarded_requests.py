"""Requests as a gateway forwards them to a provider, signed; and a verifier that knows the gateway's keys without a network."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic_core import to_json

from tollway.client.provider import ForwardedVerifier
from tollway.gateway.request_signing import BodyCoverage, UpstreamSigner, cover_body
from tollway.ids import Address

GATEWAY = "https://gw.example.com"
AUTHORITY = "api.example.com"
API_ID = "api_1"
PAYER = Address(b"\xbb" * 20)
NOW_S = 1_800_000_000
SIGNER = UpstreamSigner.derive([b"\x07" * 32])
TARGET = "/v1/quote?x=%20a"
BODY = b'{"a":1}'
NONCE = "ab" * 16

Pairs = list[tuple[str, str]]


@dataclass
class KnownGateway:
    """The clock of a verifier and the keys that it can fetch; `signer` None: the directory cannot be read."""

    now_s: float = NOW_S
    signer: UpstreamSigner | None = SIGNER

    def fetch(self, url: str) -> bytes:
        if self.signer is None:
            raise httpx.ConnectError("down")
        return bytes(to_json(self.signer.describe()))

    def open_verifier(
        self,
        *,
        endpoint: str = f"https://{AUTHORITY}/v1",
        remember: Callable[[str, float], bool] | None = None,
    ) -> ForwardedVerifier:
        return ForwardedVerifier(
            GATEWAY,
            endpoint=endpoint,
            api_ids=[API_ID],
            fetch=self.fetch,
            now_s=lambda: self.now_s,
            ticks_s=lambda: self.now_s,
            remember=remember,
        )


def sign_forwarded(
    body: bytes = BODY,
    *,
    signer: UpstreamSigner = SIGNER,
    coverage: BodyCoverage | None = None,
    **changes: Any,
) -> Pairs:
    """The headers with which a gateway signs a POST of `body` to `TARGET`. `coverage`: the signed part of the body, by default its digest.
    `changes`: of the arguments of the signer."""
    if coverage is None:
        coverage = cover_body(body, length=len(body), declared=None) if body else BodyCoverage()
    call = {
        "method": "POST",
        "authority": AUTHORITY,
        "target": TARGET,
        "api_id": API_ID,
        "call_id": "call_1",
        "payer": PAYER,
        "body": coverage,
        "created_s": NOW_S,
        "nonce": NONCE,
    }
    return list(signer.sign(**{**call, **changes}))
