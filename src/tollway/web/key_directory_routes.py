"""`/.well-known/http-message-signatures-directory`: the keys under which this gateway signs the calls that it forwards. Reads
only, and tells the public halves alone.
"""

from collections.abc import Callable

from fastapi import APIRouter, Response

from tollway.gateway.upstream_signature import NONCE_BYTES, UpstreamSigner
from tollway.web.listing_wire import render_json

KEY_DIRECTORY_PATH = "/.well-known/http-message-signatures-directory"
KEY_DIRECTORY_TYPE = "application/http-message-signatures-directory+json"
KEY_DIRECTORY_CACHE_S = 300


def key_directory_router(
    signer: UpstreamSigner,
    *,
    authority: str,
    now_ms: Callable[[], int],
    entropy: Callable[[int], bytes],
) -> APIRouter:
    """`authority`: host and port of the public URL, whatever `Host` says."""
    router = APIRouter()
    body = render_json(signer.describe())

    @router.get(KEY_DIRECTORY_PATH)
    async def read_directory() -> Response:
        signed = signer.sign_directory(
            authority=authority, created_s=now_ms() // 1000, nonce=entropy(NONCE_BYTES).hex()
        )
        headers = {"Cache-Control": f"public, max-age={KEY_DIRECTORY_CACHE_S}", **signed}
        return Response(body, headers=headers, media_type=KEY_DIRECTORY_TYPE)

    return router
