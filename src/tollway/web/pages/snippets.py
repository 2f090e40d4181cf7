"""The snippets of a listing's page: curl, Python, TypeScript and MCP, for one operation. Pure.

Each works when it is pasted: names come from the operation's example, texts of providers are quoted for the language. Keys and nodes come from the environment of the
reader, never from the page, and so does a file: `FILE` stands for its path, and no text of a provider is read as one. A metered operation has none for
TypeScript, because x402 `exact` cannot pay it.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tollway.discovery.forms import MULTIPART, bare_type
from tollway.discovery.listing_view import ListingView
from tollway.discovery.operations import ApiOperation
from tollway.discovery.requests import ToolRequest, example_arguments, example_json, make_request
from tollway.ids import ChainId

CONTENT_TYPE = "content-type"
FILE = "FILE"
MAXIMUM = "# the maximum of a call, which costs what its response reports"
_FIELD_NAME = re.compile(r"[A-Za-z0-9_.\[\]-]{1,128}")
"""Of a field in a command: others could be read as a value or a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """`name`: of the language. `setup`: the line that installs what it needs; empty where nothing is needed."""

    name: str
    setup: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Example:
    """The example request. `path`: below the URL of the listing, with its query. `form`: name and text of each field, None for a file. `is_file`: the body is one."""

    method: str
    url: str
    path: str
    headers: Mapping[str, str]
    body: Any
    has_body: bool
    price: str
    is_metered: bool
    form: tuple[tuple[str, str | None], ...] = ()
    is_file: bool = False


def write_snippets(
    view: ListingView, operation: ApiOperation, *, target: str | None = None
) -> Sequence[Snippet]:
    """The snippets for an operation. Where the document has no example, the template of its path stands in the place of one. `target`: the path and the
    query of the call that the page keeps, in the place of those of the example."""
    example = _read_example(view, operation, target)
    found = (
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
    return tuple(one for one in found if not (example.is_metered and one.name == "TypeScript"))


def _read_example(view: ListingView, operation: ApiOperation, target: str | None) -> _Example:
    form = _read_form(operation)
    is_upload = bool(form) or operation.is_body_file
    content = (None if is_upload else example_json(operation, view.gateway_url)) or {
        "method": operation.method,
        "url": view.url_of(operation),
    }
    body = content.get("body")
    if is_upload:
        request = make_request(operation, example_arguments(operation) or {})
        if isinstance(request, ToolRequest):
            content["url"] = view.gateway_url + request.target
            content["headers"] = {
                name: value
                for name, value in request.headers
                if name != CONTENT_TYPE or operation.is_body_file
            }
    url = content["url"] if target is None else view.gateway_url + target
    return _Example(
        method=content["method"],
        url=url,
        path=url.removeprefix(view.gateway_url),
        headers=content.get("headers", {}),
        body=body,
        has_body="body" in content,
        price="" if operation.price.is_free else f"{operation.price.text} {view.listing.currency}",
        is_metered=operation.metering is not None,
        form=form,
        is_file=operation.is_body_file,
    )


def _read_form(operation: ApiOperation) -> tuple[tuple[str, str | None], ...]:
    """The fields of a form with parts, with the values of the example; nothing for another body."""
    if bare_type(operation.body_type or "") != MULTIPART:
        return ()
    body = next((one.name for one in operation.arguments if one.place == "body"), "")
    values = (example_arguments(operation) or {}).get(body)
    given: Mapping[str, Any] = values if isinstance(values, Mapping) else {}
    return tuple(
        (field.name, None if field.is_file else _field_text(given[field.name]))
        for field in operation.form_fields
        if field.name in given and _FIELD_NAME.fullmatch(field.name)
    )


def _field_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _curl(example: _Example) -> str:
    parts = ["curl -i"]
    if example.method != "GET":
        parts.append(f"-X {shlex.quote(example.method)}")
    parts += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in example.headers.items()]
    if example.has_body:
        parts.append(f"--data {shlex.quote(_body_text(example))}")
    if example.is_file:
        parts.append(f"--data-binary @{FILE}")
    parts += [
        f"-F {shlex.quote(f'{name}=@{FILE}')}"
        if text is None
        else f"--form-string {shlex.quote(f'{name}={text}')}"
        for name, text in example.form
    ]
    parts.append(shlex.quote(example.url))
    line = " ".join(parts)
    price = "maximum price" if example.is_metered else "price"
    return line if not example.price else f"# responds 402 with the {price} and every way to pay\n{line}"


def _body_text(example: _Example) -> str:
    return example.body if isinstance(example.body, str) else json.dumps(example.body, ensure_ascii=False)


