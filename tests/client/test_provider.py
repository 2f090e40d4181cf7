"""The provider's verifier: accepts calls that the gateway signed for the provider's listings, refuses all others with a reason."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic_core import to_json

from tests.kit.threaded_server import serve_in_thread
from tollway.client.message_signature import collect_fields, read_claim
from tollway.client.provider import (
    CLOCK_SLACK_S,
    VALID_S_MAX,
    Forwarded,
    ForwardedRefused,
    ForwardedVerifier,
    NonceCache,
)
from tollway.gateway.request_signing import VALID_S, BodyCoverage, UpstreamSigner, cover_body, sign_shared
from tollway.identity.http_signatures import TAG, encode_base64url
from tollway.ids import Address

GATEWAY = "https://gw.example.com"
ENDPOINT = "https://api.example.com/v1"
SECRET = b"\x07" * 32
SIGNER = UpstreamSigner.derive([SECRET])
PAYER = Address(b"\xbb" * 20)
NOW_S = 1_800_000_000
BODY = b'{"a":1}'
TARGET = "/v1/quote?x=1"
NONCE = "ab" * 16

Pairs = list[tuple[str, str]]


@dataclass
class Harness:
    """A verifier, its clock, and the directory that it is given."""

    verifier: ForwardedVerifier
    now_s: float = NOW_S
    signer: UpstreamSigner | None = SIGNER

    def fetch(self, url: str) -> bytes:
        assert url == GATEWAY + "/.well-known/http-message-signatures-directory"
        if self.signer is None:
            raise httpx.ConnectError("down")
        return to_json(self.signer.describe())


def open_harness(**options) -> Harness:
    harness: Harness
    declared = {"endpoint": ENDPOINT, "api_ids": ["api_1"], **options}
    verifier = ForwardedVerifier(
        GATEWAY,
        fetch=lambda url: harness.fetch(url),
        now_s=lambda: harness.now_s,
        ticks_s=lambda: harness.now_s,
        **declared,
    )
    harness = Harness(verifier)
    return harness


@pytest.fixture
def harness() -> Harness:
    return open_harness()


def sign(signer: UpstreamSigner = SIGNER, **changes) -> Pairs:
    call = {
        "method": "POST",
        "authority": "api.example.com",
        "target": TARGET,
        "api_id": "api_1",
        "call_id": "call_1",
        "payer": PAYER,
        "body": cover_body(BODY, length=len(BODY), declared=None),
        "created_s": NOW_S,
        "nonce": NONCE,
    }
    return signer.sign(**{**call, **changes})


VALUES = {
    "@method": "POST",
    "@authority": "api.example.com",
    "@path": "/v1/quote",
    "@query": "?x=1",
    "tollway-call-id": "call_1",
    "tollway-api-id": "api_1",
}


def sign_by_hand(*names: str, expires_s: int = NOW_S + VALID_S, tag: str = TAG, **more: str) -> Pairs:
    """By the gateway's own key, and yet not as the gateway signs."""
    fields = {name: text for name, text in VALUES.items() if not name.startswith("@")}
    fields.update({name.replace("_", "-"): text for name, text in more.items()})
    listed = " ".join(f'"{name}"' for name in names)
    key = SIGNER.keys[0]
    told = f'({listed});created={NOW_S};expires={expires_s};nonce="{NONCE}";keyid="{key.keyid}";alg="ed25519";tag="{tag}"'
    lines = [f'"{name}": {VALUES[name] if name in VALUES else fields[name]}' for name in names]
    base = "\n".join([*lines, f'"@signature-params": {told}'])
    signed = [("Signature-Input", f"x={told}"), ("Signature", f"x={key.sign(base.encode())}")]
    return [*fields.items(), *signed]


def changed(headers: Sequence[tuple[str, str]], name: str, old: str, new: str) -> Pairs:
    """The same headers, with another text in one of them."""
    assert any(old in value for one, value in headers if one == name)
    return [(one, value.replace(old, new) if one == name else value) for one, value in headers]


