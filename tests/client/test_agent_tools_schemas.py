"""The schemas of the tools, and the validation of arguments."""

import re

import pytest
from jsonschema import Draft202012Validator

from tollway.client.agent_tools import ARGUMENT_ERROR_CHARACTERS_MAX, TOOLS, find_argument_error, find_tool


def complaint(name: str, arguments: object) -> str | None:
    tool = find_tool(name)
    assert tool is not None
    return find_argument_error(tool, arguments)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_tool_is_what_protocols_take(tool) -> None:
    assert re.fullmatch(r"[a-z_]{1,64}", tool.name)
    Draft202012Validator.check_schema(dict(tool.input_schema))
    assert tool.input_schema["type"] == "object"
    assert tool.input_schema["additionalProperties"] is False
    assert find_tool(tool.name) is tool
    assert len(tool.description) < 700


def test_only_calling_spends() -> None:
    assert [tool.name for tool in TOOLS if not tool.is_reading] == ["call_api"]
    assert find_tool("api_1.get_quote") is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("search_apis", {}),
        ("search_apis", {"query": "rain", "minSuccessRate": 0.9, "verified": True, "limit": 20}),
        ("describe_api", {"apiId": "api_01"}),
        ("call_api", {"apiId": "api_01"}),
        (
            "call_api",
            {"apiId": "a", "query": {"q": "x", "n": 3, "b": True}, "json": [1], "maxPrice": "1 USDC"},
        ),
        ("my_calls", {"callId": "call_1"}),
        ("wallet_status", {}),
    ],
)
def test_valid_arguments_are_accepted(name: str, arguments: object) -> None:
    assert complaint(name, arguments) is None


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("describe_api", {}, "'apiId' is a required property"),
        ("describe_api", {"apiId": "../secret"}, "apiId:"),
        ("describe_api", {"apiId": 1}, "apiId: 1 is not of type 'string'"),
        ("call_api", {"apiId": "a", "gateway": "http://evil.test"}, "'gateway' was unexpected"),
        ("call_api", {"apiId": "a", "maxPrice": 5}, "maxPrice:"),
        ("call_api", {"apiId": "a", "budget": "5 USDC"}, "'budget' was unexpected"),
        ("call_api", {"apiId": "a", "method": "CONNECT"}, "method:"),
        ("call_api", {"apiId": "a", "headers": {"x": 1}}, "headers/x:"),
        ("call_api", {"apiId": "a", "query": {"x": []}}, "query/x:"),
        ("call_api", {"apiId": "a", "idempotencyKey": "two\r\nlines"}, "idempotencyKey:"),
        ("search_apis", {"limit": 21}, "limit:"),
        ("search_apis", {"limit": True}, "limit:"),
        ("wallet_status", {"showKey": True}, "'showKey' was unexpected"),
        ("wallet_status", [], "[] is not of type 'object'"),
    ],
)
def test_an_invalid_argument_is_refused_by_name(name: str, arguments: object, told: str) -> None:
    assert told in str(complaint(name, arguments))


def test_a_complaint_does_not_repeat_a_book() -> None:
    told = complaint("describe_api", {"apiId": "x" * 1_000_000})
    assert told is not None
    assert len(told) <= ARGUMENT_ERROR_CHARACTERS_MAX
