"""The providers' side of the attack, run inside a network of its own: registers every address, spelling and name that it
can think of with a production gateway, calls what was accepted, and reports what was dialled. Prints one line of JSON.

Nothing in here decides whether the gateway has passed; `test_outbound.py` does.
"""

import asyncio
import ipaddress
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from eth_account import Account

from tests.system.attack.attacked_gateway import AttackedGateway, free_listing
from tests.system.attack.name_server import Answer, NameServer
from tests.system.attack.own_requests import (
    CANARIES,
    ENVIRONMENT,
    FACILITATOR,
    PORTS,
    REDIRECTS,
    OwnRequests,
    redirects,
    write_settings,
)
from tests.system.attack.wire_tap import WireTap
from tollway.client.wallet import Wallet

PORT = 8402
OWN_REQUESTS_PORT = 8403
PUBLIC_ADDRESS = "23.192.228.80"
PUBLIC_URL = f"http://gateway.street.test:{PORT}"
OWN_REQUESTS_URL = f"http://gateway.street.test:{OWN_REQUESTS_PORT}"
PROXY_PORT = 3128
DOORS = (80, 443, 8080, 22, 25, 6379, PROXY_PORT)
"""Where somebody listens on every address of this world. A canary that answers is a canary that was hit."""

ALLOWED = (
    "1.1.1.1",
    "8.8.8.8",
    "9.9.9.9",
    "93.184.216.34",
    "100.63.255.255",
    "128.0.0.1",
    "172.32.0.1",
    "192.169.0.1",
    "198.20.0.1",
    "223.255.255.254",
    "2606:4700:4700::1111",
    "2001:4860:4860::8888",
    "2a00:1450:4001::200e",
)
DENIED = (
    *("127.0.0.1", "127.1.2.3", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.254"),
    *("172.16.0.1", "172.31.255.254", "192.168.0.1", "192.168.255.254", "100.64.0.1", "100.127.255.254"),
    *(
        "169.254.0.1",
        "169.254.169.254",
        "169.254.169.253",
        "169.254.170.2",
        "169.254.170.23",
        "169.254.42.42",
    ),
    *(
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "192.0.0.1",
        "192.0.2.1",
        "198.51.100.1",
        "203.0.113.1",
    ),
    *("198.18.0.1", "198.19.255.254", "192.88.99.1", "192.31.196.1", "192.52.193.1", "192.175.48.1"),
    *("224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.254", "255.255.255.255"),
    *("::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1"),
    *(
        "64:ff9b::808:808",
        "64:ff9b:1::1",
        "2002:7f00:1::1",
        "2002:808:808::1",
        "2001::1",
        "2001:db8::1",
        "2001:10::1",
    ),
    *("2001:20::1", "3ffe::1", "3fff::1", "5f00::1", "100::1", "fc00::1", "fd00:ec2::254", "fd12:3456::1"),
    *("fd20:ce::254", "fe80::1", "fec0::1", "ff02::1", "2620:4f:8000::1", "4000::1", "8000::1"),
    "2606:4700::5efe:7f00:1",
)
REBINDING_NAMES, CALLS_PER_NAME = 50, 20
CROWD = 16


# ---- What names mean here.


def zone(name: str, times: int) -> Answer:
    host, _, rest = name.partition(".")
    kind, _, told = host.partition("-")
    number, _, told = told.partition("-")
    if not rest.endswith("street.test"):
        return ()
    if kind.startswith("_"):  # what a name says of itself: it leads elsewhere, too
        return ("private-1.street.test", DENIED[1])
    public = ALLOWED[int(number or 0) % 10]
    match kind:
        case "gateway":
            return (PUBLIC_ADDRESS,)
        case "facilitator":
            return (FACILITATOR[1],)
        case "turned":  # public for its first look-ups, and never again
            times_public = int(told.partition("-")[0])
            return (public,) if times <= times_public else (DENIED[int(number)],)
        case "good":
            return (public,)
        case "rebind":  # public when it is judged, and from then on as it likes
            return (public,) if times <= 2 or times % 3 == 0 else (DENIED[(times + int(number)) % 30],)
        case "mixed":
            return (public, DENIED[int(number) % 30])
        case "chain":  # through names that look harmless
            return ("a.street.test", "b.street.test", DENIED[int(number) % 30])
        case "embedded":
            return [DENIED[one] for one in (40, 43, 46)][int(number) % 3 : int(number) % 3 + 1]
        case "huge":
            return [f"11.0.{one // 250}.{one % 250 + 1}" for one in range(500)]
        case "slow":
            return None
        case "private":
            return (DENIED[int(number) % 30],)
    return ()


def spell(address: str) -> Iterator[str]:
    """The same IPv4 address as URLs may spell it."""
    parts = [int(part) for part in address.split(".")]
    whole = int(ipaddress.IPv4Address(address))
    wide = str.maketrans("0123456789", "０１２３４５６７８９")
    circled = str.maketrans("0123456789", "⓪①②③④⑤⑥⑦⑧⑨")
    hexed = f"{whole >> 16:x}:{whole & 0xFFFF:x}"
    yield address + "."
    yield str(whole)
    yield hex(whole)
    yield hex(whole).upper().replace("0X", "0X")
    yield oct(whole).replace("0o", "0")
    yield ".".join(hex(part) for part in parts)
    yield ".".join(f"0{part:o}" for part in parts)
    yield ".".join(f"000{part:o}" for part in parts)
    yield f"{parts[0]}.{whole & 0xFFFFFF}"
    yield f"{parts[0]}.{parts[1]}.{whole & 0xFFFF}"
    yield f"{hex(parts[0])}.{parts[1]}.{oct(whole & 0xFFFF).replace('0o', '0')}"
    yield address.translate(wide)
    yield address.translate(circled)
    yield address.replace(".", "。")
    yield address.replace(".", "．")
    yield address.replace(".", "｡")
    yield "".join(f"%{ord(char):02x}" for char in address)
    yield "".join(f"%25{ord(char):02x}" for char in address)
    yield f"[::{hexed}]"
    yield f"[::ffff:{hexed}]"
    yield f"[::ffff:{address}]"
    yield f"[64:ff9b::{hexed}]"
    yield f"[64:ff9b::{address}]"
    yield f"[2002:{hexed}::]"
    yield f"[0:0:0:0:0:ffff:{hexed}]"
    yield f"[::ffff:0:{address}]"
    yield f"user@{address}"
    yield f"good-1.street.test@{address}"
    yield f"{address}#@good-1.street.test"
    yield f"{address}\\@good-1.street.test"
    yield f"good-1.street.test\\@{address}"
    yield f"{address}%00.street.test"
    yield f"{address}%2f.street.test"
    yield f"{address}\t"
    yield f"\u00ad{address}"
    yield f"{address}:0080"


SPELT = ("127.0.0.1", "169.254.169.254", "10.0.0.1", "192.168.1.1", "100.100.100.200", "0.0.0.0")
NAMES = (
    *(
        "localhost",
        "LOCALHOST",
        "localhost.",
        "localhost.localdomain",
        "a.localhost",
        "ip6-localhost",
        "metadata",
    ),
    *(
        "metadata.google.internal",
        "instance-data",
        "kubernetes.default.svc",
        "printer",
        "nas.local",
        "gateway.internal",
    ),
    *(
        "l\u24deca\u217ch\u24dest",
        "%6c%6f%63%61%6c%68%6f%73%74",
        "lo\u00adcalhost",
        "localhost%2e",
        "[::1%25lo]",
        "[::1]",
    ),
)


def spellings() -> list[str]:
    hosts = [spelt for address in SPELT for spelt in spell(address)]
    return [f"http://{host}/latest" for host in (*hosts, *NAMES)]


# ---- The attack.


class Attack:
    def __init__(self, gateway: AttackedGateway, http: httpx.AsyncClient) -> None:
        self._gateway = gateway
        self._http = http
        self._wallets = [Wallet.from_key(Account.create().key) for _ in range(20)]
        self._turn = 0
        self.counts: Counter[str] = Counter()

    async def register(self, endpoint: str, **more: Any) -> tuple[int, str | None]:
        """The status of a create, and the id of what was created."""
        self._turn += 1
        wallet = self._wallets[self._turn % len(self._wallets)]
        body, headers = self._gateway.sign_create(wallet, free_listing(endpoint, **more))
        answer = await self._http.post("/api/v2/apis", content=body, headers=headers)
        return answer.status_code, answer.json().get("id") if answer.is_success else None

    async def call(self, api_id: str, path: str = "") -> httpx.Response:
        return await self._http.get(f"/api/v2/gateway/{api_id}{path}")

    async def try_out(self, what: str, endpoint: str, **more: Any) -> str | None:
        """Registers and, where that was possible, calls."""
        status, api_id = await self.register(endpoint, **more)
        self.counts[f"{what}: registered {status}"] += 1
        if api_id is not None:
            self.counts[f"{what}: called {(await self.call(api_id)).status_code}"] += 1
        return api_id

    async def run(self) -> None:
        await self._addresses()
        for url in spellings():
            await self.try_out("spelling", url)
        await self._names()
        await self._rebind()
        await self._ports()
        await self._ourselves()
        await self._redirects()
        await self._documents()

    async def _addresses(self) -> None:
        for address in DENIED:
            await self.try_out("denied address", f"http://{_in_url(address)}/")
            await self.try_out("denied address", f"https://{_in_url(address)}:443/")
        for address in ALLOWED:
            await self.try_out("allowed address", f"http://{_in_url(address)}/")

    async def _names(self) -> None:
        for kind in ("mixed", "chain", "embedded", "private"):
            for number in range(30):
                await self.try_out(f"{kind} name", f"http://{kind}-{number}.street.test/")
        for number in range(10):
            await self.try_out("good name", f"http://good-{number}.street.test/")
        await self.try_out("huge name", "http://huge-1.street.test/")
        await self.try_out("slow name", "http://slow-1.street.test/")
        await self.try_out("no name", "http://nobody-1.street.test/")

    async def _rebind(self) -> None:
        found = [
            await self.register(f"http://rebind-{number}.street.test/") for number in range(REBINDING_NAMES)
        ]
        ids = [api_id for _, api_id in found if api_id is not None]
        self.counts["rebinding: registered"] = len(ids)
        turns = iter([api_id for _ in range(CALLS_PER_NAME) for api_id in ids])

        async def caller() -> None:
            for api_id in turns:
                status = (await self.call(api_id)).status_code
                self.counts[f"rebinding: called {status}"] += 1
                self.counts["rebinding: called"] += 1

        await asyncio.gather(*(caller() for _ in range(CROWD)))

    async def _ports(self) -> None:
        for port in PORTS:
            await self.try_out("port", f"http://good-1.street.test:{port}/")

    async def _ourselves(self) -> None:
        await self.try_out("ourselves by name", PUBLIC_URL + "/")
        await self.try_out("ourselves by name", PUBLIC_URL.replace("test:", "test.:") + "/")
        _, first = await self.register(f"http://{PUBLIC_ADDRESS}:{PORT}/api/v2/apis")
        self.counts["ourselves by address: called"] = 0
        if first is not None:
            _, loop = await self.register(f"http://{PUBLIC_ADDRESS}:{PORT}/api/v2/gateway/{first}")
            assert loop is not None
            self.counts[f"loop: called {(await self.call(loop)).status_code}"] += 1

    async def _redirects(self) -> None:
        _, api_id = await self.register("http://good-2.street.test/redirect")
        assert api_id is not None
        answer = await self.call(api_id)
        self.counts[f"redirect: called {answer.status_code}"] += 1

    async def _documents(self) -> None:
        """What the gateway fetches by itself goes the same way out."""
        for number, address in enumerate(DENIED):
            url = f"http://{_in_url(address)}/openapi.json"
            await self.try_out("document", f"http://good-{number % 10}.street.test/", openapiUrl=url)
        for url in spellings()[:60]:
            await self.try_out("document", "http://good-1.street.test/", openapiUrl=url)


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


# ---- The world.


async def serve_everybody(seen: Counter[str]) -> None:
    """A server on every address: an API, and at `/redirect` one that points at the metadata service."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            first = head.split(b"\r\n", 1)[0]
            seen[first.decode("latin-1")] += 1
            if to := find_redirect(first.split(b" ")[1].decode("latin-1")):
                writer.write(
                    f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
                )
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass
        finally:
            writer.close()

    for port in DOORS:
        for host in ("0.0.0.0", "::"):
            await asyncio.start_server(serve, host, port)


def find_redirect(path: str) -> str | None:
    """The target of the redirect that a server of this network returns for that path."""
    if path.startswith("/redirect"):
        return REDIRECTS[int(path.split("/")[2]) if path.count("/") > 1 else 0]
    is_proof = path.startswith("/.well-known/") or path == "/openapi.json"
    return REDIRECTS[next(redirects)] if is_proof else None


def start_gateway(folder: Path, *, port: int, public_url: str, **settings: str) -> AttackedGateway:
    """No private endpoints, and proxies in the environment that it must not use."""
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    environment = {
        **dict.fromkeys(names, f"http://127.0.0.1:{PROXY_PORT}"),
        "NO_PROXY": "",
        "TEST_LIMIT_DIAL_FAILURES_MAX": "1000000",
        "TOLLWAY_LIMIT_DNS_DEADLINE_S": "2",
        **settings,
    }
    return AttackedGateway(folder, host="0.0.0.0", port=port, public_url=public_url, environment=environment)


async def main(folder: Path) -> dict[str, Any]:
    seen: Counter[str] = Counter()
    names = NameServer(zone)
    await names.run("127.0.0.1", 53)
    await serve_everybody(seen)
    tap = WireTap()
    gateway = start_gateway(folder, port=PORT, public_url=PUBLIC_URL)
    other = folder / "own_requests"
    other.mkdir()
    write_settings(other)
    runner = start_gateway(other, port=OWN_REQUESTS_PORT, public_url=OWN_REQUESTS_URL, **ENVIRONMENT)
    try:
        async with (
            httpx.AsyncClient(base_url=gateway.base_url, trust_env=False, timeout=60) as http,
            httpx.AsyncClient(base_url=runner.base_url, trust_env=False, timeout=60) as own_http,
        ):
            tap.start()
            await asyncio.gather(gateway.wait_up(), runner.wait_up())
            attack = Attack(gateway, http)
            own_requests = OwnRequests(runner, own_http, denied=DENIED, spelt=spellings(), asked=names.asked)
            await asyncio.gather(attack.run(), own_requests.run())
            counts = {**attack.counts, **own_requests.counts}
    finally:
        tap.close()
        await asyncio.gather(gateway.stop(), runner.stop())
    return {
        "counts": counts,
        "dialled": [[address, port, times] for (address, port), times in sorted(tap.dialled.items())],
        "asked": [[address, port, times] for (address, port), times in sorted(tap.asked.items())],
        "canaries": [names.asked[name] for name in CANARIES],
        "facilitator": list(FACILITATOR[1:]),
        "some": len(own_requests.some),
        "redirects": len(REDIRECTS),
        "ports": len(PORTS),
        "denied": len(DENIED),
        "allowed": list(ALLOWED),
        "spellings": len(spellings()),
        "rebound": sum(times for name, times in names.asked.items() if name.startswith("rebind-")),
        "ours": [
            *(["127.0.0.1", port] for port in (PORT, OWN_REQUESTS_PORT, 53, 9)),
            [PUBLIC_ADDRESS, PORT],
        ],
        "requests": sum(seen.values()),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
