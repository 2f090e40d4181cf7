"""The snippets of a listing's page: curl, Python, TypeScript and MCP, for one operation. Pure.

Each works when it is pasted: names come from the operation's example, texts of providers are quoted for the language. Keys and nodes come from the environment of the
reader, never from the page.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tollway.discovery.listing_view import ListingView
from tollway.discovery.operations import ApiOperation
from tollway.discovery.requests import example_json

CONTENT_TYPE = "content-type"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """`name`: of the language. `setup`: the line that installs what it needs; empty where nothing is needed."""

    name: str
    setup: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Example:
    """The example request. `path`: below the URL of the listing, with its query."""

    method: str
    url: str
    path: str
    headers: Mapping[str, str]
    body: Any
    has_body: bool
    price: str


def write_snippets(view: ListingView, operation: ApiOperation) -> Sequence[Snippet]:
    """The snippets for an operation. Where the document has no example, the template of its path stands in the place of one."""
    example = _read_example(view, operation)
    return (
        Snippet(name="curl", setup="", text=_curl(example)),
        Snippet(name="tollway", setup="pip install tollway", text=_command(view, example)),
        Snippet(name="Python", setup="pip install tollway", text=_python(view, example)),
        Snippet(
            name="TypeScript",
            setup="npm install @x402/fetch @x402/evm viem" if example.price else "",
            text=_typescript(example),
        ),
        Snippet(name="MCP", setup="pip install 'tollway[mcp]'", text=_mcp(view, example)),
    )


def _read_example(view: ListingView, operation: ApiOperation) -> _Example:
    content = example_json(operation, view.gateway_url) or {
        "method": operation.method,
        "url": view.url_of(operation),
    }
    body = content.get("body")
    return _Example(
        method=content["method"],
        url=content["url"],
        path=content["url"].removeprefix(view.gateway_url) or "",
        headers=content.get("headers", {}),
        body=body,
        has_body="body" in content,
        price="" if operation.price.is_free else f"{operation.price.text} {view.listing.currency}",
    )


def _curl(example: _Example) -> str:
    parts = ["curl -i"]
    if example.method != "GET":
        parts.append(f"-X {shlex.quote(example.method)}")
    parts += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in example.headers.items()]
    if example.has_body:
        parts.append(f"--data {shlex.quote(_body_text(example))}")
    parts.append(shlex.quote(example.url))
    line = " ".join(parts)
    return line if not example.price else f"# responds 402 with the price and every way to pay\n{line}"


def _body_text(example: _Example) -> str:
    return example.body if isinstance(example.body, str) else json.dumps(example.body, ensure_ascii=False)


def _command(view: ListingView, example: _Example) -> str:
    parts = ["tollway call", view.listing.id]
    if example.path:
        parts.append(shlex.quote(example.path))
    if example.method not in ("GET", "POST") or (example.method == "POST" and not example.has_body):
        parts.append(f"-X {shlex.quote(example.method)}")
    if example.has_body:
        parts.append(f"-d {shlex.quote(_body_text(example))}")
    parts += [
        f"-H {shlex.quote(f'{name}: {value}')}"
        for name, value in example.headers.items()
        if name != CONTENT_TYPE
    ]
    if example.price:
        parts.append(f"--max-price {shlex.quote(example.price)}")
    return (
        f"export TOLLWAY_GATEWAY={shlex.quote(view.public_url)}\n"
        "export TOLLWAY_KEY_FILE=~/.tollway/wallet.key  # tollway wallet new --out ~/.tollway/wallet.key\n"
        + " ".join(parts)
    )


def _python(view: ListingView, example: _Example) -> str:
    arguments = [_python_text(view.listing.id), _python_text(example.path)]
    if example.method != "GET":
        arguments.append(f"method={_python_text(example.method)}")
    if example.has_body:
        name = "content" if isinstance(example.body, str) else "json"
        arguments.append(f"{name}={example.body!r}")
    headers = {
        name: value
        for name, value in example.headers.items()
        if name != CONTENT_TYPE or isinstance(example.body, str)
    }
    if headers:
        arguments.append(f"headers={headers!r}")
    chains = [int(chain_id) for chain_id in view.listing.networks]
    limit = (
        f', max_price={_python_text(example.price)}, budget="1 {view.listing.currency}"'
        if example.price
        else ""
    )
    return (
        "import os\n"
        "from tollway.client import TollwayClient, Wallet\n\n"
        "wallet = Wallet.from_environment(os.environ)  # TOLLWAY_KEY_FILE\n"
        f"with TollwayClient({_python_text(view.public_url)}, wallet=wallet, chains={chains}{limit}) as client:\n"
        f"    response = client.call({', '.join(arguments)})\n"
        "    print(response.status_code, response.payment.state)\n"
        "    print(response.text)"
    )


def _python_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)


def _typescript(example: _Example) -> str:
    options: dict[str, Any] = {}
    if example.method != "GET":
        options["method"] = example.method
    if example.headers:
        options["headers"] = dict(example.headers)
    if example.has_body:
        options["body"] = _body_text(example)
    given = f", {json.dumps(options)}" if options else ""
    url = json.dumps(example.url)
    if not example.price:
        return f"const response = await fetch({url}{given});\nconsole.log(response.status, await response.text());"
    return (
        'import { registerExactEvmScheme } from "@x402/evm/exact/client";\n'
        'import { wrapFetchWithPayment, x402Client } from "@x402/fetch";\n'
        'import { privateKeyToAccount } from "viem/accounts";\n\n'
        "const client = new x402Client();\n"
        "const signer = privateKeyToAccount(process.env.PAYER_KEY as `0x${string}`);\n"
        "registerExactEvmScheme(client, { signer });\n"
        "const pay = wrapFetchWithPayment(fetch, client);\n\n"
        f"const response = await pay({url}{given});\n"
        'console.log(response.status, response.headers.get("tollway-payment-state"));\n'
        "console.log(await response.text());"
    )


def _mcp(view: ListingView, example: _Example) -> str:
    chains = [part for chain_id in view.listing.networks for part in ("--chain", str(int(chain_id)))]
    currency = view.listing.currency
    server = {
        "command": "tollway",
        "args": ["mcp", *chains],
        "env": {
            "TOLLWAY_GATEWAY": view.public_url,
            "TOLLWAY_KEY_FILE": "/home/you/.tollway/agent.key",
            "TOLLWAY_MAX_PRICE": example.price or f"0.05 {currency}",
            "TOLLWAY_BUDGET": f"1 {currency}",
        },
    }
    return json.dumps({"mcpServers": {"tollway": server}}, indent=2)