def without(headers: Sequence[tuple[str, str]], *names: str) -> Pairs:
    return [(name, value) for name, value in headers if name not in names]


def refusal(harness: Harness, *asked, **more) -> ForwardedRefused:
    with pytest.raises(ForwardedRefused) as caught:
        harness.verifier.verify(*asked, **more)
    return caught.value


def test_tells_what_the_gateway_signed(harness: Harness) -> None:
    forwarded = harness.verifier.verify("POST", TARGET, sign(), BODY)
    assert forwarded == Forwarded(
        call_id="call_1",
        api_id="api_1",
        payer=str(PAYER),
        covers="digest",
        _signed_value=forwarded._signed_value,
    )


@pytest.mark.parametrize(
    ("body", "covers", "sent"),
    [
        (BodyCoverage(), "nothing", b""),
        (BodyCoverage(length=7), "length", b"1234567"),
        (cover_body(BODY, length=7, declared=None), "digest", BODY),
    ],
)
def test_a_body_is_covered_by_digest_or_length_or_is_not_there(harness: Harness, body, covers, sent) -> None:
    length = [("Content-Length", str(len(sent)))]
    forwarded = harness.verifier.verify("POST", TARGET, [*sign(body=body), *length], sent)
    assert forwarded.covers == covers


def test_a_free_call_has_no_payer(harness: Harness) -> None:
    assert harness.verifier.verify("POST", TARGET, sign(payer=None), BODY).payer is None


@pytest.mark.parametrize(
    "write",
    [
        dict,
        lambda pairs: {name.lower(): value for name, value in pairs},
        lambda pairs: [(name.upper().encode(), value.encode()) for name, value in pairs],
        lambda pairs: [(name, f" {value}\t") for name, value in pairs],
        lambda pairs: [*pairs, ("Host", "api.example.com"), ("Accept", "a"), ("Accept", "b")],
        lambda pairs: changed(
            changed(pairs, "Signature-Input", "tollway=", "x="), "Signature", "tollway=", "x="
        ),
        lambda pairs: changed(
            changed(pairs, "Signature-Input", "tollway=", 'a=("@method");keyid="k", tollway='),
            "Signature",
            "tollway=",
            "a=:AAAA:, tollway=",
        ),
        lambda pairs: [*pairs, ("Signature-Input", 'cdn=("@method");keyid="k"'), ("Signature", "cdn=:AAAA:")],
    ],
    ids=["mapping", "lower", "bytes", "spaces", "more", "label", "two signatures", "two lines"],
)
def test_takes_headers_as_any_server_gives_them(harness: Harness, write) -> None:
    assert harness.verifier.verify("POST", TARGET, write(sign()), BODY).call_id == "call_1"
    assert (
        harness.verifier.verify("POST", TARGET.encode(), write(sign(nonce="cd" * 16)), BODY).call_id
        == "call_1"
    )


# ---- Each component, changed.


