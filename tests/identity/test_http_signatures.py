import base64
import hashlib
from dataclasses import replace

import http_sf
import pytest
from eth_account import Account
from eth_account.messages import encode_defunct
from hypothesis import given
from hypothesis import strategies as st

from tollway.errors import Code, Problem
from tollway.identity.http_signatures import (
    HttpProof,
    SignedRequest,
    accept_signature,
    read_http_proofs,
    required_components,
    signature_headers,
)
from tollway.identity.signatures import eip191_digest, recover
from tollway.identity.siwe import parse_origin
from tollway.ids import Address, ChainId
from tollway.limits import DEFAULT_LIMITS

ORIGIN = parse_origin("https://gw.example.com")
NOW = 1_795_239_000
BODY = b'{"name":"Weather"}'
BARE = SignedRequest(method="GET", raw_path=b"/api/v2/history", query=b"", headers=[], body=b"")
CREATE = replace(BARE, method="POST", raw_path=b"/api/v2/apis", query=b"dry_run=true", body=BODY)
KEYID = "erc8128:8453:0x" + "ab" * 20


def read(request: SignedRequest, *, now: int = NOW) -> tuple[HttpProof, ...] | Problem:
    return read_http_proofs(request, origin=ORIGIN, limits=DEFAULT_LIMITS, now_ms=now * 1000)


def reason_of(outcome: tuple[HttpProof, ...] | Problem) -> str | None:
    return outcome.reason if isinstance(outcome, Problem) else None


def is_by(wallet, outcome: tuple[HttpProof, ...] | Problem) -> bool:
    """The wallet's key made the signature over what the gateway saw."""
    assert not isinstance(outcome, Problem), outcome
    (proof,) = outcome
    return recover(proof.digest, proof.signature) == wallet.address == proof.address


def with_header(request: SignedRequest, name: str, value: str | bytes) -> SignedRequest:
    kept = [line for line in request.headers if line[0] != name.encode()]
    raw = value if isinstance(value, bytes) else value.encode()
    return replace(request, headers=[*kept, (name.encode(), raw)])


def header(request: SignedRequest, name: str) -> str:
    return request.field_lines(name)[0]


class TestVector:
    """The signed bytes written out by hand, so that both sides of our code cannot be wrong together."""

    TEXT = (
        '"@authority": gw.example.com\n"@method": POST\n"@path": /api/v2/apis\n"@query": ?dry_run=true\n'
        '"content-digest": sha-256=:{digest}:\n'
        '"@signature-params": ("@authority" "@method" "@path" "@query" "content-digest")'
        ';created=1795239000;expires=1795239060;nonce="b64url_r4Nd0mN0nCEK0YQY4d4r7A";keyid="{keyid}"'
    )

    def test_a_request_signed_by_eth_account_over_the_base_counts(self) -> None:
        account = Account.from_key(b"\x55" * 32)
        keyid = f"erc8128:8453:{account.address.lower()}"
        digest = base64.b64encode(hashlib.sha256(BODY).digest()).decode()
        text = self.TEXT.format(digest=digest, keyid=keyid)
        signature = bytes(account.sign_message(encode_defunct(text=text)).signature)
        params = text.rsplit('"@signature-params": ', 1)[1]
        headers = [
            (b"host", b"somebody.else.example"),
            (b"content-digest", f"sha-256=:{digest}:".encode()),
            (b"signature-input", f"eth={params}".encode()),
            (b"signature", f"eth=:{base64.b64encode(signature).decode()}:".encode()),
        ]
        outcome = read(replace(CREATE, headers=headers))
        assert not isinstance(outcome, Problem)
        (proof,) = outcome
        assert str(recover(proof.digest, proof.signature)) == account.address
        assert (proof.keyid, proof.nonce) == (keyid, "b64url_r4Nd0mN0nCEK0YQY4d4r7A")
        assert (proof.chain_id, proof.expires_ms) == (8453, 1_795_239_060_000)

    def test_our_own_headers_have_that_base(self) -> None:
        signed: list[bytes] = []
        account = Account.from_key(b"\x55" * 32)

        def sign(digest: bytes) -> bytes:
            signed.append(digest)
            return bytes(65)

        address = Address.parse(account.address)
        headers = signature_headers(
            CREATE,
            origin=ORIGIN,
            address=address,
            chain_id=ChainId(8453),
            created=1795239000,
            expires=1795239060,
            nonce="b64url_r4Nd0mN0nCEK0YQY4d4r7A",
            sign=sign,
        )
        digest = base64.b64encode(hashlib.sha256(BODY).digest()).decode()
        text = self.TEXT.format(digest=digest, keyid=f"erc8128:8453:{address}")
        assert signed == [eip191_digest(text.encode())]
        assert [name for name, _ in headers] == ["Content-Digest", "Signature-Input", "Signature"]


