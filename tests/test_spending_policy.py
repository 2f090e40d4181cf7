"""Policies of owners: the digests that wallets sign, the forms of their members, and what contradicts itself."""

from dataclasses import replace
from typing import Any

import pytest
from eth_account import Account

from tests.kit.budgets import policy_of
from tests.kit.ledger_records import NOW_MS
from tollway.ids import Address
from tollway.spending_policy import (
    FIELDS,
    acceptance_digest,
    check_target,
    find_contradictions,
    hash_type,
    parse_limit,
    policy_digest,
    policy_members,
    read_policy,
    revocation_digest,
    typed_digest,
    unbinding_digest,
    write_policy,
    write_typed_data,
)

OWNER = Address.parse("0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266")
AGENT = Address.parse("0x70997970C51812dc3A010C7d01b50e0d17dc79C8")
GATEWAY = "http://127.0.0.1:8402"
POLICY = policy_of(
    owner=OWNER,
    agent=AGENT,
    maxPerCall="0.05",
    maxPerDay="5",
    maxTotal="50",
    allow=("tag:quotes",),
    not_after=1_797_897_600,
    nonce=1_795_356_000_000,
)
NOW_S = NOW_MS // 1000


def test_the_digest_is_that_of_the_reference() -> None:
    assert (
        hash_type("SpendingPolicy", FIELDS).hex()
        == "f88c4cc5ee7c16c57b126bcaae016fc93ef932b77182f60b5f197d09aedd7a76"
    )
    assert policy_digest(POLICY).hex() == "3e49f75f9ceb8090b69f29ca030e9a45aff0c529db97ccb831ac2dc3439b2052"


def test_wallets_sign_the_same_digests() -> None:
    """As eth-account encodes the typed data that a wallet gets."""
    ends = {"agent": str(AGENT), "owner": str(OWNER), "gateway": GATEWAY, "nonce": 7}
    named = {"agent": AGENT, "owner": OWNER, "gateway": GATEWAY, "nonce": 7}
    rows: list[tuple[str, Any, bytes]] = [
        ("SpendingPolicy", policy_members(POLICY), policy_digest(POLICY)),
        ("PolicyAcceptance", ends, acceptance_digest(**named)),  # type: ignore[arg-type]
        ("PolicyRevocation", ends, revocation_digest(**named)),  # type: ignore[arg-type]
        ("PolicyUnbinding", ends, unbinding_digest(**named)),  # type: ignore[arg-type]
    ]
    for name, message, digest in rows:
        signed = Account.sign_typed_data("0x" + "01" * 32, full_message=write_typed_data(name, message))
        assert bytes(signed.message_hash) == digest == typed_digest(name, message)


def test_each_member_is_signed() -> None:
    changes: dict[str, Any] = {
        "owner": AGENT,
        "agent": OWNER,
        "network": "eip155:1",
        "gateway": "https://other.example",
        "currency": "EURC",
        "limits": {**POLICY.limits, "maxPerDay": "5.0"},
        "allow": (),
        "deny": ("api:a",),
        "not_before": 1,
        "not_after": 2,
        "nonce": 3,
    }
    digests = {policy_digest(replace(POLICY, **{name: value})) for name, value in changes.items()}
    assert len(digests | {policy_digest(POLICY)}) == len(changes) + 1


def test_the_stored_text_is_read_as_it_was_signed() -> None:
    assert read_policy(write_policy(POLICY)) == POLICY


@pytest.mark.parametrize(
    ("text", "nano"),
    [
        ("0", 0),
        ("0.05", 50_000_000),
        ("5.0", 5 * 10**9),
        ("0.0000000019", 1),
        ("9223372036", 9223372036 * 10**9),
    ],
)
def test_a_limit_is_rounded_down(text: str, nano: int) -> None:
    assert parse_limit(text) == nano


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "01", "1.", ".5", "1e3", "1,5", " 1", "9223372037", "1" * 33]
)
def test_another_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_limit(text)


@pytest.mark.parametrize("text", ["api:api_1", "tag:quotes", "tag:two words", f"provider:{AGENT}"])
def test_a_target_has_one_of_three_forms(text: str) -> None:
    assert check_target(text) == text


@pytest.mark.parametrize(
    "text",
    ["", "api:", "api:a/b", "tag:", "tag: a", "tag:" + "a" * 33, f"provider:{str(AGENT).lower()}", "x:y"],
)
def test_another_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        check_target(text)


@pytest.mark.parametrize(
    ("members", "found"),
    [
        ({"maxTotal": "1"}, []),
        ({"maxPerCall": "1", "maxPerHour": "1", "maxPerDay": "1", "maxPerMonth": "1", "maxTotal": "1"}, []),
        ({}, [("maxTotal", "no_limit")]),
        ({"maxTotal": "1", "agent": policy_of().owner}, [("agent", "own_wallet")]),
        ({"maxPerCall": "2", "maxTotal": "1"}, [("maxPerCall", "above_longer_limit")]),
        ({"maxPerHour": "2", "maxPerDay": "3", "maxPerMonth": "1"}, [("maxPerDay", "above_longer_limit")]),
        ({"maxTotal": "1", "allow": ("tag:b", "tag:a")}, [("allow", "not_sorted")]),
        ({"maxTotal": "1", "deny": ("tag:a", "tag:a")}, [("deny", "not_sorted")]),
        ({"maxTotal": "1", "allow": ("tag:a",), "deny": ("tag:a",)}, [("deny", "in_both_lists")]),
        ({"maxTotal": "1", "not_before": NOW_S + 9, "not_after": NOW_S + 9}, [("notAfter", "before_begin")]),
        ({"maxTotal": "1", "not_after": NOW_S}, [("notAfter", "expired")]),
    ],
)
def test_what_contradicts_itself_is_named(members: dict[str, Any], found: list[tuple[str, str]]) -> None:
    contradictions = find_contradictions(policy_of(**members), now_s=NOW_S)
    assert [(one.member, one.code) for one in contradictions] == found
