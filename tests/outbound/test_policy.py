"""The outbound policy as tables: what may be dialled, what may be listed."""

import ipaddress

import pytest

from tollway.outbound.policy import (
    Allowed,
    Denied,
    Endpoint,
    EndpointRefused,
    check_address,
    parse_endpoint,
)

ALWAYS_DENIED = [
    ("0.0.0.0", "unspecified"),
    ("0.1.2.3", "unspecified"),
    ("169.254.169.254", "metadata"),
    ("169.254.169.253", "metadata"),
    ("169.254.169.123", "metadata"),
    ("169.254.170.2", "metadata"),
    ("169.254.170.23", "metadata"),
    ("169.254.0.23", "metadata"),
    ("169.254.42.42", "metadata"),
    ("100.100.100.200", "metadata"),
    ("168.63.129.16", "metadata"),
    ("192.0.0.192", "metadata"),
    ("192.0.0.8", "protocol_assignment"),
    ("192.0.2.1", "documentation"),
    ("198.51.100.7", "documentation"),
    ("203.0.113.255", "documentation"),
    ("192.31.196.1", "as112"),
    ("192.52.193.1", "amt"),
    ("192.88.99.1", "relay_6to4"),
    ("192.175.48.1", "as112"),
    ("198.18.0.1", "benchmarking"),
    ("198.19.255.254", "benchmarking"),
    ("224.0.0.1", "multicast"),
    ("239.255.255.250", "multicast"),
    ("240.0.0.1", "reserved"),
    ("255.255.255.255", "broadcast"),
    ("::", "unspecified"),
    ("::ffff:127.0.0.1", "embedded_ipv4"),
    ("::ffff:8.8.8.8", "embedded_ipv4"),
    ("::ffff:0:8.8.8.8", "embedded_ipv4"),
    ("::8.8.8.8", "not_global_unicast"),
    ("::7f00:1", "not_global_unicast"),
    ("64:ff9b::8.8.8.8", "embedded_ipv4"),
    ("64:ff9b::a9fe:a9fe", "embedded_ipv4"),
    ("64:ff9b:1::1", "embedded_ipv4"),
    ("2002:7f00:1::1", "embedded_ipv4"),
    ("2002:808:808::1", "embedded_ipv4"),
    ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "embedded_ipv4"),
    ("2001:2::1", "protocol_assignment"),
    ("2001:10::1", "protocol_assignment"),
    ("2001:20::1", "protocol_assignment"),
    ("2001:db8::1", "documentation"),
    ("2620:4f:8000::1", "as112"),
    ("3ffe::1", "reserved"),
    ("3fff::1", "documentation"),
    ("3fff:fff:ffff::1", "documentation"),
    ("5f00::1", "segment_routing"),
    ("100::1", "discard"),
    ("4000::1", "not_global_unicast"),
    ("fec0::1", "site_local"),
    ("ff02::1", "multicast"),
    ("ff0e::1", "multicast"),
    ("fd00:ec2::254", "metadata"),
    ("fd00:ec2::23", "metadata"),
    ("fd20:ce::254", "metadata"),
    ("fd00:42::42", "metadata"),
    ("fd00:c1::a9fe:a9fe", "metadata"),
    ("fe80::a9fe:a9fe", "metadata"),
    ("2a00:1450::5efe:7f00:1", "embedded_ipv4"),
    ("2a00:1450::200:5efe:a9fe:a9fe", "embedded_ipv4"),
    ("fe80::1%eth0", "scope_id"),
    ("::1%lo", "scope_id"),
    ("127.1", "not_an_address"),
    ("0177.0.0.1", "not_an_address"),
    ("0x7f.0.0.1", "not_an_address"),
    ("2130706433", "not_an_address"),
    ("127.0.0.1\x00", "not_an_address"),
    ("1２7.0.0.1", "not_an_address"),
    ("", "not_an_address"),
    ("localhost", "not_an_address"),
]

PRIVATE = [
    ("127.0.0.1", "loopback"),
    ("127.255.255.254", "loopback"),
    ("10.0.0.1", "private"),
    ("172.16.0.1", "private"),
    ("172.31.255.255", "private"),
    ("192.168.1.1", "private"),
    ("169.254.1.1", "link_local"),
    ("100.64.0.1", "shared"),
    ("::1", "loopback"),
    ("fc00::1", "private"),
    ("fd12:3456::1", "private"),
    ("fe80::1", "link_local"),
]

