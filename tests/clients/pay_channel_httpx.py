"""x402 for Python (httpx) with the scheme `batch-settlement`, as its documentation registers it. One process makes all calls of a plan.

Usage: PAYER_KEY=0x... [RPC_URL=http://...] python pay_channel_httpx.py PLAN. The plan and the line that it prints are those of
`pay_channel_fetch.mjs`, without refunds.
"""

import asyncio
import base64
import json
import os
import sys
from typing import Any

import httpx
from eth_account import Account
from x402 import x402Client
from x402.http.clients import x402_httpx_transport
from x402.mechanisms.evm import EthAccountSigner, EthAccountSignerWithRPC
from x402.mechanisms.evm.batch_settlement.client import BatchSettlementEvmScheme


def make_transport() -> httpx.AsyncBaseTransport:
    account, rpc_url = Account.from_key(os.environ["PAYER_KEY"]), os.environ.get("RPC_URL")
    signer = EthAccountSignerWithRPC(account, rpc_url=rpc_url) if rpc_url else EthAccountSigner(account)
    client = x402Client()
    client.register("eip155:84532", BatchSettlementEvmScheme(signer))
    return x402_httpx_transport(client)


async def call(web: httpx.AsyncClient, step: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {"status": None, "receipt": None, "body": "", "error": None}
    try:
        answer = await web.request(
            step.get("method", "GET"), step["url"], headers=step.get("headers"), content=step.get("body")
        )
    except Exception as error:
        return {**told, "error": f"{type(error).__name__}: {error}"}
    shown = answer.headers.get("PAYMENT-RESPONSE")
    receipt = None if shown is None else json.loads(base64.b64decode(shown))
    return {**told, "status": answer.status_code, "receipt": receipt, "body": answer.text[:2000]}


async def main() -> None:
    told = []
    web = httpx.AsyncClient(transport=make_transport(), timeout=60)
    for step in json.loads(sys.argv[1]):
        if step.get("isRestarted"):
            await web.aclose()
            web = httpx.AsyncClient(transport=make_transport(), timeout=60)
        if step.get("isParallel"):
            told += await asyncio.gather(*(call(web, step) for _ in range(step.get("times", 1))))
        else:
            told += [await call(web, step) for _ in range(step.get("times", 1))]
    await web.aclose()
    print(json.dumps({"told": told}))


asyncio.run(main())
