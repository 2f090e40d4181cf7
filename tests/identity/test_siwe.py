import base64
import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.narrowing import of_type
from tollway.errors import Code, Problem
from tollway.identity.siwe import (
    SignInMessage,
    SignInProof,
    check_sign_in,
    format_moment,
    format_sign_in,
    parse_moment,
    parse_origin,
    parse_sign_in,
    read_siwx,
)
from tollway.ids import Address, ChainId
from tollway.limits import DEFAULT_LIMITS

NOW_MS = 1_795_239_000_000
ORIGIN = parse_origin("https://gw.example.com")
TEXT = """gw.example.com wants you to sign in with your Ethereum account:
0x19E7E376E7C213B7E7e7e46cc70A5dD086DAff2A

Sign in to the API gateway

URI: https://gw.example.com/api/v2/history
Version: 1
Chain ID: 8453
Nonce: a1b2c3d4e5f67890a1b2c3d4e5f67890
Issued At: 2026-11-21T06:00:39.434Z
Expiration Time: 2026-11-21T06:05:39.446Z
Resources:
- https://gw.example.com/api/v2/history"""
MESSAGE = SignInMessage(
    domain="gw.example.com",
    address="0x19E7E376E7C213B7E7e7e46cc70A5dD086DAff2A",
    uri="https://gw.example.com/api/v2/history",
    chain_id=ChainId(8453),
    nonce="a1b2c3d4e5f67890a1b2c3d4e5f67890",
    issued_at=format_moment(NOW_MS),
)


class TestText:
    def test_the_text_of_a_wallet_is_read(self) -> None:
        message = parse_sign_in(TEXT)
        assert message.statement == "Sign in to the API gateway"
        assert message.resources == ("https://gw.example.com/api/v2/history",)
        assert (message.chain_id, str(message.signer)) == (8453, MESSAGE.address)
        assert format_sign_in(message) == TEXT

    def test_without_a_statement_there_are_two_empty_lines(self) -> None:
        text = format_sign_in(MESSAGE)
        assert f"{MESSAGE.address}\n\n\nURI: " in text
        assert not text.endswith("\n")
        assert parse_sign_in(text) == MESSAGE

    @pytest.mark.parametrize(
        ("found", "instead"),
        [
            ("Version: 1", "Version: 2"),
            ("Version: 1", "version: 1"),
            ("Nonce: a1b2c3d4e5f67890a1b2c3d4e5f67890", "Nonce: short"),
            ("Nonce: a1b2c3d4", "Nonce: a1b2-c3d4"),
            ("Nonce: a1b2c3d4", "Nonce: １２３４５６７８"),
            ("Chain ID: 8453", "Chain ID: 08453"),
            ("Chain ID: 8453", "Chain ID: 0x1"),
            ("Chain ID: 8453", "Chain ID: ８４５３"),
            ("Chain ID: 8453\n", ""),
            ("2026-11-21T06:00:39.434Z", "2026-11-21"),
            ("2026-11-21T06:00:39.434Z", "2026-13-21T06:00:39Z"),
            ("2026-11-21T06:00:39.434Z", "2026-11-21T24:00:39Z"),
            ("2026-11-21T06:00:39.434Z", "2026-11-21T06:00:39+24:00"),
            ("0x19E7E376", "0x19e7E376"),
            ("0x19E7E376", "0x19E7E3"),
            ("0x19E7E376", "19E7E376"),
            ("\n\nURI", "\nURI"),
            ("Sign in to", "Sign in\nto"),
            ("Sign in to", "Sign in, füge"),
            ("Sign in to", "100 % in"),
            ("URI: https", "URI: https://a b"),
            ("\nResources:", "\r\nResources:"),
            ("- https", "-https"),
            ("account:\n", "account: \n"),
            (" wants you to", " wants you two"),
        ],
    )
    def test_any_other_text_is_refused(self, found: str, instead: str) -> None:
        assert found in TEXT
        with pytest.raises(ValueError):
            parse_sign_in(TEXT.replace(found, instead, 1))

    @pytest.mark.parametrize("text", ["", "\n", TEXT + "\n", " " + TEXT, TEXT + "\n- " + "a:" * 3000])
    def test_more_or_less_than_a_text_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError):
            parse_sign_in(text)

    @given(st.data())
    def test_parsing_undoes_formatting(self, data: st.DataObject) -> None:
        plain = st.text("abcXYZ019._~:/?#@!$&'()*+,;= -", min_size=1, max_size=30)
        uris = st.text("abcXYZ019._~:/?#@!$&'()*+,;=%-", max_size=30).map("https://".__add__)
        moments = st.integers(0, 4_000_000_000_000).map(format_moment)
        message = SignInMessage(
            scheme=data.draw(st.sampled_from([None, "https", "http"])),
            domain=data.draw(st.from_regex(r"[a-z0-9.-]{1,20}(:[0-9]{1,5})?", fullmatch=True)),
            address=str(Address(data.draw(st.binary(min_size=20, max_size=20)))),
            statement=data.draw(st.none() | plain),
            uri=data.draw(uris),
            chain_id=ChainId(data.draw(st.integers(0, 10**15 - 1))),
            nonce=data.draw(st.from_regex(r"[A-Za-z0-9]{8,32}", fullmatch=True)),
            issued_at=data.draw(moments),
            expiration_time=data.draw(st.none() | moments),
            not_before=data.draw(st.none() | moments),
            request_id=data.draw(st.none() | st.text("abc019.~@%-", max_size=20)),
            resources=data.draw(st.none() | st.lists(uris, max_size=3).map(tuple)),
        )
        assert parse_sign_in(format_sign_in(message)) == message

    @given(st.text(max_size=60), st.integers(0, len(TEXT)), st.integers(0, 40))
    def test_formatting_undoes_parsing(self, patch: str, at: int, cut: int) -> None:
        text = TEXT[:at] + patch + TEXT[at + cut :]
        try:
            message = parse_sign_in(text)
        except ValueError:
            return
        assert format_sign_in(message) == text


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.9Z", 900),
        ("1970-01-01T00:00:01.123456789Z", 1123),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:30:00-00:30", 0),
        ("2026-11-21T06:00:39.434Z", 1_795_240_839_434),
    ],
)
def test_moments_are_milliseconds(text: str, ms: int) -> None:
    assert parse_moment(text) == ms