GLOBAL = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.1",
    "100.63.255.255",
    "100.128.0.1",
    "126.255.255.255",
    "128.0.0.1",
    "168.63.129.15",
    "172.15.255.255",
    "172.32.0.1",
    "192.167.255.255",
    "192.169.0.1",
    "198.17.255.255",
    "198.20.0.1",
    "223.255.255.255",
    "2606:4700:4700::1111",
    "2001:4860:4860::8888",
    "2001:200::1",
    "2a00:1450:4001::200e",
    "3fff:1000::1",
]


@pytest.mark.parametrize("allow_private", [False, True])
def test_denies_independently_of_the_setting(*, allow_private: bool) -> None:
    verdicts = [(ip, check_address(ip, allow_private=allow_private)) for ip, _ in ALWAYS_DENIED]
    assert verdicts == [(ip, Denied(reason=reason)) for ip, reason in ALWAYS_DENIED]


def test_private_ranges_are_open_in_development_only() -> None:
    verdicts = [(ip, check_address(ip, allow_private=False)) for ip, _ in PRIVATE]
    assert verdicts == [(ip, Denied(reason=reason)) for ip, reason in PRIVATE]
    verdicts = [(ip, check_address(ip, allow_private=True)) for ip, _ in PRIVATE]
    assert verdicts == [(ip, Allowed(address=ipaddress.ip_address(ip))) for ip, _ in PRIVATE]


def test_allows_ordinary_global_unicast() -> None:
    verdicts = [check_address(ip, allow_private=False) for ip in GLOBAL]
    assert verdicts == [Allowed(address=ipaddress.ip_address(ip)) for ip in GLOBAL]


@pytest.mark.parametrize("ip", ["8.8.8.8", "2001:4860:4860:0:0:0:0:8888"])
def test_denies_the_gateways_own_address_in_any_spelling(ip: str) -> None:
    own = frozenset({"8.8.8.8", "2001:4860:4860::8888"})
    assert check_address(ip, allow_private=True, own_addresses=own) == Denied(reason="own_address")


def test_every_network_that_the_library_calls_not_global_is_denied() -> None:
    for row in (*(ip for ip, _ in ALWAYS_DENIED), *(ip for ip, _ in PRIVATE)):
        try:
            address = ipaddress.ip_address(row)
        except ValueError:
            continue
        if not address.is_global:
            assert isinstance(check_address(row, allow_private=False), Denied)


ACCEPTED = [
    ("https://api.example.com", "https://api.example.com", "", ""),
    ("https://api.example.com/", "https://api.example.com", "/", ""),
    ("HTTPS://API.Example.COM:443/V1", "https://api.example.com", "/V1", "/V1"),
    ("http://api.example.com:80/v1/", "http://api.example.com", "/v1/", "/v1"),
    ("http://api.example.com:8080/v1", "http://api.example.com:8080", "/v1", "/v1"),
    ("https://bücher.example/x", "https://xn--bcher-kva.example", "/x", "/x"),
    ("https://a.example/p%2fq/%41~;v=1", "https://a.example", "/p%2fq/%41~;v=1", "/p%2fq/%41~;v=1"),
    ("https://a.example//double//", "https://a.example", "//double//", "//double/"),
    ("https://a.example/...", "https://a.example", "/...", "/..."),
    ("https://a.example/.well-known/x", "https://a.example", "/.well-known/x", "/.well-known/x"),
    ("https://a.example./x", "https://a.example.", "/x", "/x"),
    ("https://8.8.8.8/x", "https://8.8.8.8", "/x", "/x"),
    ("https://[2606:4700:4700::1111]:1024", "https://[2606:4700:4700::1111]:1024", "", ""),
]


@pytest.mark.parametrize(("text", "origin", "path", "base_path"), ACCEPTED)
def test_keeps_the_path_as_written_and_the_host_in_normal_form(
    text: str, origin: str, path: str, base_path: str
) -> None:
    endpoint = parse_endpoint(text, allow_private=False)
    assert isinstance(endpoint, Endpoint)
    assert (endpoint.origin, endpoint.path, endpoint.base_path) == (origin, path, base_path)
    assert endpoint.href == origin + path


