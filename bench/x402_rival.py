"""A rival: the FastAPI middleware of the `x402` package over a facilitator that says yes at once, inside the process.

In its favour: nothing is verified, settled or written, and the answer is made here instead of being fetched from an
upstream. The middleware is made once, not for each request. Runs in the bench's own virtualenv: `x402_rival.py PORT`.
"""

import importlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any

PATH = "/quote/ETH"
NETWORK = "eip155:84532"
ANSWER = b'{"symbol":"ETH","price":"3021.17","currency":"USD"}'


class InstantFacilitator:
    """Takes every payment, at once."""

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


def make_app() -> Any:
    # Loaded here and not above: the harness takes PATH from this module, and has no x402 of this version.
    fastapi = importlib.import_module("fastapi")
    x402 = importlib.import_module("x402")
    middleware = importlib.import_module("x402.http.middleware.fastapi")
    types = importlib.import_module("x402.http.types")
    exact = importlib.import_module("x402.mechanisms.evm.exact.server")

    server = x402.x402ResourceServer(InstantFacilitator(importlib.import_module("x402.schemas")))
    server.register(NETWORK, exact.ExactEvmScheme())
    option = types.PaymentOption(scheme="exact", pay_to="0x" + "55" * 20, price="$0.01", network=NETWORK)
    guard = middleware.payment_middleware({f"GET {PATH}": types.RouteConfig(accepts=option)}, server)
    app = fastapi.FastAPI()

    @app.middleware("http")
    async def pay(request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        return await guard(request, call_next)

    @app.get(PATH)
    async def quote() -> Any:
        return fastapi.Response(ANSWER, media_type="application/json")

    return app


if __name__ == "__main__":
    uvicorn = importlib.import_module("uvicorn")
    uvicorn.run(
        make_app(),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
