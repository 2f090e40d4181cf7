"""A gateway to be attacked: the real `tollway serve`, with the settings of production but for what an attack needs. No chain:
what is attacked here comes before any payment.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from tollway.client.wallet import Wallet
from tollway.identity.http_signatures import SignedRequest
from tollway.identity.siwe import parse_origin
from tollway.ids import ChainId

UP_DEADLINE_S = 60.0
STOP_DEADLINE_S = 30.0
MANY = "1000000"


def find_free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class AttackedGateway:
    """A running gateway; its log is `log`."""

    def __init__(
        self, folder: Path, *, host: str, port: int, public_url: str, environment: Mapping[str, str]
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.public_url = public_url
        self.log = folder / "gateway.log"
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
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TOLLWAY_")}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                (sys.executable, "-c", "from tollway.cli import main; main()", "serve"),
                env={**kept, **settings, **environment},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_up(self) -> None:
        ends_s = time.monotonic() + UP_DEADLINE_S
        while time.monotonic() < ends_s:
            if self.process.poll() is not None:
                raise RuntimeError(self.read_log()[-4_000:])
            try:
                if httpx.get(self.url + "/healthz", trust_env=False).is_success:
                    return
            except httpx.HTTPError:
                time.sleep(0.05)
        raise RuntimeError("the gateway did not come up")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def read_log(self) -> str:
        return self.log.read_text(errors="replace")

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
        """The headers of a request with just that body, whatever it is."""
        raw_path, _, query = path.encode().partition(b"?")
        headers = {"Content-Type": "application/json"} if body else {}
        request = SignedRequest(
            method=method,
            raw_path=raw_path,
            query=query,
            headers=[(name.lower().encode(), value.encode()) for name, value in headers.items()],
            body=body,
        )
        signed = wallet.sign_request(
            request,
            origin=parse_origin(self.public_url),
            chain_id=ChainId(8453),
            now_s=int(time.time()),
            nonce=secrets.token_hex(16),
        )
        return {**headers, **dict(signed)}


def free_listing(endpoint: str, **more: Any) -> dict[str, Any]:
    """What is forwarded without a payment."""
    return {"name": "Free", "pricePerRequest": "0", "currency": "USDC", "endpoint": endpoint, **more}
