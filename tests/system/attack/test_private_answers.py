"""No cache stores what a wallet reads: every operation of the contract that asks for a wallet, against a production process, with a valid proof, with a bad one and
without one."""

import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

import coincurve
import httpx
import pytest
import pytest_asyncio
import yaml

from tests.kit.payer import KeyWallet
from tests.system.attack.attacked_gateway import AttackedGateway
from tollway.client.wallet import Wallet
from tollway.identity.signatures import eip191_digest
from tollway.registry.openapi import METHODS
from tollway.web.http.contract import CONTRACT_PATH

PARAMETERS = {
    "address": "0x" + "22" * 20,
    "wallet": "0x" + "22" * 20,
    "transaction": "0x" + "11" * 32,
}
"""Values of path parameters that the routes accept; every other one is an unknown id."""
BODIES: Mapping[tuple[str, str], dict[str, Any]] = {
    ("put", "/api/v2/viewers/{address}"): {"until": "2999-01-01T00:00:00Z"},
}
KEY = secrets.token_bytes(32)


def list_operations() -> list[tuple[str, str]]:
    """The operations that ask for a wallet: those with `security` that is not empty, and a query for which an open one asks."""
    contract = yaml.safe_load(CONTRACT_PATH.read_text())
    usual = contract["security"]
    return [
        (method, path)
        for path, members in contract["paths"].items()
        for method, operation in members.items()
        if method in METHODS
        and operation.get("security", usual)
        and {} not in operation.get("security", usual)
    ] + [("get", "/api/v2/apis?suspended=true")]


OPERATIONS = list_operations()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, run_gateway: Any
) -> AsyncIterator[AttackedGateway]:
    async with run_gateway(tmp_path_factory.mktemp("private"), environment={}) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(gateway: AttackedGateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway.base_url, trust_env=False, timeout=60) as http:
        yield http


async def open_session(http: httpx.AsyncClient) -> str:
    wallet = KeyWallet(key=coincurve.PrivateKey(KEY))
    asked = {"address": str(wallet.address), "chainId": 8453}
    message = (await http.post("/api/v2/auth/nonce", json=asked)).json()["message"]
    signed = {"message": message, "signature": "0x" + wallet.sign(eip191_digest(message.encode())).hex()}
    answer = await http.post("/api/v2/auth/session", json=signed)
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return str(answer.json()["accessToken"])


def fill(path: str) -> str:
    """The path with a value for each of its parameters."""
    return "/".join(
        PARAMETERS.get(part[1:-1], "none_1") if part.startswith("{") else part for part in path.split("/")
    )


def test_the_contract_has_operations_of_wallets() -> None:
    assert len(OPERATIONS) > 25
    assert {("get", "/api/v2/history"), ("get", "/x402/history"), ("get", "/api/v2/viewers")} <= set(
        OPERATIONS
    )


@pytest.mark.parametrize("proof", ["signature", "session", "bad session", "none"])
@pytest.mark.asyncio(loop_scope="module")
async def test_every_answer_of_an_operation_of_wallets_is_private(
    gateway: AttackedGateway, http: httpx.AsyncClient, proof: str
) -> None:
    wallet, succeeded = Wallet.from_key(KEY.hex()), set()
    for method, template in OPERATIONS:
        path, headers = fill(template), {}
        body: dict[str, Any] | None = BODIES.get((method, template))
        content = None
        if proof == "signature":
            content, headers = gateway.sign(wallet, method.upper(), path, body)
        elif proof != "none":
            token = await open_session(http) if proof == "session" else secrets.token_hex(16)
            headers = {"Authorization": f"Bearer {token}"}
        given = {"json": body} if content is None and body is not None else {"content": content}
        answer = await http.request(method.upper(), path, headers=headers, **given)
        where = (proof, method, template, answer.status_code)
        assert answer.headers.get_list("cache-control") == ["private, no-store"], where
        assert "Authorization" in answer.headers["vary"], where
        assert answer.status_code < 500, where
        if answer.is_success:
            succeeded.add((method, template))
    reads = {
        "/api/v2/history",
        "/api/v2/history.csv",
        "/api/v2/payments",
        "/api/v2/spending",
        "/api/v2/sales",
    }
    if proof in ("signature", "session"):
        assert {("get", path) for path in (*reads, "/api/v2/viewers", "/x402/history")} <= succeeded
    else:
        assert not succeeded


@pytest.mark.asyncio(loop_scope="module")
async def test_a_public_answer_stays_public(http: httpx.AsyncClient) -> None:
    for path in ("/api/v2/networks", "/api/v2/apis", "/openapi.json"):
        assert "private" not in (await http.get(path)).headers.get("cache-control", "")
