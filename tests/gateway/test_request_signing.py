"""The gateway's signature of forwarded calls, and the directory of its keys, checked with independent verifiers."""

import base64
import hashlib
import json
import time
from dataclasses import dataclass

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from http_message_signatures import (
    HTTPMessageVerifier,
    HTTPSignatureKeyResolver,
    InvalidSignature,
    VerifyResult,
    algorithms,
)
from hypothesis import given
from hypothesis import strategies as st

from tollway.gateway.request_signing import (
    DIRECTORY_TAG,
    NO_COVERAGE,
    TAG,
    VALID_S,
    BodyCoverage,
    SigningKey,
    UpstreamSigner,
    cover_body,
    format_digest,
    sign_shared,
    thumbprint,
)
from tollway.ids import Address

SIGNER = UpstreamSigner.derive([b"\x07" * 32])
PAYER = Address(b"\xbb" * 20)
NONCE = "ab" * 16
NOW_S = 1_800_000_000
DIGEST = format_digest(b"hello")
SHA_512 = f"sha-512=:{base64.b64encode(hashlib.sha512(b'hello').digest()).decode()}:"


def sign(signer: UpstreamSigner = SIGNER, **changes) -> dict[str, str]:
    call = {
        "method": "POST",
        "authority": "api.example.com:8443",
        "target": "/v1/a%2Fb?x=1&x=2",
        "api_id": "api_1",
        "call_id": "call_1",
        "payer": PAYER,
        "body": BodyCoverage(digest=DIGEST),
        "created_s": NOW_S,
        "nonce": NONCE,
    }
    return dict(signer.sign(**{**call, **changes}))


def public_key(x: str) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(x + "="))


def is_signed(base: str, signature: str, key: SigningKey = SIGNER.keys[0]) -> bool:
    """By the published half alone."""
    raw = base64.b64decode(signature.partition("=:")[2].removesuffix(":"))
    public_key(key.jwk["x"]).verify(raw, base.encode())
    return True


def test_the_signature_base_follows_the_standard():
    """RFC 9421 §2.5, by hand: every line, in the order of the list, and the parameters last."""
    headers = sign()
    told = (
        '("@method" "@authority" "@path" "@query" "tollway-call-id" "tollway-api-id" "tollway-payer" "content-digest")'
        f';created={NOW_S};expires={NOW_S + VALID_S};nonce="{NONCE}";keyid="{SIGNER.keys[0].keyid}";alg="ed25519"'
        ';tag="tollway-forward"'
    )
    assert headers["Signature-Input"] == f"tollway={told}"
    base = (
        '"@method": POST\n"@authority": api.example.com:8443\n"@path": /v1/a%2Fb\n"@query": ?x=1&x=2\n'
        f'"tollway-call-id": call_1\n"tollway-api-id": api_1\n"tollway-payer": {PAYER}\n"content-digest": {DIGEST}\n'
        f'"@signature-params": {told}'
    )
    assert is_signed(base, headers["Signature"])
    assert headers["Content-Digest"] == "sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:"
    assert (headers["Tollway-Call-Id"], headers["Tollway-Api-Id"]) == ("call_1", "api_1")
    assert headers["Tollway-Payer"] == str(PAYER)


RFC_8032_VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]
"""RFC 8032 §7.1: seed, public key, message, signature."""


@pytest.mark.parametrize(("seed", "public", "message", "signature"), RFC_8032_VECTORS)
def test_a_signature_is_that_of_the_standard(seed: str, public: str, message: str, signature: str):
    key = SigningKey(bytes.fromhex(seed))
    assert base64.urlsafe_b64decode(key.jwk["x"] + "=").hex() == public
    assert base64.b64decode(key.sign(bytes.fromhex(message)).strip(":")).hex() == signature


def test_a_signature_with_a_secret_is_that_of_the_standard():
    """RFC 9421 §B.2.5."""
    secret = base64.b64decode(
        "uzvJfB4u3N0Jy4T7NZ75MDVcr8zSTInedJtkgcu46YW4XByzNJjxBdtjUkdJPBtbmHhIDi6pcl8jsasjlTMtDQ=="
    )
    base = (
        '"date": Tue, 20 Apr 2021 02:07:55 GMT\n"@authority": example.com\n"content-type": application/json\n'
        '"@signature-params": ("date" "@authority" "content-type");created=1618884473;keyid="test-shared-secret"'
    )
    assert sign_shared(base.encode(), secret) == ":pxcQw6G3AjtMBQjwo8XzkZf/bws5LelbaMk5rGIGtE8=:"


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=600))
def test_a_signature_is_that_of_another_library(seed: bytes, message: bytes):
    key, other = SigningKey(seed), Ed25519PrivateKey.from_private_bytes(seed)
    assert base64.urlsafe_b64decode(key.jwk["x"] + "=") == other.public_key().public_bytes_raw()
    assert base64.b64decode(key.sign(message).strip(":")) == other.sign(message)


