"""The wallet of a demo at the gateway: its link counts once, its session serves pages of this gateway alone, and no other gateway has it."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit.listings import sample_listing
from tests.kit.pages import PageHarness
from tests.kit.routes import PUBLIC_URL, make_app, open_client
from tollway.app.page_wiring import make_page_renderer
from tollway.chain.networks import PRESETS
from tollway.config.settings import Settings
from tollway.errors import SettingsInvalid
from tollway.identity.siwe import parse_origin
from tollway.ids import Address, ChainId
from tollway.web.pages.assets import DEMO_MODULE, read_assets
from tollway.web.pages.demo_wallet import (
    FRAGMENT,
    SESSIONS_MAX,
    DemoWallet,
    WalletRefused,
    demo_wallet_router,
)
from tollway.web.pages.renderer import PageRenderer

MODULE_BYTES_MAX = 1_500
OWN = {"Sec-Fetch-Site": "same-origin", "Origin": PUBLIC_URL}


class CountingSigner:
    """Records what it responds to, and refuses the method `refused`."""

    address = Address(b"\x11" * 20)
    chain_id = ChainId(84532)

    def __init__(self) -> None:
        self.requests: list[tuple[str, Sequence[object]]] = []

    async def respond(self, method: str, params: Sequence[object]) -> object:
        if method == "refused":
            raise WalletRefused("not this")
        self.requests.append((method, params))
        return "0x01"


class Entropy:
    """Other bytes each time."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self, count: int) -> bytes:
        self._number += 1
        return self._number.to_bytes(count, "big")


@pytest.fixture
def wallet() -> DemoWallet:
    return DemoWallet(CountingSigner(), entropy=Entropy())


@pytest.fixture
async def client(wallet: DemoWallet) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app(PageHarness().context, demo_wallet_router(wallet, origins=[PUBLIC_URL]))
    async with open_client(app, headers=OWN) as client:
        yield client


def make_token(wallet: DemoWallet) -> str:
    return wallet.make_fragment().removeprefix(FRAGMENT)


async def open_wallet(client: httpx.AsyncClient, token: str, **headers: str) -> httpx.Response:
    return await client.post("/my/demo-wallet/session", json={"token": token}, headers=headers)


async def ask(
    client: httpx.AsyncClient, session: object, method: object = "personal_sign", **more: Any
) -> Any:
    body = {"session": session, "method": method, "params": ["0x00"], **more.pop("members", {})}
    return await client.post("/my/demo-wallet", json=body, **more)


def count_requests(wallet: DemoWallet) -> int:
    assert isinstance(wallet.signer, CountingSigner)
    return len(wallet.signer.requests)


async def test_a_link_opens_the_wallet_once(client: httpx.AsyncClient, wallet: DemoWallet) -> None:
    opened: list[str] = []
    token = make_token(wallet)
    wallet.on_opened = lambda: opened.append("opened")
    answer = await open_wallet(client, token)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    given = answer.json()
    assert (given["address"], given["chainId"]) == (str(CountingSigner.address), 84532)
    assert (await ask(client, given["session"])).json() == {"result": "0x01"}
    again = await open_wallet(client, token)
    assert (again.status_code, again.json()["code"]) == (401, "session_expired")
    assert opened == ["opened"]


@pytest.mark.parametrize("token", ["", "x" * 43, FRAGMENT, None, 7, ["a"]])
async def test_a_wrong_token_opens_nothing_and_leaves_the_link(
    client: httpx.AsyncClient, wallet: DemoWallet, token: Any
) -> None:
    right = make_token(wallet)
    answer = await open_wallet(client, token)
    assert (answer.status_code, answer.json()["code"]) == (401, "session_expired")
    assert (await open_wallet(client, right)).status_code == 200


async def test_a_new_link_makes_the_one_before_void(client: httpx.AsyncClient, wallet: DemoWallet) -> None:
    old, new = make_token(wallet), make_token(wallet)
    assert (await open_wallet(client, old)).status_code == 401
    assert (await open_wallet(client, new)).status_code == 200


@pytest.mark.parametrize("session", ["", "y" * 43, None, 7, {}])
async def test_a_request_without_an_open_session_signs_nothing(
    client: httpx.AsyncClient, wallet: DemoWallet, session: Any
) -> None:
    token = make_token(wallet)
    assert (await ask(client, token)).json()["code"] == "session_expired"  # a token is no session
    answer = await ask(client, session)
    assert (answer.status_code, answer.json()["code"]) == (401, "session_expired")
    assert count_requests(wallet) == 0


async def test_the_oldest_session_ends_beyond_their_number(
    client: httpx.AsyncClient, wallet: DemoWallet
) -> None:
    sessions = [
        (await open_wallet(client, make_token(wallet))).json()["session"] for _ in range(SESSIONS_MAX + 1)
    ]
    assert [(await ask(client, one)).status_code for one in sessions] == [401] + [200] * SESSIONS_MAX


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "same-site", "Origin": PUBLIC_URL},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "cross-site", "Origin": PUBLIC_URL},
    ],
)
async def test_another_origin_neither_opens_the_wallet_nor_uses_it(
    client: httpx.AsyncClient, wallet: DemoWallet, headers: dict[str, str]
) -> None:
    session = (await open_wallet(client, make_token(wallet))).json()["session"]
    token = make_token(wallet)
    for answer in (await open_wallet(client, token, **headers), await ask(client, session, headers=headers)):
        assert (answer.status_code, answer.json()["reason"]) == (400, "demo_wallet_refused")
        assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert count_requests(wallet) == 0
    assert (await open_wallet(client, token)).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example:8402", "null", ""])
