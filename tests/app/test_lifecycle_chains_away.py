"""A gateway of which every chain is away goes on selling credit and stays in service; it tells new payers to wait."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import generate_latest

from tests.kit.fixed_limits import load_with_fixed_limits
from tests.kit.gateway import PAY_TO, PROVIDER, RULES, USDC
from tests.kit.listings import sample_listing
from tests.kit.payer import KeyWallet
from tests.kit.upstream import LoopbackUpstream, plain, run_upstream
from tollway.app.lifecycle import App
from tollway.identity.signatures import transaction_digests
from tollway.ids import ListingId, TxHash, keccak256
from tollway.ledger.records import NewPayment

NOBODY = "http://127.0.0.1:1"
LISTING = ListingId("api_0123456789abcdef01234567")
PRICE = 10_000


@pytest.fixture
async def upstream() -> AsyncIterator[LoopbackUpstream]:
    async with run_upstream() as upstream:
        upstream.answer = plain()
        yield upstream


@pytest.fixture
async def app(tmp_path: Path, upstream: LoopbackUpstream) -> AsyncIterator[App]:
    settings = load_with_fixed_limits(
        {
            "TOLLWAY_RPC_SANDBOX": NOBODY,
            "TOLLWAY_RPC_LOCAL": NOBODY,
            "TOLLWAY_DATABASE_URL": f"sqlite:///{tmp_path}/books.sqlite3",
            "TOLLWAY_ALLOW_PRIVATE_ENDPOINTS": "yes",
        }
    )
    async with App(settings) as app:
        now_ms = time.time_ns() // 1_000_000
        await app.catalog.publish(
            sample_listing(
                id=LISTING,
                provider=PROVIDER,
                endpoint=upstream.url + "/base",
                pay_to=PAY_TO,
                networks=(RULES.chain_id,),
                created_ms=now_ms - 86_400_000,
            )
        )
        yield app


def sample_payment(name: str, wallet: KeyWallet) -> NewPayment:
    now_s = int(time.time())
    return NewPayment(
        chain_id=RULES.chain_id,
        tx_hash=TxHash(keccak256(name.encode())),
        asset=USDC.key,
        payer=wallet.address,
        payee=PAY_TO,
        value_units=3 * PRICE,
        block_number=1,
        block_hash=bytes(32),
        block_time=now_s - 60,
        is_final=True,
    )


async def call(app: App, tx_hash: TxHash | None, wallet: KeyWallet) -> httpx.Response:
    headers = {}
    if tx_hash is not None:
        digest = transaction_digests(tx_hash)[0]
        headers = {"X-Payment-Tx": str(tx_hash), "X-Signature": wallet.sign_hex(digest)}
    return await get(app, f"/api/v2/gateway/{LISTING}/quote", headers)


async def get(app: App, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    transport = httpx.ASGITransport(app.asgi_app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8402") as client:
        return await client.get(path, headers=headers)


async def test_with_both_chains_away_credit_is_sold_and_balancers_send_requests(app: App) -> None:
    wallet = KeyWallet.named("buyer")
    (payment,) = await app.payments.record_payments([sample_payment("paid", wallet)], now_ms=0)
    for _ in range(2):  # a payment that the ledger knows, and then its credit
        answer = await call(app, payment.tx_hash, wallet)
        assert (answer.status_code, answer.headers["tollway-payment-state"]) == (200, "charged"), answer.text
    assert (await get(app, "/readyz?for=traffic")).status_code == 200
    assert (await get(app, f"/api/v2/apis/{LISTING}")).status_code == 200
    assert (await call(app, None, wallet)).status_code == 402

    ready = await get(app, "/readyz")
    assert (ready.status_code, ready.json()["code"]) == (503, "chain_unavailable")
    new = TxHash(keccak256(b"new"))
    refused = await call(app, new, wallet)
    assert (refused.status_code, refused.json()["code"]) == (503, "chain_unavailable")

    series = generate_latest(app.metrics.registry).decode()
    assert 'tollway_refusals_total{code="chain_unavailable"} 1.0' in series
    assert 'tollway_calls_total{outcome="charged"} 2.0' in series
    for network in (RULES.network, "eip155:31337"):
        assert f'tollway_node_requests_total{{network="{network}",node="1",outcome="ok"}} 0.0' in series
        failed = f'tollway_node_requests_total{{network="{network}",node="1",outcome="error"}} '
        assert float(series.partition(failed)[2].split("\n")[0]) >= 1
    assert "tollway_storage_up 1.0" in series
