"""`/.well-known/did.json`: under which key this gateway signs its offers and receipts (did:web). Reads only."""

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from tollway.identifiers import Address

_CONTEXT = ["https://www.w3.org/ns/did/v1", "https://w3id.org/security/suites/secp256k1recovery-2020/v2"]


def did_router(*, authority: str, signer: Address) -> APIRouter:
    """`authority`: host and port of the public URL."""
    router = APIRouter()
    document = describe_signer(authority=authority, signer=signer)

    @router.get("/.well-known/did.json")
    async def read_did() -> JSONResponse:
        headers = {"Cache-Control": "public, max-age=300"}
        return JSONResponse(document, headers=headers, media_type="application/did+json")

    return router


def describe_signer(*, authority: str, signer: Address) -> dict[str, Any]:
    """did:web §3.2: a port's colon is percent-encoded. The account is a wallet like any other, so chain 1 names it."""
    did = f"did:web:{quote(authority, safe='')}"
    key = f"{did}#offers-and-receipts"
    return {
        "@context": _CONTEXT,
        "id": did,
        "verificationMethod": [
            {
                "id": key,
                "type": "EcdsaSecp256k1RecoveryMethod2020",
                "controller": did,
                "blockchainAccountId": f"eip155:1:{signer}",
            }
        ],
        "assertionMethod": [key],
    }