async def test_a_name_that_was_pointed_at_this_machine_is_another_origin(
    wallet: DemoWallet, origin: str
) -> None:
    """DNS rebinding, from a browser that sends no `Sec-Fetch-Site`."""
    app = make_app(PageHarness().context, demo_wallet_router(wallet, origins=[PUBLIC_URL]))
    async with open_client(app, headers={"Origin": origin} if origin else {}) as client:
        assert (await open_wallet(client, make_token(wallet))).status_code == 400


async def test_a_preflight_of_another_origin_is_not_allowed(client: httpx.AsyncClient) -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    answer = await client.options("/my/demo-wallet", headers=asked)
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"method": 7}, "`method`"),
        ({"params": "0x00"}, "`params`"),
        ({"params": None}, "`params`"),
        ({"method": "refused"}, "not this"),
    ],
)
async def test_a_request_that_is_none_is_refused_with_its_reason(
    client: httpx.AsyncClient, wallet: DemoWallet, members: dict[str, Any], words: str
) -> None:
    session = (await open_wallet(client, make_token(wallet))).json()["session"]
    answer = await ask(client, session, members=members)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert words in answer.json()["detail"]
    assert count_requests(wallet) == 0


async def test_a_long_request_is_refused(client: httpx.AsyncClient, wallet: DemoWallet) -> None:
    session = (await open_wallet(client, make_token(wallet))).json()["session"]
    answer = await ask(client, session, members={"params": ["0x" + "00" * 16_384]})
    assert answer.json()["code"] == "payload_too_large"


# ---- Every other gateway.


async def test_a_gateway_without_the_wallet_serves_neither_its_module_nor_its_routes() -> None:
    harness = PageHarness()
    listing = sample_listing(provider=Address(b"\x22" * 20))
    await harness.catalog.publish(listing)
    async with harness.open_pages() as client:
        assets = harness.renderer.assets
        assert (await client.get(f"/ui/{assets.mark}/{DEMO_MODULE}")).status_code == 404
        assert (await client.post("/my/demo-wallet", json={}, headers=OWN)).status_code == 404
        for path in (f"/apis/{listing.id}", "/"):
            text = (await client.get(path)).text
            assert "demo-wallet" not in text
            assert DEMO_MODULE not in text


def test_the_module_stays_small() -> None:
    """It is in no budget of a page, because no page but that of a demo loads it."""
    module = read_assets(left_out=()).find(DEMO_MODULE)
    assert module is not None
    assert len(module.gzipped) <= MODULE_BYTES_MAX


def test_the_policy_of_a_page_is_the_same_with_the_wallet() -> None:
    with_wallet, without = (
        PageRenderer(
            read_assets(left_out=left_out), public_url=PUBLIC_URL, test_money="all", now_ms=lambda: 0
        ).headers()
        for left_out in ((), (DEMO_MODULE,))
    )
    assert with_wallet == without


OTHERS = [name for name in PRESETS if name != "sandbox"]


def make_settings(folder: Path, *presets: str, listen: str = "127.0.0.1:8402") -> Settings:
    networks = [{"preset": name, "rpc_urls": ["http://127.0.0.1:8545"]} for name in presets]
    return Settings.model_validate(
        {
            "public_url": "http://127.0.0.1:8402",
            "listen": listen,
            "database_url": f"sqlite:///{folder / 'tollway.sqlite3'}",
            "networks": networks,
        }
    )


@pytest.mark.parametrize(
    ("presets", "listen", "problems"),
    [
        *[([name], "127.0.0.1:8402", [f"not {name}"]) for name in OTHERS],
        (["sandbox", "base"], "127.0.0.1:8402", ["not base"]),
        (["sandbox"], "0.0.0.0:8402", ["listen on 127.0.0.1"]),
        (["base"], "0.0.0.0:8402", ["not base", "listen on 127.0.0.1"]),
        (["sandbox"], "127.0.0.1:8402", []),
    ],
)
def test_a_gateway_of_any_other_chain_refuses_the_wallet_at_its_start(
    tmp_path: Path, wallet: DemoWallet, presets: list[str], listen: str, problems: list[str]
) -> None:
    settings = make_settings(tmp_path, *presets, listen=listen)
    rules = {network.rules.chain_id: network.rules for network in settings.networks}

    def start() -> PageRenderer | None:
        origin = parse_origin(settings.public_url)
        return make_page_renderer(settings, rules, origin=origin, demo_wallet=wallet)

    if problems:
        with pytest.raises(SettingsInvalid) as refused:
            start()
        assert [words in text for words, text in zip(problems, refused.value.problems, strict=True)] == [
            True
        ] * len(problems)
        return
    renderer = start()
    assert renderer is not None
    assert renderer.assets.find(DEMO_MODULE) is not None
