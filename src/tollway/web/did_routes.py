"""`/.well-known/did.json`: under which keys this gateway signs its offers and receipts (did:web). Reads only."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from tollway.identifiers import Address

_DID_CONTEXT = ["https://www.w3.org/ns/did/v1", "https://w3id.org/security/suites/secp256k1recovery-2020/v2"]


def did_router(*, authority: str, signers: Sequence[Address]) -> APIRouter:
    """`authority`: host and port of the public URL. `signers`: the one in use first; what the others have signed still
    counts."""
    router = APIRouter()
    document = describe_signers(authority=authority, signers=signers)

    @router.get("/.well-known/did.json")
    async def read_did() -> JSONResponse:
        headers = {"Cache-Control": "public, max-age=300"}
        return JSONResponse(document, headers=headers, media_type="application/did+json")

    return router


def describe_signers(*, authority: str, signers: Sequence[Address]) -> dict[str, Any]:
    """did:web §3.2: a port's colon is percent-encoded. The account is a wallet like any other, so chain 1 names it."""
    did = f"did:web:{quote(authority, safe='')}"
    methods = [
        {
            "id": f"{did}#offers-and-receipts" + (f"-{number}" if number > 1 else ""),
            "type": "EcdsaSecp256k1RecoveryMethod2020",
            "controller": did,
            "blockchainAccountId": f"eip155:1:{signer}",
        }
        for number, signer in enumerate(signers, 1)
    ]
    return {
        "@context": _DID_CONTEXT,
        "id": did,
        "verificationMethod": methods,
        "assertionMethod": [method["id"] for method in methods],
    }