def _command(view: ListingView, example: _Example) -> str:
    parts = ["tollway call", view.listing.id]
    if example.path:
        parts.append(shlex.quote(example.path))
    has_body = example.has_body or example.is_file or bool(example.form)
    if example.method not in ("GET", "POST") or (example.method == "POST" and not has_body):
        parts.append(f"-X {shlex.quote(example.method)}")
    if example.has_body:
        parts.append(f"-d {shlex.quote(_body_text(example))}")
    if example.is_file:
        parts.append(f"-d @{FILE}")
    parts += [
        f"--form {shlex.quote(f'{name}=@{FILE}' if text is None else f'{name}={text}')}"
        for name, text in example.form
        if text is None or text[:1] not in ("@", "<")  # the command would read a file
    ]
    parts += [
        f"-H {shlex.quote(f'{name}: {value}')}"
        for name, value in example.headers.items()
        if name != CONTENT_TYPE or example.is_file
    ]
    if example.price:
        parts += [f"--chain {int(chain_id)}" for chain_id in view.listing.networks]
        parts.append(f"--max-price {shlex.quote(example.price)}")
    return (
        f"export TOLLWAY_GATEWAY={shlex.quote(view.public_url)}\n"
        "export TOLLWAY_KEY_FILE=~/.tollway/wallet.key  # tollway wallet new --out ~/.tollway/wallet.key\n"
        + (f"{MAXIMUM.replace('# ', '# --max-price: ')}\n" if example.is_metered else "")
        + " ".join(parts)
    )


def _python(view: ListingView, example: _Example) -> str:
    arguments = [_python_text(view.listing.id), _python_text(example.path)]
    if example.method != "GET":
        arguments.append(f"method={_python_text(example.method)}")
    if example.has_body:
        name = "content" if isinstance(example.body, str) else "json"
        arguments.append(f"{name}={example.body!r}")
    if example.is_file:
        arguments.append(f'content=open("{FILE}", "rb").read()')
    if example.form:
        fields = [
            f'({_python_text(name)}, open("{FILE}", "rb"))'
            if text is None
            else f"({_python_text(name)}, (None, {_python_text(text)}))"
            for name, text in example.form
        ]
        arguments.append(f"files=[{', '.join(fields)}]")
    headers = {
        name: value
        for name, value in example.headers.items()
        if name != CONTENT_TYPE or isinstance(example.body, str) or example.is_file
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
        + (f"{MAXIMUM.replace('# ', '# max_price: ')}\n" if example.is_metered else "")
        + f"with TollwayClient({_python_text(view.public_url)}, wallet=wallet, chains={chains}{limit}) as client:\n"
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
    body = _typescript_body(example)
    members = [json.dumps(options)[1:-1]] if options else []
    members += ["body"] if body else []
    given = f", {{{', '.join(members)}}}" if members else ""
    url = json.dumps(example.url)
    has_file = example.is_file or any(text is None for _, text in example.form)
    blob = 'import { openAsBlob } from "node:fs";\n' if has_file else ""
    if not example.price:
        return (
            blob
            + body
            + f"const response = await fetch({url}{given});\nconsole.log(response.status, await response.text());"
        )
    return (
        blob + 'import { registerExactEvmScheme } from "@x402/evm/exact/client";\n'
        'import { wrapFetchWithPayment, x402Client } from "@x402/fetch";\n'
        'import { privateKeyToAccount } from "viem/accounts";\n\n'
        "const client = new x402Client();\n"
        "const signer = privateKeyToAccount(process.env.PAYER_KEY as `0x${string}`);\n"
        "registerExactEvmScheme(client, { signer });\n"
        "const pay = wrapFetchWithPayment(fetch, client);\n\n"
        + body
        + f"const response = await pay({url}{given});\n"
        'console.log(response.status, response.headers.get("tollway-payment-state"));\n'
        "console.log(await response.text());"
    )


def _typescript_body(example: _Example) -> str:
    """The lines that make a body of files; empty for another one."""
    if example.is_file:
        return f'const body = await openAsBlob("{FILE}");\n'
    if not example.form:
        return ""
    lines = [
        f'body.append({json.dumps(name)}, await openAsBlob("{FILE}"), "{FILE}");\n'
        if text is None
        else f"body.append({json.dumps(name)}, {json.dumps(text)});\n"
        for name, text in example.form
    ]
    return "const body = new FormData();\n" + "".join(lines)


def _mcp(view: ListingView, example: _Example) -> str:
    price = example.price or f"0.05 {view.listing.currency}"
    return write_mcp_settings(view.public_url, view.listing.networks, max_price=price)


def write_mcp_settings(public_url: str, networks: Iterable[ChainId], *, max_price: str) -> str:
    """The settings of an MCP client, which start the server of a wallet. `max_price`: with its currency; empty for a gateway of free APIs."""
    limits = {"TOLLWAY_MAX_PRICE": max_price, "TOLLWAY_BUDGET": f"1 {max_price.partition(' ')[2]}"}
    server = {
        "command": "tollway",
        "args": ["mcp", *(part for chain_id in networks for part in ("--chain", str(int(chain_id))))],
        "env": {
            "TOLLWAY_GATEWAY": public_url,
            "TOLLWAY_KEY_FILE": "/home/you/.tollway/agent.key",
            **(limits if max_price else {}),
        },
    }
    return json.dumps({"mcpServers": {"tollway": server}}, indent=2)