class TestRoundTrip:
    @pytest.mark.parametrize(
        ("method", "path", "query", "body"),
        [
            ("GET", b"/api/v2/history", b"", b""),
            ("GET", b"/api/v2/history", b"limit=5&apiId=a%2Fb", b""),
            ("POST", b"/api/v2/apis", b"", BODY),
            ("PUT", b"/api/v2/apis/api_1", b"", bytes(range(256)) * 500),
            ("DELETE", b"/api/v2/apis/%7E;x=1//..", b"", b""),
            ("GET", b"", b"", b""),
        ],
    )
    def test_a_signature_of_the_client_counts(self, harness, wallet, method, path, query, body) -> None:
        request = harness.signed(wallet, method=method, path=path, query=query, body=body)
        assert is_by(wallet, read(request))

    def test_any_part_that_changes_makes_another_digest_or_a_refusal(self, harness, wallet) -> None:
        request = harness.signed(wallet, method="POST", path=b"/api/v2/apis", query=b"dryRun=true", body=BODY)
        digest, name = "content-digest", "signature-input"
        signed = header(request, name)
        tampered = {
            "method": replace(request, method="PUT"),
            "path": replace(request, raw_path=b"/api/v2/apis/"),
            "path case": replace(request, raw_path=b"/api/v2/APIS"),
            "query": replace(request, query=b"dryRun=false"),
            "query dropped": replace(request, query=b""),
            "body": replace(request, body=BODY + b" "),
            "body dropped": replace(request, body=b""),
            "digest respelled": with_header(request, digest, header(request, digest) + ", unixsum=:AA==:"),
            "created": with_header(request, name, signed.replace(f"created={NOW}", f"created={NOW - 1}")),
            "nonce": with_header(request, name, signed.replace("nonce-1", "nonce-2")),
        }
        for part, changed in tampered.items():
            outcome = read(changed)
            assert isinstance(outcome, Problem) or not is_by(wallet, outcome), part

    def test_the_authority_is_the_configured_one(self, harness, wallet) -> None:
        request = harness.signed(wallet, headers=((b"host", b"evil.example"),))
        assert is_by(wallet, read(request))
        other = parse_origin("https://other.example")
        elsewhere = read_http_proofs(request, origin=other, limits=DEFAULT_LIMITS, now_ms=NOW * 1000)
        assert not is_by(wallet, elsewhere)


class TestWindow:
    @pytest.mark.parametrize(
        ("now", "reason"),
        [
            (NOW - 6, "created_in_future"),
            (NOW - 5, None),
            (NOW, None),
            (NOW + 60, None),
            (NOW + 61, "expired"),
        ],
    )
    def test_a_signature_counts_from_created_to_expires(self, harness, wallet, now, reason) -> None:
        outcome = read(harness.signed(wallet), now=now)
        assert reason_of(outcome) == reason
        if isinstance(outcome, Problem):
            assert outcome.code is Code.SIGNATURE_EXPIRED

    @pytest.mark.parametrize(
        ("span", "reason"),
        [(300, None), (301, "validity_too_long"), (0, "validity_too_long"), (-1, "validity_too_long")],
    )
    def test_the_window_is_300_seconds_at_most(self, harness, wallet, span, reason) -> None:
        assert reason_of(read(harness.signed(wallet, expires=NOW + span))) == reason


