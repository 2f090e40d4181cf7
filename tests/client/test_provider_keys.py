"""The cache of the gateway's published keys: fetched when needed, seldom, and kept while the gateway is unavailable."""

import asyncio

import httpx
import pytest
from pydantic_core import to_json

from tests.kit.upstream import plain, run_upstream
from tollway.client.provider import (
    AFTER_FAILURE_S,
    BETWEEN_FETCHES_S,
    DIRECTORY_BYTES_MAX,
    KEYS_KEPT_S,
    KEYS_MAX,
    REFRESH_S,
    KeyDirectory,
    KeysUnavailable,
    check_origin,
    fetch_document,
    read_directory,
)
from tollway.gateway.request_signing import SigningKey, UpstreamSigner

ONE, TWO = SigningKey.derive(b"\x01" * 32), SigningKey.derive(b"\x02" * 32)


class Gateway:
    """What is published, how often it was asked for, and the clock."""

    def __init__(self, *keys: SigningKey) -> None:
        self.keys: tuple[SigningKey, ...] | None = keys
        self.fetches = 0
        self.now_s = 1_000.0
        self.directory = KeyDirectory(
            "https://gw.example.com/ignored", fetch=self.fetch, ticks_s=lambda: self.now_s
        )

    def fetch(self, url: str) -> bytes:
        assert url == "https://gw.example.com/.well-known/http-message-signatures-directory"
        self.fetches += 1
        if self.keys is None:
            raise httpx.ConnectError("away")
        return to_json(UpstreamSigner(self.keys).describe())

    def knows(self, key: SigningKey) -> bool:
        return self.directory.find(key.keyid) is not None


def test_is_fetched_once_for_many_calls() -> None:
    gateway = Gateway(ONE)
    assert all(gateway.knows(ONE) for _ in range(100))
    assert gateway.fetches == 1


def test_a_new_key_is_looked_for_at_once_and_an_invented_one_not_each_time() -> None:
    gateway = Gateway(ONE)
    assert gateway.knows(ONE)
    gateway.keys = (TWO, ONE)
    gateway.now_s += BETWEEN_FETCHES_S
    assert gateway.knows(TWO)
    assert gateway.fetches == 2
    assert not any(gateway.directory.find(f"invented {number}") for number in range(100))
    assert gateway.fetches == 2
    gateway.now_s += BETWEEN_FETCHES_S
    assert not gateway.directory.find("invented again")
    assert gateway.fetches == 3


def test_a_key_that_is_not_published_any_more_ends() -> None:
    gateway = Gateway(ONE, TWO)
    assert gateway.knows(ONE)
    gateway.keys = (TWO,)
    gateway.now_s += REFRESH_S - 1
    assert gateway.knows(ONE)
    gateway.now_s += 1
    assert not gateway.knows(ONE)
    assert gateway.knows(TWO)


def test_cached_keys_count_for_a_day_while_the_gateway_is_unavailable() -> None:
    gateway = Gateway(ONE)
    assert gateway.knows(ONE)
    gateway.keys = None
    for _ in range(23):
        gateway.now_s += 3_600
        assert gateway.knows(ONE)
    with pytest.raises(KeysUnavailable):
        gateway.knows(TWO)
    gateway.now_s += KEYS_KEPT_S
    with pytest.raises(KeysUnavailable):
        gateway.knows(ONE)


def test_a_failure_is_not_repeated_for_each_call_and_not_for_long() -> None:
    gateway = Gateway(ONE)
    gateway.keys = None
    for _ in range(10):
        with pytest.raises(KeysUnavailable):
            gateway.knows(ONE)
    assert gateway.fetches == 1
    gateway.keys = (ONE,)
    gateway.now_s += AFTER_FAILURE_S
    assert gateway.knows(ONE)


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{}", b'{"keys": {}}', b"[" * 10_000, to_json({"keys": [{}] * (KEYS_MAX + 1)})],
)
def test_no_directory_is_no_key(body: bytes) -> None:
    with pytest.raises(ValueError):
        read_directory(body)


@pytest.mark.parametrize("x", ["AA", "not base64!", "A" * 43 + "AAAA"])
def test_a_broken_key_spoils_the_directory(x: str) -> None:
    with pytest.raises(ValueError):
        read_directory(to_json({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": x}]}))


def test_only_keys_of_this_kind_count_and_under_their_own_name() -> None:
    posing = {**ONE.jwk, "kid": TWO.keyid}
    others = [{"kty": "EC", "crv": "P-256", "x": "a"}, {"kty": "OKP", "crv": "X25519", "x": ONE.jwk["x"]}, 7]
    assert read_directory(to_json({"keys": [*others, posing]})).keys() == {ONE.keyid}


@pytest.mark.parametrize(
    ("gateway", "origin"),
    [
        ("https://gw.example.com/api", "https://gw.example.com"),
        ("http://127.0.0.1:8402", "http://127.0.0.1:8402"),
        ("http://localhost:8402/", "http://localhost:8402"),
        ("http://[::1]:8402", "http://[::1]:8402"),
    ],
)
def test_keys_come_over_https_or_from_this_machine(gateway: str, origin: str) -> None:
    assert check_origin(gateway) == origin


@pytest.mark.parametrize(
    "gateway", ["http://gw.example.com", "http://10.0.0.1", "ftp://gw", "gw.example.com", ""]
)
def test_keys_are_not_fetched_without_tls(gateway: str) -> None:
    with pytest.raises(ValueError):
        KeyDirectory(gateway)


@pytest.mark.parametrize(
    "answer",
    [
        plain(b"gone", status=404),
        plain(b"", status=302, headers=("Location: https://elsewhere.example",)),
        plain(b"x" * (DIRECTORY_BYTES_MAX + 1)),
    ],
)
async def test_only_a_small_document_with_200_is_one(answer) -> None:
    async with run_upstream() as upstream:
        upstream.answer = answer
        with pytest.raises(OSError):
            await asyncio.to_thread(fetch_document, upstream.url + "/x")
        upstream.answer = plain(b"{}")
        assert await asyncio.to_thread(fetch_document, upstream.url + "/x") == b"{}"
