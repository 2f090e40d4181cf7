"""A program to compare with: the FastAPI middleware of the `x402` package, in the bench's virtualenv.

`x402_rival.py PORT`: with a facilitator inside the process that accepts at once, and a response made here. This
favours it: nothing is verified, settled or written, and no request is sent. `x402_rival.py PORT UPSTREAM`: as it is deployed in
front of an API, with the package's HTTP client of a facilitator, which responds at once from the upstream's server, and the
response fetched from the upstream.
"""

import importlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any

PATH = "/quote/ETH"
NETWORK = "eip155:84532"
ANSWER = b'{"symbol":"ETH","price":"3021.17","currency":"USD"}'


class InstantFacilitator:
    """Accepts every payment, at once."""

    def __init__(self, schemas: Any) -> None:
        kind = schemas.SupportedKind(x402_version=2, scheme="exact", network=NETWORK)
        self._supported = schemas.SupportedResponse(kinds=[kind])
        self._verified = schemas.VerifyResponse(is_valid=True, payer="0x" + "11" * 20)
        self._settled = schemas.SettleResponse(
            success=True, transaction="0x" + "44" * 32, network=NETWORK, payer="0x" + "11" * 20
        )

    def get_supported(self) -> Any:
        return self._supported

    async def verify(self, _payload: Any, _requirements: Any) -> Any:
        return self._verified

    async def settle(self, _payload: Any, _requirements: Any) -> Any:
        return self._settled


def make_app(upstream: str | None) -> Any:
    # Loaded here and not above: the harness takes PATH from this module, and has no x402 of this version.
    fastapi = importlib.import_module("fastapi")
    x402 = importlib.import_module("x402")
    middleware = importlib.import_module("x402.http.middleware.fastapi")
    types = importlib.import_module("x402.http.types")
    exact = importlib.import_module("x402.mechanisms.evm.exact.server")

    if upstream is None:
        facilitator: Any = InstantFacilitator(importlib.import_module("x402.schemas"))
    else:
        http = importlib.import_module("x402.http")
        facilitator = http.HTTPFacilitatorClient(http.FacilitatorConfig(url=upstream + "/facilitator"))
    server = x402.x402ResourceServer(facilitator)
    server.register(NETWORK, exact.ExactEvmScheme())
    option = types.PaymentOption(scheme="exact", pay_to="0x" + "55" * 20, price="$0.01", network=NETWORK)
    guard = middleware.payment_middleware({f"GET {PATH}": types.RouteConfig(accepts=option)}, server)
    app = fastapi.FastAPI()

    @app.middleware("http")
    async def pay(request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        return await guard(request, call_next)

    httpx = importlib.import_module("httpx")
    client = httpx.AsyncClient(base_url=upstream or "", trust_env=False)

    @app.get(PATH)
    async def quote() -> Any:
        content = ANSWER if upstream is None else (await client.get(PATH)).content
        return fastapi.Response(content, media_type="application/json")

    return app


if __name__ == "__main__":
    uvicorn = importlib.import_module("uvicorn")
    uvicorn.run(
        make_app(sys.argv[2] if len(sys.argv) > 2 else None),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
