"""Receipts over a change of the secret key: what an old key has signed verifies as long as its address is published."""

from pathlib import Path
from typing import Any

import httpx

from tests.kit.fixed_limits import load_with_fixed_limits
from tests.kit.receipts import CALL_RECEIPT
from tollway.app.lifecycle import App
from tollway.identity.did_document import key_id, read_signers
from tollway.identity.signatures import ReceiptSigner
from tollway.payments.call_receipt import sign_call_receipt, verify_call_receipt

OLD, NEW = (sign * 2 + "00112233445566778899aabbccddee" * 2 for sign in ("1a", "2b"))
NO_NODE = "http://127.0.0.1:1"


async def read_did(folder: Path, **more: str) -> Any:
    """`did.json` of a gateway with these settings."""
    given = {"RPC_SANDBOX": NO_NODE, "DATABASE_URL": f"sqlite:///{folder}/books.sqlite3", **more}
    async with App(
        load_with_fixed_limits({f"TOLLWAY_{name}": value for name, value in given.items()})
    ) as app:
        transport = httpx.ASGITransport(app.asgi_app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8402") as client:
            return (await client.get("/.well-known/did.json")).json()


def receipt_of(key: str) -> dict[str, Any]:
    """A receipt as the gateway with this secret key signs it."""
    signer = ReceiptSigner.derive(bytes.fromhex(key))
    return sign_call_receipt(CALL_RECEIPT, kid=key_id("127.0.0.1:8402"), has_x402=True, sign=signer.sign)


async def test_a_receipt_of_a_retired_key_verifies_as_long_as_its_address_is_listed(tmp_path: Path) -> None:
    before = await read_did(tmp_path, SECRET_KEY=OLD)
    (old,) = read_signers(before).addresses
    during = await read_did(tmp_path, SECRET_KEY=f"{NEW} {OLD}")
    forgotten = await read_did(tmp_path, SECRET_KEY=NEW)
    retired = await read_did(tmp_path, SECRET_KEY=NEW, RETIRED_RECEIPT_SIGNERS=str(old))
    valid = [
        [verify_call_receipt(receipt_of(key), read_signers(document)).is_valid for key in (OLD, NEW)]
        for document in (before, during, forgotten, retired)
    ]
    assert valid == [[True, False], [True, True], [False, True], [True, True]]
    # The key in use stands first, and the secret of the retired one is not needed.
    assert retired["verificationMethod"] == during["verificationMethod"]


async def test_a_key_that_is_in_use_and_retired_is_listed_once(tmp_path: Path) -> None:
    (address,) = read_signers(await read_did(tmp_path, SECRET_KEY=OLD)).addresses
    document = await read_did(tmp_path, SECRET_KEY=OLD, RETIRED_RECEIPT_SIGNERS=f"{address},{address}")
    assert len(document["verificationMethod"]) == 1
