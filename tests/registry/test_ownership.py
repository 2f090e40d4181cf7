"""The proofs of an origin, and the ownership after a check."""

import pytest

from tollway.ids import Address, ListingId
from tollway.registry.ownership import (
    METHODS,
    PROOFS_MAX,
    Challenge,
    Method,
    Ownership,
    apply_check,
    find_signatures,
    is_still_of,
    make_content,
)

ALICE, BOB = Address(b"\xaa" * 20), Address(b"\xbb" * 20)
ORIGIN, OTHER = "https://api.example.com", "https://other.example.com"
GATEWAY = "https://gw.example.com"
DAY_MS = 86_400_000


def challenge(origin: str = ORIGIN, pay_to: Address = ALICE) -> Challenge:
    return Challenge(
        listing_id=ListingId("api_1"),
        origin=origin,
        host="api.example.com",
        provider=ALICE,
        pay_to=pay_to,
        networks=(),
        content=make_content(GATEWAY, provider=ALICE, origin=origin),
    )


def check(
    before: Ownership | None, *proved: Method, now_ms: int = 0, about: Challenge | None = None
) -> Ownership:
    return apply_check(before, about or challenge(), proved, now_ms=now_ms, failures_max=7)


def test_the_content_is_of_one_wallet_one_origin_and_one_gateway() -> None:
    mine = make_content(GATEWAY, provider=ALICE, origin=ORIGIN)
    assert mine == make_content(GATEWAY, provider=ALICE, origin=ORIGIN)
    others = {
        make_content(GATEWAY, provider=BOB, origin=ORIGIN),
        make_content(GATEWAY, provider=ALICE, origin=ORIGIN + ":8443"),
        make_content(GATEWAY, provider=ALICE, origin=ORIGIN.replace("https", "http")),
        make_content("https://other.example.com", provider=ALICE, origin=ORIGIN),
    }
    assert len(others) == 4
    assert mine not in others
    assert mine.startswith("tollway-verification=")
    assert len(mine) == 21 + 43
    assert mine.isascii()


@pytest.mark.parametrize(
    ("texts", "is_met"),
    [
        (["{}"], True),
        (["# other", "  {}\t", "v=spf1"], True),
        (["x{}"], False),
        (["{}x"], False),
        (["{} {}"], False),
        ([""], False),
        ([], False),
    ],
)
def test_a_whole_line_is_a_proof_also_beside_other_lines(texts: list[str], is_met: bool) -> None:
    about = challenge()
    assert about.is_met_by([text.replace("{}", about.content) for text in texts]) is is_met


def test_a_challenge_has_the_places_of_its_proofs() -> None:
    about = challenge()
    assert about.file_url == "https://api.example.com/.well-known/tollway-verification"
    assert about.document_url == "https://api.example.com/openapi.json"
    assert about.dns_name == "_tollway.api.example.com"


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({"x-discovery": {"ownershipProofs": ["0x1", "0x2"]}}, ("0x1", "0x2")),
        ({"x-agentcash-provenance": {"ownershipProofs": ["0x3"]}}, ("0x3",)),
        ({"x-discovery": {"ownershipProofs": ["0x1", 7, None, ["0x2"]]}}, ("0x1",)),
        ({"x-discovery": {"ownershipProofs": "0x1"}}, ()),
        ({"x-discovery": ["0x1"]}, ()),
        ({"x-discovery": {"ownershipProofs": ["0x"] * 99}}, ("0x",) * PROOFS_MAX),
        ({}, ()),
        ([], ()),
        ("0x1", ()),
        (None, ()),
    ],
)
def test_signatures_are_read_from_the_members_of_crawlers(document: object, found: tuple[str, ...]) -> None:
    assert find_signatures(document) == found


def test_one_proof_is_enough_and_the_first_of_several_is_reported() -> None:
    for method in METHODS:
        known = check(None, method, now_ms=5)
        assert (known.method, known.verified_ms, known.checked_ms, known.failures) == (method, 5, 5, 0)
    assert check(None, "signature", "dns", "wellKnown").method == "wellKnown"


def test_only_a_signature_has_a_signer() -> None:
    assert check(None, "signature").signer == ALICE
    assert check(None, "dns").signer is None


def test_without_a_proof_checks_are_counted() -> None:
    once = check(None, now_ms=5)
    assert (once.is_verified, once.method, once.checked_ms, once.failures) == (False, None, 5, 1)
    assert check(once).failures == 2


def test_a_proof_ends_at_the_seventh_consecutive_failure() -> None:
    known = check(None, "dns", now_ms=1)
    for day in range(1, 7):
        known = check(known, now_ms=day * DAY_MS)
        assert (known.is_verified, known.verified_ms, known.failures) == (True, 1, day)
    known = check(known, now_ms=7 * DAY_MS)
    assert (known.is_verified, known.failures, known.checked_ms) == (False, 7, 7 * DAY_MS)


def test_a_proof_resets_the_count_of_failures() -> None:
    known = check(check(None, "dns"))
    assert known.failures == 1
    again = check(known, "wellKnown", now_ms=9)
    assert (again.failures, again.verified_ms, again.method) == (0, 9, "wellKnown")


def test_the_ownership_of_another_origin_does_not_count() -> None:
    elsewhere = check(check(None, "dns"), about=challenge(OTHER))
    assert (elsewhere.is_verified, elsewhere.origin, elsewhere.failures) == (False, OTHER, 1)


@pytest.mark.parametrize(
    ("method", "origin", "pay_to", "is_kept"),
    [
        ("dns", ORIGIN, ALICE, True),
        ("dns", ORIGIN, BOB, True),
        ("dns", OTHER, ALICE, False),
        ("dns", "", ALICE, False),
        ("signature", ORIGIN, ALICE, True),
        ("signature", ORIGIN, BOB, False),
        ("signature", OTHER, ALICE, False),
    ],
)
def test_an_edit_of_origin_or_signing_payee_ends_a_proof(
    method: Method, origin: str, pay_to: Address, is_kept: bool
) -> None:
    assert is_still_of(check(None, method), origin=origin, pay_to=pay_to) is is_kept
