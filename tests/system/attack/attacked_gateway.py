"""A gateway to be attacked: the real command `tollway gateway serve`, with the settings of production but for what an attack needs. No chain: what is attacked here comes before any payment."""

import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from tests.kit.forkserver import Forkserver
from tests.kit.gateway_process import GatewayProcess, clean_environment, sign_control
from tests.kit.ports import find_low_port
from tollway.client.wallet import Wallet
from tollway.ids import ChainId

MANY = "1000000"


class AttackedGateway(GatewayProcess):
    """Its database, unless the settings name one, is `attacked.sqlite3` in `folder`."""

    def __init__(
        self,
        folder: Path,
        *,
        host: str,
        port: int,
        public_url: str,
        environment: Mapping[str, str],
        forkserver: Forkserver | None = None,
    ) -> None:
        settings = {
            "TOLLWAY_RPC_BASE": "http://127.0.0.1:9",
            "TOLLWAY_DATABASE_URL": f"sqlite:///{folder}/attacked.sqlite3",
            "TOLLWAY_SECRET_KEY": secrets.token_hex(32),
            "TOLLWAY_PUBLIC_URL": public_url,
            "TOLLWAY_LISTEN": f"{host}:{port}",
            "TOLLWAY_ADMIN_LISTEN": "off",
            "TOLLWAY_LIMIT_FREE_CALLS_PER_MINUTE": MANY,
            "TOLLWAY_LIMIT_REGISTRATIONS_PER_HOUR": MANY,
            "TOLLWAY_LIMIT_EDITS_PER_HOUR": MANY,
            "TOLLWAY_LIMIT_SIGNED_REQUESTS_PER_MINUTE": MANY,
            "TOLLWAY_LIMIT_AUTHENTICATED_REQUESTS_PER_MINUTE": MANY,
        }
        env = clean_environment({**settings, **environment})
        super().__init__(env=env, folder=folder, forkserver=forkserver)

    async def wait_up(self) -> None:
        """`/healthz`: without a chain it is never ready."""
        await self.wait_ready(path="/healthz")

    def sign_create(self, wallet: Wallet, draft: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
        """Body and headers of a create by that wallet."""
        return self.sign(wallet, "POST", "/api/v2/apis", draft)

    def sign(
        self, wallet: Wallet, method: str, path: str, members: Any = None
    ) -> tuple[bytes, dict[str, str]]:
        """Body and headers of a request by that wallet (ERC-8128). `members` None: it has no body."""
        body = b"" if members is None else json.dumps(members).encode()
        return body, self.sign_body(wallet, method, path, body)

    def sign_body(self, wallet: Wallet, method: str, path: str, body: bytes) -> dict[str, str]:
        """The headers of a request with exactly that body, valid or not."""
        chain_id = ChainId(8453)
        return dict(
            sign_control(
                wallet, public_url=self.public_url, chain_id=chain_id, method=method, path=path, body=body
            )
        )


@contextlib.asynccontextmanager
async def run_attacked_gateway(
    folder: Path,
    *,
    environment: Mapping[str, str],
    forkserver: Forkserver,
    public_url: str | None = None,
) -> AsyncIterator[AttackedGateway]:
    """A gateway that is up; stopped on the way out, killed if it does not stop."""
    port = find_low_port()
    gateway = AttackedGateway(
        folder,
        host="127.0.0.1",
        port=port,
        public_url=public_url or f"http://127.0.0.1:{port}",
        environment=environment,
        forkserver=forkserver,
    )
    try:
        await gateway.wait_up()
        yield gateway
    finally:
        try:
            await gateway.stop()
        finally:
            gateway.kill()


def free_listing(endpoint: str, **more: Any) -> dict[str, Any]:
    """What is forwarded without a payment."""
    return {"name": "Free", "pricePerRequest": "0", "currency": "USDC", "endpoint": endpoint, **more}
