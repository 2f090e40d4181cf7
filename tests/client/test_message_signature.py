"""The parser of the signature of a forwarded request."""

import pytest

from tollway.client.message_signature import SignatureFieldsInvalid, collect_fields, read_claim, read_digests
from tollway.gateway.request_signing import NO_COVERAGE, UpstreamSigner

NOW_S = 1_800_000_000
HEADERS = UpstreamSigner.derive([b"\x07" * 32]).sign(
    method="GET",
    authority="api.example.com",
    target="/a?b",
    api_id="api_1",
    call_id="call_1",
    payer=None,
    body=NO_COVERAGE,
    created_s=NOW_S,
    nonce="ab" * 16,
)
DERIVED = {"@method": "GET", "@authority": "api.example.com", "@path": "/a", "@query": "?b"}


def test_the_base_is_read_as_it_was_written() -> None:
    fields = collect_fields(HEADERS)
    claim = read_claim(fields)
    base = claim.write_base(claim.read_values(fields, DERIVED))
    told = dict(HEADERS)["Signature-Input"].removeprefix("tollway=")
    assert base.decode() == (
        '"@method": GET\n"@authority": api.example.com\n"@path": /a\n"@query": ?b\n'
        f'"tollway-call-id": call_1\n"tollway-api-id": api_1\n"@signature-params": {told}'
    )
    assert (claim.created_s, claim.nonce) == (NOW_S, "ab" * 16)


def test_a_line_break_in_a_value_is_refused() -> None:
    """With one, two requests could have the same base (RFC 9421 §2.5)."""
    fields = collect_fields(HEADERS)
    for broken in ("/a\n", "/a\r", '/a\n"@query": ?'):
        with pytest.raises(SignatureFieldsInvalid):
            read_claim(fields).read_values(fields, {**DERIVED, "@path": broken})


def test_lines_of_one_name_are_one_value() -> None:
    assert collect_fields([("A", " 1 "), (b"a", b"\t2"), ("B", "")]) == {"a": ["1", "2"], "b": [""]}


@pytest.mark.parametrize(
    ("text", "digests"),
    [("sha-256=:AAAA:", {"sha-256": b"\0\0\0"}), ("a=1, b", {}), ("x=:AA==:;p", {"x": b"\0"})],
)
def test_digests_are_read_by_algorithm(text, digests) -> None:
    assert read_digests(text) == digests


@pytest.mark.parametrize("text", ["sha-256=:AAAA:, sha-256=:AAAA:", "=", "sha-256=:A"])
def test_an_invalid_digest_is_refused(text: str) -> None:
    with pytest.raises(SignatureFieldsInvalid):
        read_digests(text)
