"""What the gateway fetches by itself (proofs of ownership, documents, looks at an endpoint, probes, a facilitator), led to every
place where it must not go. Runs inside the network of `outbound_inside.py` against a gateway of its own.

Nothing in here decides whether the gateway has passed; `test_outbound.py` does.
"""

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx
from eth_account import Account

from tests.system.attack.attacked_gateway import AttackedGateway, free_listing
from tollway.client.wallet import Wallet

IS_LONG = os.environ.get("ATTACK") == "long"
CROWD = 8
PROBES_DEADLINE_S = 60.0
PROBES_SEEN = 3
"""A name that was probed so often after it had turned was not left alone after its first refusal."""
PORTS = (1, 22, 25, 53, 111, 143, 445, 587, 993, 1023)
CANARIES = ("canary.street.test", "lure.street.test")
"""The first stands in documents, the second where redirects lead: nobody has a reason to ask where they are."""
REDIRECTS = (
    f"http://{CANARIES[1]}:8080/",
    "http://169.254.169.254/latest",
    "http://127.0.0.1:6379/",
    "http://[::1]:8080/",
    "//10.0.0.1/",
    "http://2852039166/latest",
    "http://private-1.street.test/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:25/",
)
NAMES = ("mixed", "chain", "embedded", "private")

FACILITATOR = ("facilitator.street.test", "11.22.33.44", 8080)
"""The operator's own choice: dialled, and followed nowhere."""
SETTINGS = f"""
[[networks]]
preset = "base"
rpc_urls = ["http://127.0.0.1:9"]
facilitator = {{url = "http://{FACILITATOR[0]}:{FACILITATOR[2]}/redirect/0"}}
"""
ENVIRONMENT = {
    "TEST_LIMIT_DIAL_FAILURES_MAX": "1",
    "TEST_LIMIT_DIAL_PAUSE_S": "0.5",
    "TOLLWAY_LIMIT_PROBE_INTERVAL_S": "0.5",
    "TEST_LIMIT_OWNERSHIP_CHECKS_PER_HOUR": "1000000",
}


def write_settings(folder: Path) -> None:
    path = folder / "tollway.toml"
    path.write_text(SETTINGS)
    path.chmod(0o600)