@pytest.mark.parametrize(
    ("method", "target", "headers", "reason"),
    [
        ("PUT", TARGET, sign(), "bad_signature"),
        ("post", TARGET, sign(), "bad_signature"),
        ("POST", "/v1/other?x=1", sign(), "bad_signature"),
        ("POST", "/v1//quote?x=1", sign(), "bad_signature"),
        ("POST", "/v1/quot%65?x=1", sign(), "bad_signature"),
        ("POST", "/v1/quote?x=2", sign(), "bad_signature"),
        ("POST", "/v1/quote?x=1&y", sign(), "bad_signature"),
        ("POST", "/v1/quote", sign(), "bad_signature"),
        ("POST", TARGET, sign(authority="other.example.com"), "bad_signature"),
        ("POST", TARGET, sign(authority="api.example.com:8443"), "bad_signature"),
        ("POST", TARGET, changed(sign(), "Tollway-Call-Id", "call_1", "call_2"), "bad_signature"),
        ("POST", TARGET, changed(sign(), "Tollway-Api-Id", "api_1", "api_2"), "bad_signature"),
        ("POST", TARGET, changed(sign(), "Tollway-Payer", "bB", "bb"), "bad_signature"),
        ("POST", TARGET, changed(sign(), "Content-Digest", "sha-256=:", "sha-512=:"), "bad_signature"),
        (
            "POST",
            TARGET,
            changed(sign(), "Signature-Input", f"created={NOW_S}", f"created={NOW_S + 1}"),
            "bad_signature",
        ),
        (
            "POST",
            TARGET,
            changed(sign(), "Signature-Input", f"expires={NOW_S + VALID_S}", f"expires={NOW_S + 99}"),
            "bad_signature",
        ),
        ("POST", TARGET, changed(sign(), "Signature-Input", NONCE, "cd" * 16), "bad_signature"),
        (
            "POST",
            TARGET,
            changed(sign(), "Signature-Input", "tollway-forward", "another"),
            "signature_missing",
        ),
        ("POST", TARGET, changed(sign(), "Signature-Input", '"ed25519"', '"hmac-sha512"'), "wrong_algorithm"),
        ("POST", TARGET, changed(sign(), "Signature-Input", '"ed25519"', '"hmac-sha256"'), "malformed"),
        ("POST", TARGET, changed(sign(), "Signature-Input", ';alg="ed25519"', ""), "wrong_algorithm"),
        ("POST", TARGET, changed(sign(), "Signature-Input", ' "content-digest"', ""), "bad_signature"),
        (
            "POST",
            TARGET,
            changed(sign(), "Signature-Input", '"@path" "@query"', '"@query" "@path"'),
            "bad_signature",
        ),
        ("POST", TARGET, sign(UpstreamSigner.derive([b"\x09" * 32])), "unknown_key"),
        ("POST", TARGET, changed(sign(), "Signature", "tollway=:", "tollway=:AA"), "malformed"),
    ],
)
def test_any_part_that_changes_is_refused(harness: Harness, method, target, headers, reason) -> None:
    assert refusal(harness, method, target, headers, BODY).reason == reason
    assert harness.verifier.verify("POST", TARGET, sign(), BODY), "and the real one still counts"


def test_a_signature_by_hand_over_what_has_to_be_signed_counts(harness: Harness) -> None:
    """So that those below are refused for what they leave out."""
    assert harness.verifier.verify("POST", TARGET, sign_by_hand(*VALUES), b"").call_id == "call_1"
    more = sign_by_hand(*reversed(VALUES), "x-more", x_more="1")
    harness.now_s += 1
    assert refusal(harness, "POST", TARGET, more, b"").reason == "replayed", "in any order, and more of them"


@pytest.mark.parametrize("name", VALUES)
def test_a_call_without_a_required_component_is_refused(harness: Harness, name: str) -> None:
    headers = sign_by_hand(*(one for one in VALUES if one != name))
    assert refusal(harness, "POST", TARGET, headers, b"").reason == "components_missing"


def test_a_signature_for_another_purpose_is_refused(harness: Harness) -> None:
    headers = sign_by_hand(*VALUES, tag="http-message-signatures-directory")
    assert refusal(harness, "POST", TARGET, headers, b"").reason == "signature_missing"
    directory = SIGNER.sign_directory(authority="api.example.com", created_s=NOW_S, nonce=NONCE)
    assert refusal(harness, "GET", "/", directory, b"").reason == "signature_missing"


@pytest.mark.parametrize(
    "name",
    ["Signature", "Signature-Input", "Tollway-Call-Id", "Tollway-Api-Id", "Tollway-Payer", "Content-Digest"],
)
def test_nothing_may_be_missing(harness: Harness, name: str) -> None:
    expected = "signature_missing" if name.startswith("Signature") else "component_absent"
    assert refusal(harness, "POST", TARGET, without(sign(), name), BODY).reason == expected


@pytest.mark.parametrize(
    "name", ["Tollway-Call-Id", "Tollway-Api-Id", "Tollway-Payer", "Content-Digest", "Content-Length"]
)
def test_nothing_that_counts_is_there_twice(harness: Harness, name: str) -> None:
    headers = [*sign(), ("Content-Length", "7")]
    again = [(name.lower(), value) for one, value in headers if one == name]
    assert refusal(harness, "POST", TARGET, [*headers, *again], BODY).reason == "duplicate_header"


