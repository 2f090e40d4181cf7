"""What a type checker knows of the client: mypy reads this file in strict mode, with unused ignores as errors, and nothing runs it."""

from typing import assert_type

from tollway.client import (
    AsyncTollwayClient,
    CallPage,
    CallResponse,
    GatewayRefused,
    ListingDetails,
    PaymentStatus,
    RecordedCall,
    SalesReport,
    SearchPage,
    SignedReceipt,
    TollwayClient,
)


def read_results(client: TollwayClient, api_id: str) -> None:
    assert_type(client.call(api_id, "/a", max_price="0.01 USDC", files={"a": b"x"}), CallResponse)
    assert_type(client.search("rain", currency="USDC"), SearchPage)
    assert_type(client.show(api_id), ListingDetails)
    assert_type(client.history(limit=1), CallPage)
    assert_type(client.find_call("call_1"), RecordedCall)
    assert_type(client.receipt("call_1"), SignedReceipt)
    assert_type(client.payment("0x"), PaymentStatus)
    assert_type(client.sales_report(step="hour"), SalesReport)
    assert_type(client.spending_report(group_by="provider").spending[0].charged.amount, str)
    assert_type(client.keep_key(api_id, "/a", json={"a": 1}), str | None)
    assert_type(client.show(api_id).operations[0].price_per_request, str)
    with client.stream(api_id) as response:
        assert_type(response, CallResponse)


async def read_results_async(client: AsyncTollwayClient, api_id: str) -> None:
    assert_type(await client.call(api_id), CallResponse)
    assert_type(await client.search("rain"), SearchPage)
    async with client.stream(api_id) as response:
        assert_type(response, CallResponse)


def misspell(client: TollwayClient, failure: GatewayRefused) -> None:
    """A misspelt option, member or type is an error before the program runs."""
    client.call("api_1", max_prce="0.01 USDC")  # type: ignore[call-arg]
    client.call("api_1", max_price=0.01)  # type: ignore[arg-type]
    client.search(maxPrice="0.05")  # type: ignore[call-arg]
    client.history(status="done")  # type: ignore[arg-type]
    client.show("api_1").pricePerRequest  # type: ignore[attr-defined] # noqa: B018
    failure.problem["code"]  # type: ignore[index]
    TollwayClient("https://gateway.test", max_prce="0.01 USDC")  # type: ignore[call-arg]