@pytest.mark.parametrize(
    ("changes", "covered", "absent"),
    [
        ({"payer": None}, '"tollway-api-id" "content-digest"', "Tollway-Payer"),
        ({"body": BodyCoverage(length=7)}, '"tollway-payer" "content-length"', "Content-Digest"),
        ({"body": NO_COVERAGE}, '"tollway-payer")', "Content-Digest"),
    ],
)
def test_names_what_is_there_and_no_more(changes, covered, absent):
    headers = sign(**changes)
    assert covered in headers["Signature-Input"]
    assert absent not in headers
    assert absent.lower() not in headers["Signature-Input"]


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [("/", "/", "?"), ("/a?", "/a", "?"), ("/a?b?c=%20", "/a", "?b?c=%20"), ("/%C3%A9/é", "/%C3%A9/é", "?")],
)
def test_path_and_query_are_those_of_the_request_line(target, path, query):
    headers = sign(target=target, payer=None, body=NO_COVERAGE)
    told = headers["Signature-Input"].removeprefix("tollway=")
    base = (
        f'"@method": POST\n"@authority": api.example.com:8443\n"@path": {path}\n"@query": {query}\n'
        f'"tollway-call-id": call_1\n"tollway-api-id": api_1\n"@signature-params": {told}'
    )
    assert is_signed(base, headers["Signature"])


async def pieces():
    yield b"hello"


@pytest.mark.parametrize(
    ("body", "length", "declared", "expected"),
    [
        (None, 0, None, NO_COVERAGE),
        (None, 0, DIGEST.encode(), NO_COVERAGE),
        (b"", 0, DIGEST.encode(), NO_COVERAGE),
        (b"hello", 5, None, BodyCoverage(digest=DIGEST)),
        (b"hello", 5, format_digest(b"bye").encode(), BodyCoverage(digest=DIGEST)),
        ("streamed", 5, None, BodyCoverage(length=5)),
        ("streamed", None, None, NO_COVERAGE),
        ("streamed", 5, DIGEST.encode(), BodyCoverage(digest=DIGEST)),
        ("streamed", None, DIGEST.encode(), BodyCoverage(digest=DIGEST)),
        ("streamed", 5, SHA_512.encode(), BodyCoverage(digest=SHA_512)),
        ("streamed", 5, f"{DIGEST}, {SHA_512}".encode(), BodyCoverage(digest=f"{DIGEST}, {SHA_512}")),
    ],
)
def test_a_whole_body_is_covered_by_its_digest_and_a_stream_by_its_declared_digest_or_length(
    body, length, declared, expected
):
    body = pieces() if body == "streamed" else body
    assert cover_body(body, length=length, declared=declared) == expected


@pytest.mark.parametrize(
    "declared",
    [
        "",
        "sha-256",
        "sha-256=abc",
        "sha-256=::",
        "md5=:XUFAKrxLKna5cZ2REBfFkg==:",
        DIGEST + ",",
        DIGEST + ' \n"@method": GET',
        DIGEST.replace("sha", "SHA"),
        DIGEST.replace("=:", "=;"),
        DIGEST + ";a=1",
        DIGEST + "é",
        ", ".join([DIGEST] * 3),
        DIGEST + " " * 600,
    ],
)
def test_an_unknown_or_malformed_digest_counts_as_none(declared):
    cover = cover_body(pieces(), length=5, declared=declared.encode())
    assert cover == BodyCoverage(length=5)


# ---- Keys.


def test_the_key_id_is_the_thumbprint_of_the_standard():
    """RFC 8037 appendix A.3."""
    assert (
        thumbprint("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")
        == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
    )


