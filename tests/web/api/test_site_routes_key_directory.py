"""The directory of the gateway's signing keys."""

import base64
import re

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from starlette.applications import Starlette

from tollway.client.provider import DIRECTORY_PATH as READ_PATH
from tollway.client.provider import read_directory
from tollway.gateway.request_signing import DIRECTORY_VALID_S, SigningKey, UpstreamSigner
from tollway.web.api.site_routes import (
    KEY_DIRECTORY_CACHE_S,
    KEY_DIRECTORY_PATH,
    KEY_DIRECTORY_TYPE,
    key_directory_router,
)

SECRETS = [b"\x01" * 32, b"\x02" * 32]
NOW_S = 1_800_000_000


async def read() -> httpx.Response:
    router = key_directory_router(
        UpstreamSigner.derive(SECRETS),
        authority="gw.example.com",
        now_ms=lambda: NOW_S * 1000 + 999,
        entropy=lambda size: b"\x05" * size,
    )
    app = Starlette(routes=router.routes)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="https://gw.example.com") as client:
        return await client.get(KEY_DIRECTORY_PATH, headers={"Host": "evil.test"})


async def test_lists_all_keys_the_current_one_first() -> None:
    answer = await read()
    assert KEY_DIRECTORY_PATH == READ_PATH == "/.well-known/http-message-signatures-directory"
    assert (answer.status_code, answer.headers["content-type"]) == (200, KEY_DIRECTORY_TYPE)
    keys = answer.json()["keys"]
    assert [key["kid"] for key in keys] == [SigningKey.derive(secret).keyid for secret in SECRETS]
    assert all(key.keys() == {"kty", "crv", "x", "kid", "use", "alg"} for key in keys)
    assert read_directory(answer.content).keys() == {key["kid"] for key in keys}


async def test_each_key_signs_the_response_for_the_configured_authority() -> None:
    """draft-meunier-webbotauth-httpsig-directory requires it: no other site can present the keys as its own."""
    answer = await read()
    inputs = dict(re.findall(r"(sig\d)=(.*?)(?:, (?=sig)|$)", answer.headers["signature-input"]))
    signatures = dict(re.findall(r"(sig\d)=:([^:]+):", answer.headers["signature"]))
    assert inputs.keys() == signatures.keys() == {"sig1", "sig2"}
    for key, label in zip(answer.json()["keys"], inputs, strict=True):
        base = f'"@authority";req: gw.example.com\n"@signature-params": {inputs[label]}'
        public = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(key["x"] + "="))
        public.verify(base64.b64decode(signatures[label]), base.encode())
        assert f"created={NOW_S};expires={NOW_S + DIRECTORY_VALID_S};" in inputs[label]
        assert f'keyid="{key["kid"]}"' in inputs[label]


async def test_the_directory_is_cacheable_for_less_than_its_signatures_are_valid() -> None:
    answer = await read()
    assert answer.headers["cache-control"] == f"public, max-age={KEY_DIRECTORY_CACHE_S}"
    assert KEY_DIRECTORY_CACHE_S < DIRECTORY_VALID_S