REQUIRED = '("@authority" "@method" "@path")'
TIMES = f"created={NOW};expires={NOW + 60}"


# the covered components -> the reason of the refusal
COMPONENTS = [
    ('("@authority" "@method" "@path")', None),
    ('("@path" "@method" "@authority" "@scheme")', None),
    ('("@authority" "@method" "@path" "accept")', None),
    ('("@authority" "@method" "@path" "@query")', None),
    ('("@authority" "@method" "@path" "@target-uri")', None),
    ('("@method" "@path")', "components_missing"),
    ('("@authority" "@path")', "components_missing"),
    ('("@authority" "@method")', "components_missing"),
    ('("@target-uri" "@method")', "components_missing"),
    ("()", "components_missing"),
    ('"@authority"', "malformed"),
    ('("@authority" "@method" "@path" "@path")', "malformed"),
    ('("@authority" "@method" "@path";req)', "component_unsupported"),
    ('("@authority" "@method" "@path" 7)', "component_unsupported"),
    ('("@authority" "@method" "@path" "@status")', "component_unsupported"),
    ('("@authority" "@method" "@path" "Accept")', "component_unsupported"),
    ('("@authority" "@method" "@path" "x-absent")', "component_absent"),
    ('("@authority" "@method" "@path" "content-digest")', "digest_unsupported"),
]
PARAMETERS = [
    *((f'{covered};{TIMES};nonce="n";keyid="{KEYID}"', reason) for covered, reason in COMPONENTS),
    (f'{REQUIRED};{TIMES};nonce="n";keyid="{KEYID}";tag="x";more', None),
    (f'{REQUIRED};{TIMES};keyid="{KEYID}"', "nonce_missing"),
    (f'{REQUIRED};{TIMES};nonce="";keyid="{KEYID}"', "nonce_missing"),
    (f'{REQUIRED};{TIMES};nonce=7;keyid="{KEYID}"', "nonce_missing"),
    (f'{REQUIRED};{TIMES};nonce=tok;keyid="{KEYID}"', "nonce_missing"),
    (f'{REQUIRED};{TIMES};nonce="{"n" * 129}";keyid="{KEYID}"', "nonce_missing"),
    (f'{REQUIRED};created={NOW};nonce="n";keyid="{KEYID}"', "times_missing"),
    (f'{REQUIRED};expires={NOW};nonce="n";keyid="{KEYID}"', "times_missing"),
    (f'{REQUIRED};created;expires={NOW};nonce="n";keyid="{KEYID}"', "times_missing"),
    (f'{REQUIRED};created={NOW}.0;expires={NOW + 1};nonce="n";keyid="{KEYID}"', "times_missing"),
    (f'{REQUIRED};created=@{NOW};expires=@{NOW + 1};nonce="n";keyid="{KEYID}"', "times_missing"),
    (f'{REQUIRED};{TIMES};nonce="n";alg="eip191";keyid="{KEYID}"', "alg_not_allowed"),
    (f'{REQUIRED};{TIMES};nonce="n";keyid="erc8128:8453"', "keyid_malformed"),
    (f'{REQUIRED};{TIMES};nonce="n";keyid="erc8128:08:0x{"ab" * 20}"', "keyid_malformed"),
    (f'{REQUIRED};{TIMES};nonce="n";keyid="erc8128:8:0x{"ab" * 19}"', "keyid_malformed"),
    (f'{REQUIRED};{TIMES};nonce="n";keyid="erc8128:8:0x{"aB" * 20}"', "keyid_malformed"),
    ("(", "malformed"),
    (f'{REQUIRED};{TIMES};nonce="n";keyid="{KEYID}", eth=1', "malformed"),
]