REFUSED = [
    ("", "not_absolute"),
    ("api.example.com", "not_absolute"),
    ("/v1", "not_absolute"),
    ("//api.example.com/v1", "not_absolute"),
    ("https:/api.example.com", "not_absolute"),
    ("https:api.example.com", "not_absolute"),
    ("file:///etc/passwd", "not_absolute"),
    ("file://a.example/x", "scheme"),
    ("ftp://a.example/", "scheme"),
    ("gopher://a.example/", "scheme"),
    ("ws://a.example/", "scheme"),
    ("javascript:alert(1)", "not_absolute"),
    ("https://user@a.example/", "userinfo"),
    ("https://user:pw@a.example/", "userinfo"),
    ("https://@a.example/", "userinfo"),
    ("https://a.example\\@127.0.0.1/", "bad_character"),
    ("https://a.example/?q=1", "query"),
    ("https://a.example/?", "query"),
    ("https://a.example/#x", "fragment"),
    ("https://a.example/#", "fragment"),
    (" https://a.example/", "bad_character"),
    ("https://a.example/\n", "bad_character"),
    ("https://a.ex\tample/", "bad_character"),
    ("https://a.example/\x00", "bad_character"),
    ("https://a.example/a b", "bad_character"),
    ("https:///v1", "not_absolute"),
    ("https://:80/", "host"),
    ("https://a.example:99999/", "host"),
    ("https://a.example:x/", "host"),
    ("https://a.example:0/", "port"),
    ("https://a.example:22/", "port"),
    ("https://a.example:25/", "port"),
    ("https://a.example:1023/", "port"),
    ("https://a..example/", "host"),
    ("https://-a.example/", "host"),
    ("https://" + "a" * 64 + ".example/", "host"),
    ("https://" + "a." * 130 + "example/", "host"),
    ("https://a.example/" + "x" * 2048, "too_long"),
    ("https://a.example/../x", "path"),
    ("https://a.example/a/..", "path"),
    ("https://a.example/./x", "path"),
    ("https://a.example/%2e%2e/x", "path"),
    ("https://a.example/%2E/x", "path"),
    ("https://a.example/%252e%252e/x", "path"),
    ("https://a.example/a%2f..%2fb", "path"),
    ("https://a.example/a%5c..", "path"),
    ("https://a.example/..;v=1/x", "path"),
    ("https://a.example/%00", "path"),
    ("https://a.example/%0d%0aX:1", "path"),
    ("https://a.example/%2500", "path"),
    ("https://a.example/%zz", "path"),
    ("https://a.example/café", "path"),
    ('https://a.example/"', "path"),
    ("https://127.0.0.1/", "address"),
    ("https://127.1/", "address"),
    ("https://0x7f.1/", "address"),
    ("https://0177.0.0.1/", "address"),
    ("https://2130706433/", "address"),
    ("https://0/", "address"),
    ("https://１２７.0.0.1/", "address"),
    ("https://%31%32%37.0.0.1/", "address"),
    ("https://127。0。0。1/", "address"),
    ("https://[::1]/", "address"),
    ("https://[::ffff:8.8.8.8]/", "address"),
    ("https://[fe80::1%25eth0]/", "host"),
    ("http://169.254.169.254/latest/meta-data", "address"),
    ("http://10.1.2.3/", "address"),
    ("http://localhost/", "address"),
    ("http://printer/", "address"),
    ("http://a.localhost/", "address"),
    ("http://metadata.google.internal/", "address"),
    ("http://nas.local/", "address"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_refuses_what_is_no_endpoint(text: str, reason: str) -> None:
    refused = parse_endpoint(text, allow_private=False)
    assert isinstance(refused, EndpointRefused)
    assert refused.reason == reason


@pytest.mark.parametrize(
    "text", ["http://127.0.0.1:9000/api", "http://localhost:9000", "http://[::1]:9000", "http://10.0.0.7/x"]
)
def test_development_may_list_loopback(text: str) -> None:
    assert isinstance(parse_endpoint(text, allow_private=True), Endpoint)


@pytest.mark.parametrize(
    "text",
    ["http://169.254.169.254/", "http://0.0.0.0:8080/", "http://224.0.0.1/", "http://[::ffff:127.0.0.1]/"],
)
def test_development_still_refuses_metadata_and_the_rest(text: str) -> None:
    assert isinstance(parse_endpoint(text, allow_private=True), EndpointRefused)
