"""x402 for Python (protocol v2) with requests, default settings."""

from one_request import read_request, tell_answer, tell_error
from x402 import x402ClientSync
from x402.http.clients import x402_requests
from x402.mechanisms.evm.exact.register import register_exact_evm_client


def main() -> None:
    request, payer = read_request()
    client = x402ClientSync()
    register_exact_evm_client(client, payer)
    try:
        with x402_requests(client) as web:
            answer = web.request(
                request.method, request.url, headers=request.headers, data=request.body, timeout=60
            )
            tell_answer(answer.status_code, answer.headers, answer.text)
    except Exception as error:
        tell_error(error)


main()
