"""x402 for Python (protocol v2) with httpx, default settings."""

import asyncio

import httpx
from one_request import read_request, tell_answer, tell_error
from x402 import x402Client
from x402.http.clients import x402_httpx_transport
from x402.mechanisms.evm.exact.register import register_exact_evm_client


async def main() -> None:
    request, payer = read_request()
    client = x402Client()
    register_exact_evm_client(client, payer)
    try:
        async with httpx.AsyncClient(transport=x402_httpx_transport(client), timeout=60) as web:
            answer = await web.request(
                request.method, request.url, headers=request.headers, content=request.body
            )
            tell_answer(answer.status_code, answer.headers, answer.text)
    except Exception as error:
        tell_error(error)


asyncio.run(main())
