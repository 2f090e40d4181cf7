"""The DID document: the keys that sign offers and receipts."""

import httpx
from starlette.applications import Starlette

from tollway.identity.did_document import describe_signers
from tollway.ids import Address
from tollway.web.api.site_routes import did_router

SIGNER = Address(b"\x11" * 20)


def test_the_did_contains_the_port() -> None:
    document = describe_signers(authority="127.0.0.1:8402", signers=[SIGNER])
    assert document["id"] == "did:web:127.0.0.1%3A8402"
    (method,) = document["verificationMethod"]
    assert method["controller"] == document["id"]
    assert document["assertionMethod"] == [method["id"]]


def test_a_replaced_key_is_listed_beside_the_current_one() -> None:
    old = Address(b"\x22" * 20)
    document = describe_signers(authority="gw.example.com", signers=[SIGNER, old])
    accounts = {method["id"]: method["blockchainAccountId"] for method in document["verificationMethod"]}
    assert list(accounts.values()) == [f"eip155:1:{SIGNER}", f"eip155:1:{old}"]
    assert document["assertionMethod"] == list(accounts)
    assert len(accounts) == 2
    alone = describe_signers(authority="gw.example.com", signers=[SIGNER])
    assert alone["verificationMethod"] == document["verificationMethod"][:1]


async def test_the_document_names_the_key_that_signs() -> None:
    app = Starlette(routes=did_router(authority="gw.example.com", signers=[SIGNER]).routes)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="https://gw.example.com"
    ) as client:
        answer = await client.get("/.well-known/did.json")
    assert answer.headers["content-type"] == "application/did+json"
    assert answer.json()["verificationMethod"][0]["blockchainAccountId"] == f"eip155:1:{SIGNER}"