class OwnRequests:
    """`asked`: the number of queries for each name at the name server of this network."""

    def __init__(
        self,
        gateway: AttackedGateway,
        http: httpx.AsyncClient,
        *,
        denied: Sequence[str],
        spelt: Iterable[str],
        asked: Counter[str],
    ) -> None:
        self._gateway = gateway
        self._http = http
        self._denied = denied
        self.some = range(0, len(denied), 1 if IS_LONG else 3)  # numbers of denied addresses
        self._spelt = tuple(spelt) if IS_LONG else tuple(spelt)[::10]
        self._asked = asked
        self._wallet = Wallet.from_key(Account.create().key)
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        await self._prove()
        await self._import_documents()
        await self._edit()
        await self._look_at_endpoints()
        await self._probe()
        await self._read_references()

    # ---- The control plane.

    async def _ask(self, method: str, path: str, members: Any = None) -> httpx.Response:
        body, headers = self._gateway.sign(self._wallet, method, path, members)
        return await self._http.request(method, path, content=body, headers=headers)

    async def _create(self, endpoint: str, **more: Any) -> httpx.Response:
        return await self._ask("POST", "/api/v2/apis", free_listing(endpoint, **more))

    async def _publish(self, endpoint: str, **more: Any) -> str:
        answer = await self._create(endpoint, **more)
        if answer.status_code != 201:
            raise RuntimeError(f"{endpoint}: {answer.status_code} {answer.text[:300]}")
        return str(answer.json()["id"])

    # ---- Each kind of request.

    async def _prove(self) -> None:
        """A name that was allowed when it was listed, and leads to a forbidden address afterwards."""

        async def prove(what: str, endpoint: str) -> None:
            api_id = await self._publish(endpoint)
            answer = await self._ask("POST", f"/api/v2/apis/{api_id}/ownership")
            checks = answer.json()["checks"]
            told = f"{checks['wellKnown']} {checks['dns']} {checks['signature']}"
            self.counts[f"{what}: {answer.status_code} {told}"] += 1

        numbers = range(len(self._denied))
        await _crowd(prove("ownership", f"http://turned-{number}-1-owner.street.test/") for number in numbers)
        hosts = [f"good-{number}.street.test" for number in range(len(REDIRECTS))]
        await _crowd(prove("ownership redirect", f"http://{host}/") for host in hosts)

    async def _import_documents(self) -> None:
        async def load(what: str, url: str) -> None:
            answer = await self._create("http://good-1.street.test/", openapiUrl=url)
            self.counts[f"{what}: {answer.status_code}"] += 1

        kinds = [f"http://{kind}-{number}.street.test/d" for kind in NAMES for number in range(30)]
        kinds += [f"http://{kind}-1.street.test/d" for kind in ("huge", "slow", "nobody")]
        turned = [
            f"http://turned-{number}-{times}-document.street.test/d"
            for number in range(len(self._denied))
            for times in (0, 1)
        ]
        await _crowd(load("import", url) for url in (*self._spelt, *kinds, *turned))
        await _crowd(load("import port", f"http://good-1.street.test:{port}/d") for port in PORTS)
        await _crowd(
            load("import redirect", f"http://good-2.street.test/redirect/{number}")
            for number in range(len(REDIRECTS))
        )

    async def _edit(self) -> None:
        """What may not be listed may not be edited in."""
        api_id = await self._publish("http://good-3.street.test/")
        denied = [self._denied[number] for number in self.some]
        places = [f"http://[{one}]/" if ":" in one else f"http://{one}/" for one in denied]
        places += [f"http://good-1.street.test:{port}/" for port in PORTS]

        async def edit(endpoint: str) -> None:
            answer = await self._ask("PUT", f"/api/v2/apis/{api_id}", free_listing(endpoint))
            self.counts[f"edit: {answer.status_code}"] += 1

        await _crowd(edit(place) for place in places)

    async def _look_at_endpoints(self) -> None:
        """The probe of an endpoint without its secret comes after the address check, with a separate look-up."""

        async def publish(number: int) -> None:
            secret = {"in": "header", "name": "X-Key", "value": "secret-of-the-provider"}
            answer = await self._create(f"https://turned-{number}-1-look.street.test/", upstreamAuth=secret)
            self.counts[f"look: {answer.status_code}"] += 1

        await _crowd(publish(number) for number in self.some)

    async def _probe(self) -> None:
        """Listed, called once, and turned: the gateway finds out by itself whether it is there, again and again."""
        names = [f"turned-{number}-2-probe.street.test" for number in self.some]

        async def use(name: str) -> None:
            api_id = await self._publish(f"http://{name}/")
            self.counts[f"probe call: {(await self._call(api_id)).status_code}"] += 1

        await _crowd(use(name) for name in names)
        ends_s = time.monotonic() + PROBES_DEADLINE_S
        while time.monotonic() < ends_s and any(self._asked[name] < 2 + PROBES_SEEN for name in names):
            await asyncio.sleep(0.05)
        self.counts["probe: names"] = sum(self._asked[name] >= 2 + PROBES_SEEN for name in names)

    async def _call(self, api_id: str) -> httpx.Response:
        return await self._http.get(f"/api/v2/gateway/{api_id}")

    async def _read_references(self) -> None:
        """A document that names others, read for its tools and for the check of an argument."""
        there = f"http://{CANARIES[0]}:6379/schema.json"
        schema = {"$schema": there, "$id": there, "$ref": f"{there}#/one", "type": "object"}
        operation = {
            "operationId": "one",
            "requestBody": {"content": {"application/json": {"schema": schema}}},
            "responses": {"200": {"$ref": there}},
            "externalDocs": {"url": there},
        }
        document = {
            "openapi": "3.1.0",
            "info": {"title": "x", "version": "1"},
            "servers": [{"url": f"http://{CANARIES[0]}:6379/"}],
            "paths": {"/one": {"post": operation}, "/two": {"$ref": there}},
        }
        answer = await self._create("http://good-4.street.test/", openapi=document)
        self.counts[f"references: {answer.status_code}"] += 1
        if answer.status_code != 201:
            return
        api_id = answer.json()["id"]
        listed = await self._use_tools(api_id, "tools/list")
        if "result" not in listed.text:
            raise RuntimeError(f"no tools: {listed.status_code} {listed.text[:300]}")
        tools = listed.json()["result"]["tools"]
        self.counts["references: tools"] = len(tools)
        for tool in tools:
            await self._use_tools(api_id, "tools/call", name=tool["name"], arguments={"body": {"a": 1}})

    async def _use_tools(self, api_id: str, method: str, **params: Any) -> httpx.Response:
        question = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"accept": "application/json, text/event-stream"}
        return await self._http.post(f"/mcp/{api_id}", json=question, headers=headers)


async def _crowd(own_requests: Iterable[Awaitable[None]]) -> None:
    """A few at a time."""
    turns = iter(own_requests)

    async def run() -> None:
        for request in turns:
            await request

    await asyncio.gather(*(run() for _ in range(CROWD)))


redirects = itertools.cycle(range(len(REDIRECTS)))
"""Where a server of this network sends those who ask it for a proof: each time to another place."""