def test_one_secret_is_one_key_and_nothing_of_it_shows():
    secret = b"\x09" * 32
    one, same, other = SigningKey.derive(secret), SigningKey.derive(secret), SigningKey.derive(b"\x0a" * 32)
    assert one.jwk == same.jwk
    assert one.keyid != other.keyid
    assert "d" not in one.jwk
    shown = repr(one) + json.dumps(UpstreamSigner([one]).describe())
    assert secret.hex() not in shown
    assert base64.urlsafe_b64encode(secret).decode().rstrip("=") not in shown


def test_the_first_key_signs_and_all_are_published():
    secrets = [b"\x01" * 32, b"\x02" * 32, b"\x03" * 32]
    signer = UpstreamSigner.derive(secrets)
    keys = [SigningKey.derive(secret) for secret in secrets]
    assert signer.describe() == {"keys": [key.jwk for key in keys]}
    assert f'keyid="{keys[0].keyid}"' in sign(signer)["Signature-Input"]


def test_the_directory_is_signed_by_every_key_for_the_name_that_publishes_it():
    signer = UpstreamSigner.derive([b"\x01" * 32, b"\x02" * 32])
    headers = signer.sign_directory(authority="gw.example.com", created_s=NOW_S, nonce=NONCE)
    inputs = headers["Signature-Input"].split(", ")
    signatures = headers["Signature"].split(", ")
    assert len(inputs) == len(signatures) == 2
    for key, told, signature in zip(signer.keys, inputs, signatures, strict=True):
        params = told.partition("=")[2]
        assert params.startswith('("@authority";req);created=')
        assert f'keyid="{key.keyid}";alg="ed25519";tag="{DIRECTORY_TAG}"' in params
        base = f'"@authority";req: gw.example.com\n"@signature-params": {params}'
        assert is_signed(base, signature, key)


# ---- As others read it: the Python package http-message-signatures, unmodified.


class Published(HTTPSignatureKeyResolver):
    def __init__(self, directory: dict) -> None:
        self._keys = {key["kid"]: public_key(key["x"]) for key in directory["keys"]}

    def resolve_public_key(self, key_id: str) -> Ed25519PublicKey | None:
        return self._keys.get(key_id)


@dataclass
class Request:
    method: str
    url: str
    headers: dict[str, str]


def check_as_others_do(request: Request, body: bytes | None = None) -> VerifyResult:
    verifier = HTTPMessageVerifier(
        signature_algorithm=algorithms.ED25519, key_resolver=Published(SIGNER.describe())
    )
    required = (
        "@method",
        "@authority",
        "@path",
        "@query",
        "tollway-call-id",
        "tollway-api-id",
        "tollway-payer",
    )
    (result,) = verifier.verify(request, expect_tag=TAG, require_components=required, body=body)
    return result


URL = "https://api.example.com:8443/v1/a%2Fb?x=1&x=2"


def test_others_take_it() -> None:
    request = Request("POST", URL, sign(created_s=int(time.time())))
    result = check_as_others_do(request, b"hello")
    assert result.covered_components['"tollway-payer"'] == str(PAYER)
    assert (result.body, result.nonce, result.parameters["keyid"]) == (b"hello", NONCE, SIGNER.keys[0].keyid)
    bare = sign(created_s=int(time.time()), target="/", authority="api.example.com", body=NO_COVERAGE)
    assert check_as_others_do(Request("POST", "https://api.example.com", bare))


@pytest.mark.parametrize(
    ("change", "body"),
    [
        ({"method": "PUT"}, b"hello"),
        ({"url": URL.replace(":8443", "")}, b"hello"),
        ({"url": URL.replace("a%2Fb", "a/b")}, b"hello"),
        ({"url": URL.replace("x=2", "x=3")}, b"hello"),
        ({"Tollway-Call-Id": "call_2"}, b"hello"),
        ({"Tollway-Api-Id": "api_2"}, b"hello"),
        ({"Tollway-Payer": str(Address(b"\xcc" * 20))}, b"hello"),
        ({"Content-Digest": format_digest(b"other")}, b"other"),
        ({}, b"other"),
    ],
)
def test_others_refuse_what_was_changed(change: dict[str, str], body: bytes) -> None:
    headers = {
        **sign(created_s=int(time.time())),
        **{name: text for name, text in change.items() if name[0].isupper()},
    }
    request = Request(change.get("method", "POST"), change.get("url", URL), headers)
    with pytest.raises(InvalidSignature):
        check_as_others_do(request, body)
