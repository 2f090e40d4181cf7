"""The parameters of both clients: every keyword is checked before anything is sent, and both clients have the same methods."""

import inspect
from contextlib import AbstractAsyncContextManager, AbstractContextManager

import pytest

from tollway.client import AsyncTollwayClient, CallResponse, ListingDetails, TollwayClient
from tollway.client.client import PayingClient
from tollway.client.control import ControlMethods

API = "api_1"
GATEWAY = "https://gateway.test"
KINDS = [TollwayClient, AsyncTollwayClient]
PLANNED = ("call", "stream", "keep_key", "drop_key")


@pytest.fixture
def client(client_options):
    with TollwayClient(GATEWAY, **client_options) as client:
        yield client


def check_untouched(gateway, chain) -> None:
    assert (gateway.seen, chain.asked, chain.broadcasts) == ([], [], [])


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("call", {"max_prce": "0.001 USDC"}, "call() has no option 'max_prce'; did you mean max_price?"),
        ("call", {"max_price": "0.01 USDC", "prepaid": 2}, "'prepaid'; did you mean prepay?"),
        ("call", {"budget": "1 USDC"}, "call() has no option 'budget'"),
        ("stream", {"max_prce": "0.001 USDC"}, "stream() has no option 'max_prce'"),
        ("keep_key", {"contnt": b"x"}, "keep_key() has no option 'contnt'; did you mean content?"),
        ("show", {"revsion": 1}, "show() has no option 'revsion'"),
    ],
)
def test_an_unknown_option_is_refused_before_anything_is_paid(client, gateway, chain, method, options, said):
    with pytest.raises(TypeError) as refused:
        getattr(client, method)(API, **options)
    assert said in str(refused.value)
    check_untouched(gateway, chain)


@pytest.mark.parametrize(
    ("method", "options"),
    [("search", {"maxPrice": "0.05"}), ("history", {"apiId": API}), ("history", {"limt": 1})],
)
def test_a_query_takes_no_name_that_it_does_not_know(client, gateway, chain, method, options):
    with pytest.raises(TypeError, match="has no option"):
        getattr(client, method)(**options)
    check_untouched(gateway, chain)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["max_prce", "wallets", "session_buget"])
def test_a_client_refuses_an_option_that_it_does_not_know(kind, name):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        kind(GATEWAY, **{name: "0.01 USDC"})


async def test_the_asynchronous_client_refuses_it_too(gateway, chain, client_options):
    async with AsyncTollwayClient(GATEWAY, **client_options) as client:
        with pytest.raises(TypeError, match="did you mean max_price"):
            await client.call(API, max_prce="0.001 USDC")
        with pytest.raises(TypeError, match="did you mean max_price"):
            async with client.stream(API, max_prce="0.001 USDC"):
                pass
    check_untouched(gateway, chain)


@pytest.mark.parametrize(
    ("options", "failure"),
    [
        ({"max_price": 0.001}, TypeError),
        ({"max_price": 1}, TypeError),
        ({"max_price": {"USDC": 1}}, TypeError),
        ({"max_price": "0.001USDC"}, ValueError),
        ({"max_price": "0.001 USDC please"}, ValueError),
        ({"max_price": "$0.001"}, ValueError),
        ({"max_price": "1e-3 USDC"}, ValueError),
        ({"max_price": {"US DC": "1"}}, ValueError),
        ({"max_fee": 0.1}, TypeError),
        ({"prepay": "3"}, TypeError),
        ({"prepay": 2.5}, TypeError),
        ({"prepay": True}, TypeError),
        ({"prepay": 0}, ValueError),
        ({"rail": "mpp"}, ValueError),
    ],
)
def test_a_limit_is_exact_or_refused(client, gateway, chain, options, failure):
    with pytest.raises(failure):
        client.call(API, **options)
    check_untouched(gateway, chain)


@pytest.mark.parametrize("name", ["max_price", "max_fee", "budget", "session_budget"])
@pytest.mark.parametrize("value", [0.05, 5])
def test_a_limit_of_the_client_is_exact_or_refused(name, value):
    with pytest.raises(TypeError, match="must be text"):
        TollwayClient(GATEWAY, **{name: value})


@pytest.mark.parametrize(
    ("value", "failure"), [(0.05, TypeError), ("0.05 USDC", ValueError), ("", ValueError)]
)
def test_a_search_takes_a_maximum_as_a_decimal(client, gateway, chain, value, failure):
    with pytest.raises(failure, match="max_price"):
        client.search("rain", currency="USDC", max_price=value)
    check_untouched(gateway, chain)


# ---- One flow, two drivers.


def list_methods(kind) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(member)
        for name, member in inspect.getmembers(kind, callable)
        if not name.startswith("_")
    }


STREAMED = {"stream", "export_calls", "export_payments"}
"""Methods whose result is read part by part: `with` and `for`, or `async with` and `async for`."""


def test_both_clients_have_the_same_methods_with_the_same_parameters():
    methods, others = (list_methods(kind) for kind in KINDS)
    assert methods.keys() == others.keys()
    for name, one in methods.items():
        assert one.parameters == others[name].parameters, name
        if name not in STREAMED:
            assert one.return_annotation == others[name].return_annotation, name
    assert set(methods) >= {"call", "stream", "search", "show", "history", "payment", "publish", "payments"}


def test_both_constructors_have_the_same_parameters():
    first, second = (inspect.signature(kind).parameters for kind in KINDS)
    assert first == second


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_is_named(kind):
    for name, signature in {**list_methods(kind), "__init__": inspect.signature(kind)}.items():
        for parameter in signature.parameters.values():
            assert parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL), name


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_is_documented(kind):
    for name in list_methods(kind):
        assert (getattr(kind, name).__doc__ or "").strip(), name
    for name in PLANNED:
        assert "`max_price`" in getattr(kind, name).__doc__


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_is_a_record_and_no_raw_json(kind):
    """`fetch_…` return the gateway's JSON, for programs that print it."""
    results = {
        name: one.return_annotation for name, one in list_methods(kind).items() if "fetch_" not in name
    }
    assert results["show"] is ListingDetails
    assert results["call"] is CallResponse
    for name, result in results.items():
        assert result is not inspect.Signature.empty, name
        assert not any(raw in str(result) for raw in ("dict", "Mapping", "mappingproxy", "Any")), name


def test_what_needs_the_gateway_is_awaited(wallet, store_path):
    network = {name for name in list_methods(TollwayClient) if not hasattr(PayingClient, name)} | STREAMED
    awaited = {name for name in network if inspect.iscoroutinefunction(getattr(AsyncTollwayClient, name))}
    assert network - awaited == STREAMED
    first, second = (kind(GATEWAY, store_path=store_path) for kind in KINDS)
    assert isinstance(first.stream(API), AbstractContextManager)
    assert isinstance(second.stream(API), AbstractAsyncContextManager)


@pytest.mark.parametrize("client", [TollwayClient, AsyncTollwayClient])
def test_a_framework_sees_whether_a_method_is_a_coroutine_function(client):
    """FastAPI and others unwrap a function before they decide whether to await it."""
    names = ["call", "resume", *(name for name in vars(ControlMethods) if not name.startswith("_"))]
    seen = {name for name in names if inspect.iscoroutinefunction(inspect.unwrap(getattr(client, name)))}
    assert seen == (set(names) if client is AsyncTollwayClient else set())


def test_an_error_of_the_synchronous_client_names_that_client():
    with pytest.raises(TypeError, match=r"TollwayClient\.call\(\)"):
        TollwayClient.call()