@pytest.mark.parametrize("name", ["Signature", "Signature-Input"])
def test_a_signature_that_is_there_twice_is_refused(harness: Harness, name: str) -> None:
    headers = sign()
    again = [(one, value) for one, value in headers if one == name]
    assert refusal(harness, "POST", TARGET, [*headers, *again], BODY).reason == "malformed"


def test_of_two_for_this_purpose_neither_counts(harness: Harness) -> None:
    headers = sign()
    again = [
        (name, value.replace("tollway=", "b=")) for name, value in headers if name.startswith("Signature")
    ]
    assert refusal(harness, "POST", TARGET, [*headers, *again], BODY).reason == "signature_missing"


def test_a_payer_that_the_gateway_did_not_name_is_refused(harness: Harness) -> None:
    headers = [*sign(payer=None), ("tollway-payer", str(PAYER))]
    assert refusal(harness, "POST", TARGET, headers, BODY).reason == "payer_not_covered"


# ---- For whom.


def test_a_listing_of_another_provider_with_this_endpoint_is_refused(harness: Harness) -> None:
    assert refusal(harness, "POST", TARGET, sign(api_id="api_2"), BODY).reason == "wrong_listing"


@pytest.mark.parametrize(
    ("signed", "shown"),
    [
        ("/v1/q?x=1", "https://api.example.com/v1/q?x=1"),
        ("/v1/q?u=http://a/b", "/v1/q?u=http://a/b"),
        ("/v1/q?u=http://a/b", "http://any.example/v1/q?u=http://a/b"),
        ("/", "https://api.example.com"),
        ("/?x", "https://api.example.com?x"),
        ("/http://a/b", "/http://a/b"),
    ],
)
def test_a_whole_url_counts_as_its_path_and_query(harness: Harness, signed: str, shown: str) -> None:
    assert harness.verifier.verify("POST", shown, sign(target=signed), BODY)


@pytest.mark.parametrize(
    ("endpoint", "authority"),
    [
        ("https://API.example.com/v1", "api.example.com"),
        ("https://api.example.com:443", "api.example.com"),
        ("http://api.example.com:80/", "api.example.com"),
        ("https://api.example.com:8443/x", "api.example.com:8443"),
        ("http://api.example.com.", "api.example.com"),
        ("http://[2001:DB8::1]:8080/", "[2001:db8::1]:8080"),
    ],
)
def test_the_host_is_the_one_of_the_endpoint_as_the_gateway_writes_it(endpoint, authority) -> None:
    harness = open_harness(endpoint=endpoint)
    assert harness.verifier.verify(
        "POST", TARGET, [*sign(authority=authority), ("Host", "evil.example")], BODY
    )


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint": "api.example.com"},
        {"endpoint": "https://"},
        {"endpoint": "https://é.example"},
        {"api_ids": []},
    ],
)
def test_a_verifier_that_would_take_anything_is_not_made(options) -> None:
    with pytest.raises(ValueError):
        open_harness(**options)


# ---- Bodies.


@pytest.mark.parametrize("body", [b"", BODY[:-1], BODY + b" ", b'{"a":2}'])
def test_another_body_is_refused(harness: Harness, body: bytes) -> None:
    assert refusal(harness, "POST", TARGET, sign(), body).reason == "digest_mismatch"


def test_a_digest_of_two_must_match_in_both(harness: Harness) -> None:
    wrong = f"sha-512=:{base64.b64encode(bytes(64)).decode()}:"
    cover = BodyCoverage(digest=f"{cover_body(BODY, length=None, declared=None).digest}, {wrong}")
    assert refusal(harness, "POST", TARGET, sign(body=cover), BODY).reason == "digest_mismatch"
    none = BodyCoverage(digest="md5=:AAAA:")
    assert refusal(harness, "POST", TARGET, sign(body=none), BODY).reason == "digest_unsupported"


