"""Operations without a network: spent amounts, and the key of a running request."""

import pytest

from tests.client.conftest import sums
from tollway.client import TollwayClient


@pytest.fixture
def client(wallet, store_path):
    with TollwayClient("https://gateway.test", wallet=wallet, store_path=store_path) as client:
        yield client


def test_the_same_request_has_the_same_key_until_it_is_dropped(client, wallet, store_path) -> None:
    first = client.keep_key("api_1", "/a", method="POST", content=b"x")
    assert first == client.keep_key("api_1", "/a", method="post", content="x")
    with TollwayClient("https://gateway.test/", wallet=wallet, store_path=store_path) as other:
        assert other.keep_key("api_1", "/a", method="POST", content=b"x") == first
    client.drop_key(first, "api_1", "/a", method="POST", content=b"x")
    assert client.keep_key("api_1", "/a", method="POST", content=b"x") != first


def test_another_request_has_another_key(client) -> None:
    asked = [("api_1", "/a", {}), ("api_1", "/b", {}), ("api_2", "/a", {}), ("api_1", "/a?x=1", {})]
    asked += [("api_1", "/a", {"method": "POST"}), ("api_1", "/a", {"method": "POST", "content": b"x"})]
    keys = [client.keep_key(api_id, path, **options) for api_id, path, options in asked]
    assert len(set(keys)) == len(keys)


def test_without_a_wallet_nothing_is_kept_or_spent(store_path) -> None:
    with TollwayClient("https://gateway.test", store_path=store_path) as client:
        assert client.keep_key("api_1") is None
        client.drop_key("k", "api_1")
        assert sums(client.spending().total) == {}
    assert not store_path.exists()
