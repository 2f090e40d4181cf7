"""The snippets of a listing: each parses in its language, names the request of the operation, and quotes the words of the provider."""

import ast
import json
import shlex
import subprocess
from itertools import pairwise

import pytest

from tests.kit.listings import show_listing
from tests.kit.metering import sample_metering
from tests.kit.waits import DEADLINE_S
from tollway.discovery.listing_view import ListingView
from tollway.discovery.operations import ApiOperation
from tollway.money import Price
from tollway.sandbox.provider import SAMPLE_DOCUMENT
from tollway.web.pages.snippets import Snippet, write_snippets

QUOTE = "'; rm -rf / #\" $(id) `id` \\"


def snippets(view: ListingView, tool: str | None = None) -> dict[str, Snippet]:
    operation = find(view, tool)
    return {one.name: one for one in write_snippets(view, operation)}


def find(view: ListingView, tool: str | None) -> ApiOperation:
    return next(one for one in view.operations if tool is None or one.tool == tool)


def document(**parameter: object) -> dict[str, object]:
    given = {"name": "q", "in": "query", "required": True, "schema": {"type": "string"}, **parameter}
    return {
        "openapi": "3.1.0",
        "info": {"title": "x", "version": "1"},
        "paths": {"/find": {"get": {"operationId": "find", "parameters": [given], "responses": {}}}},
    }


def words(text: str) -> list[str]:
    """The words of the last command of a shell text, as a shell reads them."""
    return shlex.split(text.splitlines()[-1])


def test_curl_has_method_headers_and_body() -> None:
    found = snippets(show_listing(openapi=SAMPLE_DOCUMENT), "echo")
    assert words(found["curl"].text) == [
        *("curl", "-i", "-X", "POST", "-H", "content-type: application/json", "--data", '{"hello": "world"}'),
        f"https://gw.example.com/api/v2/gateway/{show_listing().listing.id}/echo",
    ]
    assert found["curl"].text.startswith("# responds 402")


def test_the_command_has_a_limit_of_the_price() -> None:
    view = show_listing(openapi=SAMPLE_DOCUMENT)
    assert words(snippets(view, "get_quote")["tollway"].text) == [
        *("tollway", "call", view.listing.id, "/quote/ETH", "--chain", str(view.listing.networks[0])),
        *("--max-price", "0.01 USDC"),
    ]


@pytest.mark.parametrize("tool", [one.tool for one in show_listing(openapi=SAMPLE_DOCUMENT).operations])
def test_python_and_mcp_parse(tool: str) -> None:
    found = snippets(show_listing(openapi=SAMPLE_DOCUMENT), tool)
    ast.parse(found["Python"].text)
    server = json.loads(found["MCP"].text)["mcpServers"]["tollway"]
    assert server["env"]["TOLLWAY_MAX_PRICE"] == "0.01 USDC"
    assert server["args"][0] == "mcp"


@pytest.mark.process
def test_words_of_a_provider_are_quoted_for_each_language() -> None:
    view = show_listing(openapi=document(schema={"type": "string", "examples": [QUOTE]}))
    found = snippets(view)
    for name in ("curl", "tollway"):
        echoed = subprocess.run(
            ["sh", "-c", "for one; do printf '%s\\n' \"$one\"; done", "x", *words(found[name].text)],
            check=True,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert "%27%3B%20rm" in echoed.stdout
    ast.parse(found["Python"].text)
    json.loads(found["MCP"].text)


def test_a_kept_call_is_in_every_snippet() -> None:
    view = show_listing(openapi=SAMPLE_DOCUMENT)
    target = "/quote/BTC?at='now'"
    found = {one.name: one.text for one in write_snippets(view, find(view, "get_quote"), target=target)}
    assert words(found["curl"])[-1] == view.gateway_url + target
    assert words(found["tollway"])[:4] == ["tollway", "call", view.listing.id, target]
    assert json.dumps(target) in found["Python"]
    assert json.dumps(view.gateway_url + target) in found["TypeScript"]


def test_a_free_operation_needs_no_payment() -> None:
    found = snippets(show_listing(openapi=SAMPLE_DOCUMENT, price=Price.parse("0")))
    assert "402" not in found["curl"].text
    assert "x402" not in found["TypeScript"].text
    assert found["TypeScript"].setup == ""
    assert "--max-price" not in found["tollway"].text
    assert "--chain" not in found["tollway"].text
    assert "max_price" not in found["Python"].text


def test_a_metered_operation_says_that_its_price_is_a_maximum() -> None:
    """x402 `exact` cannot pay it: no snippet signs an authorisation."""
    found = snippets(show_listing(openapi=SAMPLE_DOCUMENT, metering=sample_metering()), "get_quote")
    assert list(found) == ["curl", "tollway", "Python", "MCP"]
    assert found["curl"].text.startswith("# responds 402 with the maximum price")
    assert "\n# --max-price: the maximum of a call, which costs what" in found["tollway"].text
    assert words(found["tollway"].text)[-2:] == ["--max-price", "0.01 USDC"]
    assert "\n# max_price: the maximum of a call" in found["Python"].text
    ast.parse(found["Python"].text)


def test_an_undocumented_api_has_snippets_too() -> None:
    view = show_listing()
    assert words(snippets(view)["curl"].text)[-1] == view.gateway_url


# ---- Forms and files.

BINARY = {"type": "string", "format": "binary"}


def upload(media_type: str, schema: object = None) -> ListingView:
    entry = {} if schema is None else {"schema": schema}
    operation = {"operationId": "send", "requestBody": {"required": True, "content": {media_type: entry}}}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "x", "version": "1"},
        "paths": {"/a": {"post": operation}},
    }
    return show_listing(openapi=document)