def test_a_length_is_held(harness: Harness) -> None:
    headers = [*sign(body=BodyCoverage(length=7)), ("Content-Length", "7")]
    assert refusal(harness, "POST", TARGET, headers, b"12345678").reason == "length_mismatch"


def test_an_uncovered_body_is_refused_unless_it_is_allowed(harness: Harness) -> None:
    assert refusal(harness, "POST", TARGET, sign(body=BodyCoverage()), b"x").reason == "body_not_covered"
    lenient = open_harness(accept_streamed=True)
    assert lenient.verifier.verify("POST", TARGET, sign(body=BodyCoverage()), b"x").covers == "nothing"


def test_a_head_can_be_verified_before_its_body(harness: Harness) -> None:
    forwarded = harness.verifier.verify("POST", TARGET, sign(), None)
    forwarded.check_body(BODY)
    with pytest.raises(ForwardedRefused):
        forwarded.check_body(b"other")


# ---- Time, and once.


@pytest.mark.parametrize(
    ("later_s", "reason"),
    [
        (-CLOCK_SLACK_S, None),
        (-CLOCK_SLACK_S - 1, "created_in_future"),
        (0, None),
        (VALID_S + CLOCK_SLACK_S, None),
        (VALID_S + CLOCK_SLACK_S + 1, "expired"),
        (10**9, "expired"),
    ],
)
def test_counts_for_a_minute_and_the_slack_of_clocks(harness: Harness, later_s, reason) -> None:
    harness.now_s = NOW_S + later_s
    if reason is None:
        assert harness.verifier.verify("POST", TARGET, sign(), BODY)
    else:
        assert refusal(harness, "POST", TARGET, sign(), BODY).reason == reason


@pytest.mark.parametrize("expires_s", [NOW_S, NOW_S - 1, NOW_S + VALID_S_MAX + 1, 10**14])
def test_a_signature_for_long_is_refused(harness: Harness, expires_s: int) -> None:
    headers = sign_by_hand(*VALUES, expires_s=expires_s)
    assert refusal(harness, "POST", TARGET, headers, b"").reason == "validity_too_long"


def test_a_call_counts_once(harness: Harness) -> None:
    assert harness.verifier.verify("POST", TARGET, sign(), BODY)
    assert refusal(harness, "POST", TARGET, sign(), BODY).reason == "replayed"
    assert harness.verifier.verify("POST", TARGET, sign(nonce="cd" * 16), BODY), (
        "the same call, sent again by the gateway"
    )


def test_a_refused_call_spends_no_nonce(harness: Harness) -> None:
    refusal(harness, "GET", TARGET, sign(), BODY)
    refusal(harness, "POST", TARGET, sign(), b"other")
    assert harness.verifier.verify("POST", TARGET, sign(), BODY)


def test_the_last_moment_is_remembered_too(harness: Harness) -> None:
    assert harness.verifier.verify("POST", TARGET, sign(), BODY)
    harness.now_s = NOW_S + VALID_S + CLOCK_SLACK_S
    assert refusal(harness, "POST", TARGET, sign(), BODY).reason == "replayed"


def test_the_memory_of_nonces_is_bounded_and_forgets() -> None:
    now_s = 100.0
    memory = NonceCache(now_s=lambda: now_s, most=2)
    assert [memory("a", 110), memory("b", 120), memory("a", 110)] == [True, True, False]
    with pytest.raises(ForwardedRefused) as caught:
        memory("c", 120)
    assert (caught.value.reason, caught.value.is_temporary) == ("memory_full", True)
    now_s = 111.0
    assert [memory("c", 130), memory("b", 120)] == [True, False]


def test_several_processes_can_share_a_memory() -> None:
    told = []

    def remember(nonce: str, forget_s: float) -> bool:
        told.append((nonce, forget_s))
        return False

    harness = open_harness(remember=remember)
    assert refusal(harness, "POST", TARGET, sign(), BODY).reason == "replayed"
    assert told == [(NONCE, NOW_S + VALID_S + CLOCK_SLACK_S)]


# ---- Keys.