@pytest.mark.parametrize(
    ("change", "reason", "code"),
    [
        ({}, None, None),
        ({"scheme": "https"}, None, None),
        ({"scheme": "http"}, "domain_mismatch", Code.INVALID_SIGNATURE),
        ({"domain": "evil.example"}, "domain_mismatch", Code.INVALID_SIGNATURE),
        ({"domain": "gw.example.com:443"}, "domain_mismatch", Code.INVALID_SIGNATURE),
        ({"domain": "GW.example.com"}, "domain_mismatch", Code.INVALID_SIGNATURE),
        ({"uri": "https://evil.example/"}, "uri_mismatch", Code.INVALID_SIGNATURE),
        ({"uri": "https://gw.example.com.evil.example/"}, "uri_mismatch", Code.INVALID_SIGNATURE),
        ({"issued_at": format_moment(NOW_MS + 5_000)}, None, None),
        ({"issued_at": format_moment(NOW_MS + 5_001)}, "issued_at_in_future", Code.SIGNATURE_EXPIRED),
        ({"issued_at": format_moment(NOW_MS - 300_000)}, None, None),
        ({"issued_at": format_moment(NOW_MS - 300_001)}, "issued_at_too_old", Code.SIGNATURE_EXPIRED),
        ({"expiration_time": format_moment(NOW_MS + 1)}, None, None),
        ({"expiration_time": format_moment(NOW_MS)}, "expired", Code.SIGNATURE_EXPIRED),
        ({"not_before": format_moment(NOW_MS)}, None, None),
        ({"not_before": format_moment(NOW_MS + 1)}, "not_yet_valid", Code.SIGNATURE_EXPIRED),
    ],
)
def test_a_message_is_for_this_gateway_and_of_now(change, reason, code) -> None:
    message = replace(MESSAGE, **change)
    problem = check_sign_in(message, origin=ORIGIN, limits=DEFAULT_LIMITS, now_ms=NOW_MS)
    assert (problem and problem.reason) == (reason and f"invalid_siwx_{reason}")
    assert (problem and problem.code) == code


