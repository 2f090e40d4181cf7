import pytest

from tollway.identity.siwe import parse_origin


@pytest.mark.parametrize(
    ("public_url", "origin"),
    [
        ("http://127.0.0.1:8402", "http://127.0.0.1:8402"),
        ("https://GW.Example.com/", "https://gw.example.com"),
        ("https://gw.example.com:443", "https://gw.example.com"),
        ("http://gw.example.com:80", "http://gw.example.com"),
        ("https://gw.example.com:80", "https://gw.example.com:80"),
        ("http://[::1]:8402", "http://[::1]:8402"),
        ("http://localhost:8402", "http://localhost:8402"),
    ],
)
def test_an_origin_is_scheme_host_and_port(public_url: str, origin: str) -> None:
    assert str(parse_origin(public_url)) == origin


@pytest.mark.parametrize(
    "public_url",
    [
        "",
        "gw.example.com",
        "ftp://gw.example.com",
        "https://",
        "https://gw.example.com/base",
        "https://gw.example.com?x",
        "https://gw.example.com#x",
        "https://user@gw.example.com",
        "https://gw.example.com:99999",
        "https://gw example.com",
    ],
)
def test_anything_else_is_refused(public_url: str) -> None:
    with pytest.raises(ValueError):
        parse_origin(public_url)


@pytest.mark.parametrize(
    ("uri", "is_ours"),
    [
        ("https://gw.example.com", True),
        ("https://gw.example.com/api/v2/apis?x=1", True),
        ("https://gw.example.com?x", True),
        ("https://gw.example.com.evil.net/", False),
        ("https://gw.example.com@evil.net/", False),
        ("https://gw.example.com:8443/", False),
        ("http://gw.example.com/", False),
        ("https://GW.example.com/", False),
        ("", False),
    ],
)
def test_a_uri_lies_under_the_origin_or_not(uri: str, is_ours: bool) -> None:
    assert parse_origin("https://gw.example.com").is_origin_of(uri) is is_ours
