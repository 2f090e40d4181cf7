"""Requests to the control plane, byte for byte, and their responses, parsed or refused."""

import sys

import pytest

from tollway.client import requests
from tollway.client.errors import GatewayRefused, GatewayResponseInvalid
from tollway.client.requests import ControlRequest, read_document

SHOW = requests.show_listing("api_1")
HASH = "0x" + "AB" * 32


@pytest.mark.parametrize(
    ("request_", "method", "path", "is_signed"),
    [
        (requests.publish_listing({"name": "a"}), "POST", "/apis", True),
        (requests.publish_listing({"name": "a"}, dry_run=True), "POST", "/apis?dryRun=true", True),
        (requests.update_listing("api_1", {"name": "a"}), "PUT", "/apis/api_1", True),
        (requests.patch_listing("../x", {"name": "a"}), "PATCH", "/apis/..%2Fx", True),
        (requests.patch_listing("api_1", {}, dry_run=True), "PATCH", "/apis/api_1?dryRun=true", True),
        (requests.try_listing("../x", {}), "POST", "/apis/..%2Fx/trial", True),
        (requests.resolve_call("../x", "released"), "POST", "/history/..%2Fx/resolution", True),
        (requests.list_webhooks(), "GET", "/webhooks", True),
        (requests.add_webhook("https://o.example", ["call.held"], "v1"), "POST", "/webhooks", True),
        (requests.remove_webhook("../x"), "DELETE", "/webhooks/..%2Fx", True),
        (
            requests.list_deliveries("wh_1", {"state": "dead"}),
            "GET",
            "/webhooks/wh_1/deliveries?state=dead",
            True,
        ),
        (requests.resend_event("wh_1", "evt_1"), "POST", "/webhooks/wh_1/deliveries/evt_1/resend", True),
        (requests.retire_listing("api_1"), "DELETE", "/apis/api_1", True),
        (requests.retire_listing("../x y"), "DELETE", "/apis/..%2Fx%20y", True),
        (requests.show_ownership("../x"), "GET", "/apis/..%2Fx/ownership", False),
        (requests.check_ownership("api_1"), "POST", "/apis/api_1/ownership", True),
        (requests.list_apis({}), "GET", "/apis", False),
        (requests.list_apis({"q": "a b", "page": 2, "tag": None}), "GET", "/apis?q=a%20b&page=2", False),
        (requests.list_apis({"verified": True}), "GET", "/apis?verified=true", False),
        (requests.search_apis("a b", {"page": 2}), "GET", "/apis?q=a%20b&page=2", False),
        (requests.search_apis(None, {}), "GET", "/apis", False),
        (requests.show_listing("api_1"), "GET", "/apis/api_1", False),
        (requests.describe_listing("../x"), "GET", "/apis/..%2Fx/agent", False),
        (requests.describe_listing("api_1", 2), "GET", "/apis/api_1/agent?page=2", False),
        (requests.count_listings("a b"), "GET", "/facets?q=a%20b", False),
        (requests.count_listings(None), "GET", "/facets", False),
        (requests.show_stats("../x"), "GET", "/apis/..%2Fx/stats", False),
        (requests.list_networks(), "GET", "/networks", False),
        (requests.show_status(), "GET", "/status", False),
        (requests.list_calls({"limit": 5}), "GET", "/history?limit=5", True),
        (requests.find_call("call_1"), "GET", "/history/call_1", True),
        (requests.find_payment(HASH), "GET", f"/payments/{HASH.lower()}", True),
    ],
)
def test_a_request_is_written_to_the_letter(
    request_: ControlRequest, method: str, path: str, is_signed: bool
) -> None:
    assert (request_.method, request_.path, request_.is_signed) == (method, path, is_signed)


def test_a_draft_goes_as_json_and_an_etag_as_if_match() -> None:
    asked = requests.update_listing("api_1", {"name": "ä"}, etag='"1"')
    assert asked.body == '{"name":"ä"}'.encode()
    assert asked.headers == (("Content-Type", "application/json"), ("If-Match", '"1"'))


def test_an_invalid_hash_is_not_sent() -> None:
    with pytest.raises(ValueError):
        requests.find_payment("0x12")


@pytest.mark.parametrize(("status", "content"), [(200, b'{"total":1}'), (204, b""), (201, b"{}")])
def test_success_is_its_document(status: int, content: bytes) -> None:
    assert read_document(SHOW, status, content) == ({"total": 1} if status == 200 else {})


@pytest.mark.parametrize(
    ("status", "content", "code"),
    [
        (403, b'{"code":"not_provider","detail":"no"}', "not_provider"),
        (302, b"{}", "unknown"),
        (502, b"<html>", "unknown"),
        (403, b'{"code":["x"],"detail":7}', "unknown"),
        (403, b'{"code":"Not a code","detail":null}', "unknown"),
    ],
)
def test_everything_else_is_a_refusal_with_its_code(status: int, content: bytes, code: str) -> None:
    with pytest.raises(GatewayRefused) as refused:
        read_document(SHOW, status, content)
    assert (refused.value.status, refused.value.code) == (status, code)


@pytest.mark.parametrize(
    "content", [b"[]", b"no", b'{"a":NaN}', b'{"a":1e400}', b'{"a":' + b"9" * 5_000 + b"}"]
)
def test_a_success_that_is_no_object_of_json_is_malformed(content: bytes) -> None:
    with pytest.raises(GatewayResponseInvalid) as failed:
        read_document(SHOW, 200, content)
    assert failed.value.code == "gateway_response_invalid"


@pytest.mark.parametrize("entries", [b"null", b"{}", b'"x"', b"[1]", b"[{}, null]"])
def test_a_page_without_its_list_is_malformed(entries: bytes) -> None:
    for control_request, name in ((requests.list_apis({}), b"apis"), (requests.list_calls({}), b"calls")):
        assert read_document(control_request, 200, b'{"%s":[{}]}' % name)
        for content in (b'{"%s":%s}' % (name, entries), b"{}"):
            with pytest.raises(GatewayResponseInvalid, match=name.decode()):
                read_document(control_request, 200, content)


def test_deep_nesting_is_a_refusal_even_when_python_would_follow_it_into_a_crash() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)  # what importing py_ecc (below eth-account) does to the whole process
    try:
        for bomb in (b"[" * 500_000, b'{"a":' * 500_000, b"[" * 100_000 + b"]" * 100_000):
            with pytest.raises(GatewayResponseInvalid):
                read_document(SHOW, 200, bomb)
    finally:
        sys.setrecursionlimit(before)