PAYLOAD = {
    "domain": MESSAGE.domain,
    "address": MESSAGE.address,
    "uri": MESSAGE.uri,
    "version": "1",
    "chainId": "eip155:8453",
    "type": "eip191",
    "nonce": MESSAGE.nonce,
    "issuedAt": MESSAGE.issued_at,
    "signature": "0x" + "ab" * 65,
}


def encoded(payload: object) -> str:
    return base64.b64encode(json.dumps(payload).encode()).decode()


class TestSiwx:
    def test_the_header_is_the_message_in_pieces(self) -> None:
        assert read_siwx(encoded(PAYLOAD)) == SignInProof(message=MESSAGE, signature=b"\xab" * 65)
        more = {
            "statement": "Sign in",
            "expirationTime": "2026-11-21T06:05:39.446Z",
            "notBefore": "2026-11-21T06:00:00Z",
            "requestId": "r-1",
            "resources": ["https://gw.example.com/x"],
            "signatureScheme": "eip191",
            "somethingNew": {"a": 1},
        }
        proof = of_type(SignInProof, read_siwx(encoded(PAYLOAD | more)))
        assert asdict(proof.message) == asdict(MESSAGE) | {
            "statement": "Sign in",
            "expiration_time": "2026-11-21T06:05:39.446Z",
            "not_before": "2026-11-21T06:00:00Z",
            "request_id": "r-1",
            "resources": ("https://gw.example.com/x",),
        }

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"chainId": "solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp"}, "unsupported_chain"),
            ({"chainId": "eip155:"}, "chain_id"),
            ({"chainId": "eip155:01"}, "chain_id"),
            ({"chainId": 8453}, "payload"),
            ({"type": "ed25519"}, "payload"),
            ({"version": "2"}, "payload"),
            ({"version": 1}, "payload"),
            ({"signature": "0x"}, "malformed_signature"),
            ({"signature": "0xabc"}, "malformed_signature"),
            ({"signature": "ab" * 65}, "malformed_signature"),
            ({"signature": "0x" + "ab" * 4097}, "malformed_signature"),
            ({"address": "0x12"}, "payload"),
            ({"nonce": "short"}, "payload"),
            ({"nonce": "a" * 32 + "\nIssued At: 2026-11-21T06:00:39Z"}, "payload"),
            ({"statement": "Sign in\n\nURI: https://evil.example"}, "payload"),
            ({"statement": ["a"]}, "payload"),
            ({"requestId": "a\nResources:"}, "payload"),
            ({"uri": MESSAGE.uri + "\nVersion: 1"}, "payload"),
            ({"resources": ["https://a\n- https://b"]}, "payload"),
            ({"resources": "https://a"}, "payload"),
            ({"resources": [1]}, "payload"),
            ({"issuedAt": 1_795_239_000}, "payload"),
            ({"issuedAt": "yesterday"}, "payload"),
            ({"domain": None}, "payload"),
        ],
    )
    def test_refuses(self, change, reason: str) -> None:
        problem = of_type(Problem, read_siwx(encoded(PAYLOAD | change)))
        assert (problem.code, problem.reason) == (Code.INVALID_SIGNATURE, f"invalid_siwx_{reason}")

    @pytest.mark.parametrize(
        "header",
        [
            "",
            "!!",
            "e30",
            base64.b64encode(b"[]").decode(),
            base64.b64encode(b"\xff\xfe").decode(),
            base64.b64encode(b"[" * 6000).decode(),
            base64.b64encode(json.dumps(PAYLOAD | {"x": [[]] * 64}).encode()).decode(),
            base64.b64encode(json.dumps(PAYLOAD | {"x": "x" * 16_000}).encode()).decode(),
            base64.b64encode(json.dumps(PAYLOAD)[:-1].encode() + b',"version":"1"}').decode(),
            json.dumps(PAYLOAD),
        ],
    )
    def test_an_invalid_payload_is_refused(self, header: str) -> None:
        assert of_type(Problem, read_siwx(header)).reason == "invalid_siwx_payload"

    @pytest.mark.parametrize("missing", sorted(PAYLOAD))
    def test_every_member_must_be_there(self, missing: str) -> None:
        assert isinstance(
            read_siwx(encoded({name: PAYLOAD[name] for name in PAYLOAD if name != missing})), Problem
        )