def test_the_required_parameters_of_a_signature() -> None:
    for member, reason in PARAMETERS:
        signed = [(b"signature-input", f"eth={member}".encode()), (b"signature", b"eth=:AAAA:")]
        request = replace(BARE, headers=[(b"accept", b" a "), (b"accept", b"b"), *signed])
        assert reason_of(read(request)) == reason, member


@pytest.mark.parametrize("signature", ["", "other=:AAAA:", "eth=?1", 'eth="text"', "eth=::", "eth=()"])
def test_the_signature_itself_must_be_there(harness, wallet, signature: str) -> None:
    assert reason_of(read(with_header(harness.signed(wallet), "signature", signature))) == "signature_missing"


@pytest.mark.parametrize(
    ("digest", "reason"),
    [
        ("sha-256=:{sha256}:", None),
        ("sha-512=:{sha512}:", None),
        ("sha-256=:{sha256}:, sha-512=:{sha512}:, unixsum=:AA==:", None),
        ("sha-256=:{sha256}:, sha-512=:AAAA:", "digest_mismatch"),
        ("sha-256=:AAAA:", "digest_mismatch"),
        ("sha-256=text", "digest_mismatch"),
        ("md5=:AAAA:", "digest_unsupported"),
        ("", "digest_unsupported"),
        ("sha-256=:{sha256}:, sha-256=:{sha256}:", "malformed"),
        ("sha-256={sha256}", "malformed"),
    ],
)
def test_every_known_digest_must_match_the_body(harness, wallet, digest: str, reason: str | None) -> None:
    names = ("sha256", "sha512")
    values = {name: base64.b64encode(hashlib.new(name, BODY).digest()).decode() for name in names}
    request = harness.signed(wallet, method="POST", path=b"/api/v2/apis", body=BODY)
    assert reason_of(read(with_header(request, "content-digest", digest.format(**values)))) == reason


def test_signatures_of_other_kinds_are_not_looked_at(harness, wallet) -> None:
    request = harness.signed(wallet)
    bot = 'bot=("@authority");created=1;keyid="poqkLGiymh_W0uP6PZFw";tag="web-bot-auth"'
    assert read(with_header(request, "signature-input", bot)) == ()
    assert read(replace(request, headers=[])) == ()
    both = replace(request, headers=[(b"signature-input", bot.encode()), *request.headers])
    assert is_by(wallet, read(both))


def test_more_than_three_signatures_are_too_many(harness, wallet) -> None:
    request = harness.signed(wallet)
    member = header(request, "signature-input").removeprefix("eth=")
    for count, reason in ((3, "signature_missing"), (4, "too_many_signatures")):
        lines = ", ".join(f"s{number}={member}" for number in range(count))
        assert reason_of(read(with_header(request, "signature-input", lines))) == reason


def test_accept_signature_names_what_a_signature_needs() -> None:
    request = SignedRequest(method="PUT", raw_path=b"/x", query=b"a", headers=[], body=b"b")
    text = accept_signature(required_components(request))
    assert text == (
        'sig1=("@authority" "@method" "@path" "@query" "content-digest");keyid;created;expires;nonce'
    )
    assert "sig1" in http_sf.parse(text.encode(), tltype="dictionary")


_FRAGMENT = st.sampled_from(
    [KEYID, "@path", "keyid=", '"', "(", ")", ";", "=", ":", ",", " ", "@", "9" * 20, "%", "é", "\\", "?1"]
)


@given(st.lists(st.one_of(_FRAGMENT, st.text(max_size=5)), max_size=30))
def test_no_input_makes_it_fail(fragments: list[str]) -> None:
    text = "".join(fragments).encode("latin-1", "replace")
    tail = b';created=1;expires=2;nonce="n";keyid="' + KEYID.encode() + b'"'
    for value in (text, b'eth=("@path")' + text, b"eth=(" + text + b")" + tail, b"eth=()" + tail + text):
        headers = [(b"signature-input", value), (b"signature", text), (b"content-digest", text)]
        read(SignedRequest(method="GET", raw_path=text, query=text, headers=headers, body=b"x"))