def test_without_the_directory_the_refusal_is_temporary(harness: Harness) -> None:
    harness.signer = None
    told = refusal(harness, "POST", TARGET, sign(), BODY)
    assert (told.reason, told.is_temporary) == ("keys_unavailable", True)


def test_a_key_that_takes_anothers_place_counts_from_its_first_call_on() -> None:
    """All the steps of a change, a minute apart: at none of them a call is refused."""
    old, both = UpstreamSigner.derive([SECRET]), UpstreamSigner.derive([SECRET, b"\x08" * 32])
    turned, new = UpstreamSigner.derive([b"\x08" * 32, SECRET]), UpstreamSigner.derive([b"\x08" * 32])
    harness = open_harness()
    steps = [(old, old), (both, old), (both, turned), (turned, turned), (turned, old), (new, new)]
    for number, (published, signing) in enumerate(steps):
        harness.signer = published
        harness.now_s = NOW_S + 60 * number
        headers = sign(signing, nonce=f"{number:032}", created_s=int(harness.now_s))
        assert harness.verifier.verify("POST", TARGET, headers, BODY)


# ---- The secret of a listing.

SHARED, OTHER = b"s" * 32, b"o" * 32
AS_SHOWN = encode_base64url(SHARED)


def open_sharing(**secrets: str | tuple[str, ...]) -> Harness:
    """A provider of two listings whose gateway cannot be reached: a secret needs no directory."""
    harness = open_harness(api_ids=["api_1", "api_2"], secrets=secrets or {"api_1": AS_SHOWN})
    harness.signer = None
    return harness


@pytest.mark.parametrize("known", [AS_SHOWN, (encode_base64url(OTHER), AS_SHOWN)], ids=["one", "two"])
def test_a_call_that_is_signed_with_a_known_secret_counts_once(known: str | tuple[str, ...]) -> None:
    harness = open_sharing(api_1=known)
    assert harness.verifier.verify("POST", TARGET, sign(secret=SHARED), BODY).api_id == "api_1"
    assert refusal(harness, "POST", TARGET, sign(secret=SHARED), BODY).reason == "replayed"


def forge(old: str, new: str, name: str = "Signature-Input") -> Pairs:
    return changed(sign(secret=SHARED), name, old, new)


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        (sign(secret=OTHER), "bad_signature"),
        (forge("call_1", "call_2", "Tollway-Call-Id"), "bad_signature"),
        (forge(NONCE, "cd" * 16), "bad_signature"),
        (forge(' "content-digest"', ""), "bad_signature"),
        (sign(secret=SHARED, api_id="api_2"), "unknown_key"),
        (changed(sign(secret=SHARED), "Tollway-Api-Id", "api_1", "api_2"), "bad_signature"),
        (forge('keyid="api_1"', 'keyid="api_2"'), "unknown_key"),
        (forge('"hmac-sha256"', '"ed25519"'), "malformed"),
        (forge("tollway=:", "tollway=:AAAA", "Signature"), "malformed"),
        (sign(), "keys_unavailable"),
    ],
)
def test_a_call_without_the_secret_of_its_listing_is_refused(headers: Pairs, reason: str) -> None:
    harness = open_sharing()
    assert refusal(harness, "POST", TARGET, headers, BODY).reason == reason
    assert harness.verifier.verify("POST", TARGET, sign(secret=SHARED), BODY), "and the real one still counts"


def test_the_secret_of_one_listing_signs_for_no_other_listing() -> None:
    harness = open_sharing(api_1=AS_SHOWN, api_2=encode_base64url(OTHER))
    told = sign(secret=SHARED, api_id="api_2")
    named = changed(told, "Signature-Input", 'keyid="api_2"', 'keyid="api_1"')
    headers = resign(named, SHARED)
    assert refusal(harness, "POST", TARGET, headers, BODY).reason == "wrong_listing"