def test_a_form_with_files_is_written_by_each_program() -> None:
    properties = {"file": BINARY, "note": {"type": "string", "examples": ["a b"]}, "n": {"default": 2}}
    view = upload("multipart/form-data", {"properties": properties, "required": ["file"]})
    found = snippets(view)
    url = f"{view.gateway_url}/a"
    fields = ["--form-string", "note=a b", "--form-string", "n=2"]
    assert words(found["curl"].text) == ["curl", "-i", "-X", "POST", "-F", "file=@FILE", *fields, url]
    assert words(found["tollway"].text)[2:] == [
        *(view.listing.id, "/a", "--form", "file=@FILE", "--form", "note=a b", "--form", "n=2"),
        *(word for chain_id in view.listing.networks for word in ("--chain", str(chain_id))),
        *("--max-price", "0.01 USDC"),
    ]
    ast.parse(found["Python"].text)
    assert 'files=[("file", open("FILE", "rb")), ("note", (None, "a b")), ("n", (None, "2"))]' in (
        found["Python"].text
    )
    assert 'body.append("file", await openAsBlob("FILE"), "FILE");' in found["TypeScript"].text
    assert '"method": "POST", body}' in found["TypeScript"].text
    assert "content-type" not in "".join(found[name].text for name in ("curl", "tollway", "Python"))


def test_a_body_of_bytes_is_a_file_of_each_program() -> None:
    found = snippets(upload("image/png"))
    assert words(found["curl"].text)[4:8] == ["-H", "content-type: image/png", "--data-binary", "@FILE"]
    assert {"-d", "@FILE", "content-type: image/png"} <= set(words(found["tollway"].text))
    ast.parse(found["Python"].text)
    assert 'const body = await openAsBlob("FILE");' in found["TypeScript"].text


def test_a_form_as_text_is_the_body_of_each_program() -> None:
    schema = {"properties": {"to": {"examples": ["a b"]}}, "required": ["to"]}
    found = snippets(upload("application/x-www-form-urlencoded", schema))
    assert "to=a+b" in words(found["curl"].text)
    assert "to=a+b" in words(found["tollway"].text)


@pytest.mark.parametrize(
    ("name", "example"), [("x", "@/etc/passwd"), ("x", "</etc/passwd"), ("x=@/etc/passwd;y", "z")]
)
def test_a_document_names_no_file_of_the_reader(name: str, example: str) -> None:
    properties = {name: {"type": "string", "examples": [example]}, "file": BINARY}
    found = snippets(upload("multipart/form-data", {"properties": properties, "required": [name, "file"]}))
    curl, command = words(found["curl"].text), words(found["tollway"].text)
    read = [word for flag, word in pairwise(curl) if flag in ("-F", "--data", "--data-binary")]
    assert read == ["file=@FILE"]
    assert [word for flag, word in pairwise(command) if flag in ("--form", "-d")] == ["file=@FILE"]
