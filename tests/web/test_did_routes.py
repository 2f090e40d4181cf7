"""Under which key the gateway signs its offers and receipts, for whoever wants to check one."""

import httpx
from fastapi import FastAPI

from tollway.identifiers import Address
from tollway.web.did_routes import describe_signer, did_router

SIGNER = Address(b"\x11" * 20)


def test_a_port_is_part_of_the_name() -> None:
    document = describe_signer(authority="127.0.0.1:8402", signer=SIGNER)
    assert document["id"] == "did:web:127.0.0.1%3A8402"
    (method,) = document["verificationMethod"]
    assert method["controller"] == document["id"]
    assert document["assertionMethod"] == [method["id"]]


async def test_the_document_names_the_key_that_signs() -> None:
    app = FastAPI()
    app.include_router(did_router(authority="gw.example.com", signer=SIGNER))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="https://gw.example.com"
    ) as client:
        answer = await client.get("/.well-known/did.json")
    assert answer.headers["content-type"] == "application/did+json"
    assert answer.json()["verificationMethod"][0]["blockchainAccountId"] == f"eip155:1:{SIGNER}"