def resign(headers: Pairs, secret: bytes) -> Pairs:
    """The same headers, signed anew with this secret over what they say."""
    fields = collect_fields(headers)
    claim = read_claim(fields)
    derived = {"@method": "POST", "@authority": "api.example.com", "@path": "/v1/quote", "@query": "?x=1"}
    signature = sign_shared(claim.write_base(claim.read_values(fields, derived)), secret)
    return [*without(headers, "Signature"), ("Signature", f"tollway={signature}")]


def test_without_secrets_no_call_counts_by_one() -> None:
    assert refusal(open_harness(), "POST", TARGET, sign(secret=SHARED), BODY).reason == "unknown_key"


@pytest.mark.parametrize("secret", ["", AS_SHOWN[:-2], "not base64!", ()])
def test_a_secret_that_is_cut_is_an_error_at_the_start(secret: object) -> None:
    with pytest.raises(ValueError, match="forwardSecret"):
        open_harness(secrets={"api_1": secret})


# ---- Unsigned bytes.


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Signature", "tollway=:AAAA:")],
        [("Signature-Input", "tollway=1"), ("Signature", "tollway=1")],
        [("Signature-Input", '"'), ("Signature", '"')],
        [("Signature-Input", 'tollway="x";tag="tollway-forward"'), ("Signature", "tollway=:AAAA:")],
        [("Signature-Input", "a=(" + '"x" ' * 5000 + ")"), ("Signature", "a=:AAAA:")],
        [("Signature-Input", "€"), ("Signature", "€")],
        changed(sign(), "Signature-Input", '"@method"', '"@method";req'),
        changed(sign(), "Signature-Input", '"@method"', '"@METHOD"'),
        changed(sign(), "Signature-Input", '"@method"', "method"),
        changed(sign(), "Signature-Input", '"@method"', '"@method" "@method"'),
        changed(sign(), "Signature-Input", '"@method"', '"@method" "@status"'),
        changed(sign(), "Signature-Input", f"created={NOW_S}", "created=1.5"),
        changed(sign(), "Signature-Input", f"created={NOW_S}", "created=@1"),
        changed(sign(), "Signature-Input", f'nonce="{NONCE}"', 'nonce="short"'),
        changed(sign(), "Signature-Input", f'nonce="{NONCE}"', "nonce=1"),
        changed(sign(), "Signature-Input", "keyid=", "other="),
        changed(sign(), "Tollway-Call-Id", "call_1", "call\n1"),
    ],
)
def test_whatever_is_no_signature_is_refused_and_never_fails(harness: Harness, headers) -> None:
    assert refusal(harness, "POST", TARGET, headers, BODY).reason in {
        "signature_missing",
        "malformed",
        "component_unsupported",
        "wrong_algorithm",
    }


def test_a_target_that_is_no_bytes_is_refused(harness: Harness) -> None:
    assert refusal(harness, "POST", "/v1/€", sign(), BODY).reason == "malformed"


# ---- As the documentation has it.


def read_example() -> str:
    page = (Path(__file__).parents[2] / "docs" / "providers.md").read_text()
    section = page.split("\n## Refuse what the gateway did not forward\n")[1]
    return section.split("```python\n")[1].split("```")[0]


def test_the_example_in_the_documentation_runs_and_refuses_strangers() -> None:
    example: dict[str, Any] = {"__name__": "example"}
    exec(compile(read_example(), "docs/providers.md", "exec"), example)
    server = ThreadingHTTPServer(("127.0.0.1", 0), example["Api"])
    authority = f"127.0.0.1:{server.server_port}"
    example["Api"].log_message = lambda *told: None
    example["verifier"] = open_harness(endpoint=f"http://{authority}/v1").verifier
    with serve_in_thread(server), httpx.Client(base_url=f"http://{authority}", trust_env=False) as http:
        headers = sign(authority=authority)
        served = http.post(TARGET, content=BODY, headers=headers)
        again = http.post(TARGET, content=BODY, headers=headers)
        stranger = http.post(TARGET, content=BODY)
    assert (served.status_code, served.headers["x-served"]) == (204, f"call_1 of {PAYER}")
    assert (again.status_code, stranger.status_code) == (401, 401)
    assert (again.reason_phrase, stranger.reason_phrase) == ("replayed", "signature_missing")
