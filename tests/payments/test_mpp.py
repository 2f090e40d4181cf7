"""MPP: a challenge needs no storage, counts for one route and a limited time, and binds the authorisation."""

import base64
import hmac
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.payer import (
    CHAIN,
    CHALLENGER,
    NOW_S,
    ROUTE,
    USDC,
    AuthorizationSigner,
    decode_header,
    encode_header,
    read_challenge,
    requirement_of,
)
from tollway.errors import Code, Refusal
from tollway.ids import keccak256
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.mpp import Challenger, ChallengeRoute, format_moment, parse_moment
from tollway.payments.wire import PresentedAuthorization

Content = dict[str, Any]


def parse(
    content: Any, *, challenger: Challenger = CHALLENGER, route: ChallengeRoute = ROUTE, now_s: float = NOW_S
) -> PresentedAuthorization:
    value = encode_header(content, is_urlsafe=True)
    return challenger.parse(value, route, now_s=now_s, limits=DEFAULT_LIMITS)


def fault_of(content: Any, **given_: Any) -> tuple[Code, str | None] | None:
    fault = parse(content, **given_).fault
    return (fault.code, fault.reason) if fault else None


def test_the_challenge_names_the_fields_to_sign() -> None:
    challenge = read_challenge(CHALLENGER.challenge(requirement_of(), ROUTE, now_s=NOW_S + 0.9))
    assert list(challenge) == ["id", "realm", "method", "intent", "request", "expires", "opaque"]
    assert (challenge["realm"], challenge["method"], challenge["intent"]) == (
        "gw.example.com",
        "evm",
        "charge",
    )
    assert challenge["expires"] == "2027-01-15T08:01:30.000Z"
    assert decode_header(challenge["request"].encode()) == {
        "amount": "10000",
        "currency": "0x036CbD53842c5426634e7929541eC2318f3dCF7e",
        "recipient": str(requirement_of().pay_to),
        "methodDetails": {"chainId": 84532, "credentialTypes": ["authorization"], "decimals": 6},
    }


def test_the_id_is_the_hmac_of_the_scheme() -> None:
    challenge = read_challenge(CHALLENGER.challenge(requirement_of(), ROUTE, now_s=NOW_S))
    slots = [challenge[name] for name in ("realm", "method", "intent", "request", "expires")]
    text = "|".join([*slots, "", challenge["opaque"]])
    expected = hmac.digest(CHALLENGER.secret, text.encode(), "sha256")
    assert challenge["id"].encode() == encode_raw(expected)


def encode_raw(raw: bytes) -> bytes:

    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def test_parses_a_credential() -> None:
    content = AuthorizationSigner().credential()
    credential = parse(content)
    assert credential.fault is None
    assert (credential.chain_id, credential.token) == (CHAIN, USDC.token)
    assert credential.challenge_id == content["challenge"]["id"]
    assert credential.nonce == keccak256((credential.challenge_id + "gw.example.com").encode())


def test_two_challenges_of_one_second_differ() -> None:
    """The nonce is derived from the challenge: two equal challenges could buy only one call."""
    texts = [CHALLENGER.challenge(requirement_of(), ROUTE, now_s=NOW_S, salt=bytes([n])) for n in (1, 2)]
    assert len({read_challenge(text)["id"] for text in texts}) == 2
    for text in texts:
        assert fault_of({**AuthorizationSigner().credential(), **answer(text)}) is None


def answer(challenge: bytes) -> Content:
    """The credential for that challenge."""
    given = read_challenge(challenge)
    signer = AuthorizationSigner(nonce=keccak256((given["id"] + given["realm"]).encode()))
    payload = {"type": "authorization", **signer.fields, "signature": "0x" + signer.signature.hex()}
    return {"challenge": given, "payload": payload}


def test_another_gateway_of_the_same_secret_recognises_it() -> None:
    other = Challenger(secret=CHALLENGER.secret, realm=CHALLENGER.realm)
    assert fault_of(AuthorizationSigner().credential(), challenger=other) is None


CHALLENGE = (Code.PAYMENT_VERIFICATION_FAILED, "invalid_challenge")
EXPIRED = (Code.PAYMENT_EXPIRED, "challenge_expired")
NONCE = (Code.PAYMENT_VERIFICATION_FAILED, "invalid_challenge_nonce")


def test_a_challenge_counts_until_it_expires() -> None:
    assert fault_of(AuthorizationSigner().credential(), now_s=NOW_S + 89.9) is None
    assert fault_of(AuthorizationSigner().credential(), now_s=NOW_S + 90) == EXPIRED


@pytest.mark.parametrize(
    "route",
    [
        replace(ROUTE, api_id="api_2"),
        replace(ROUTE, method="POST"),
        replace(ROUTE, target="/v1/quote?city=Graz"),
        replace(ROUTE, target="/v1/quote"),
        replace(ROUTE, api_id="api_1/", target="v1/quote?city=Wien"),
    ],
)
def test_a_challenge_counts_for_its_own_route_only(route: ChallengeRoute) -> None:
    assert fault_of(AuthorizationSigner().credential(), route=route) == CHALLENGE


def with_request(content: Content, **changes: Any) -> None:
    request = decode_header(content["challenge"]["request"].encode())
    content["challenge"]["request"] = encode_header({**request, **changes}, is_urlsafe=True).decode()


@pytest.mark.parametrize(
    "tamper",
    [
        lambda c: c["challenge"].update(id="A" * 43),
        lambda c: c["challenge"].update(id="é"),
        lambda c: c["challenge"].update(realm="evil.example.com"),
        lambda c: c["challenge"].update(expires="2099-01-01T00:00:00.000Z"),
        lambda c: c["challenge"].update(expires="tomorrow"),
        lambda c: c["challenge"].update(expires=5),
        lambda c: c["challenge"].pop("expires"),
        lambda c: c["challenge"].pop("opaque"),
        lambda c: c["challenge"].update(opaque={"route": "x"}),
        lambda c: c["challenge"].update(digest="sha-256=:AAAA:"),
        lambda c: with_request(c, amount="1"),
        lambda c: with_request(c, recipient="0x" + "11" * 20),
        lambda c: with_request(c, currency="0x" + "11" * 20),
        lambda c: with_request(c, methodDetails={"chainId": 8453}),
    ],
)
def test_a_changed_challenge_is_refused(tamper: Callable[[Content], None]) -> None:
    content = AuthorizationSigner().credential()
    tamper(content)
    assert fault_of(content) == CHALLENGE


def test_a_challenge_of_another_secret_is_refused() -> None:
    forged = AuthorizationSigner().credential(challenger=replace(CHALLENGER, secret=b"t" * 32))
    assert fault_of(forged) == CHALLENGE


def test_a_challenge_of_an_older_secret_counts_while_that_secret_is_configured() -> None:
    shown = AuthorizationSigner().credential()
    changed = replace(CHALLENGER, secret=b"t" * 32, other_secrets=(b"u" * 32, CHALLENGER.secret))
    assert fault_of(shown, challenger=changed) is None
    assert fault_of(shown, challenger=changed, now_s=NOW_S + 90) == EXPIRED
    assert fault_of(shown, challenger=replace(changed, other_secrets=(b"u" * 32,))) == CHALLENGE
    assert fault_of(AuthorizationSigner().credential(challenger=changed)) == CHALLENGE  # the first makes them


def test_the_authorisation_must_be_made_for_the_challenge() -> None:
    content = AuthorizationSigner().credential()
    content["payload"]["nonce"] = "0x" + "07" * 32
    assert fault_of(content) == NONCE


@pytest.mark.parametrize(
    ("place", "name"), [("", "note"), ("challenge", "amount"), ("payload", "token"), ("payload", "chainId")]
)
def test_an_unknown_member_is_a_fault_that_names_it(place: str, name: str) -> None:
    content = AuthorizationSigner().credential()
    (content[place] if place else content).update({name: None})
    fault = parse(content).fault
    assert fault is not None
    assert (fault.code, fault.reason) == SHAPE
    assert f"`{place}.{name}`".replace("`.", "`") in fault.detail


def test_accepts_a_description_and_a_source() -> None:
    content = AuthorizationSigner().credential()
    content["challenge"]["description"] = "A quote"
    content["source"] = {"any": 1}
    assert fault_of(content) is None


UNSUPPORTED = (Code.PAYMENT_METHOD_UNSUPPORTED, "method_unsupported")
SHAPE = (Code.PAYMENT_MALFORMED, "invalid_payload")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda c: c["challenge"].update(method="tempo"), UNSUPPORTED),
        (lambda c: c["challenge"].update(intent="session"), UNSUPPORTED),
        (lambda c: c["payload"].update(type="hash"), UNSUPPORTED),
        (lambda c: c["payload"].pop("type"), SHAPE),
        (lambda c: c.pop("challenge"), SHAPE),
        (lambda c: c.update(payload=[]), SHAPE),
        (lambda c: c["challenge"].pop("id"), SHAPE),
        (lambda c: c["challenge"].update(request="!"), SHAPE),
        (lambda c: c["challenge"].update(request={}), SHAPE),
        (lambda c: with_request(c, currency="USDC"), SHAPE),
        (lambda c: with_request(c, methodDetails={"chainId": "84532"}), SHAPE),
        (lambda c: with_request(c, methodDetails={"chainId": 10**30}), SHAPE),
        (lambda c: with_request(c, methodDetails=None), SHAPE),
        (lambda c: c["payload"].pop("signature"), SHAPE),
    ],
)
def test_refusals(change: Callable[[Content], None], expected: tuple[Code, str]) -> None:
    content = AuthorizationSigner().credential()
    change(content)
    with pytest.raises(Refusal) as caught:
        parse(content)
    assert (caught.value.problem.code, caught.value.problem.reason) == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = ("id", "realm", "method", "intent", "request", "expires", "opaque", "digest", "header")


@given(st.dictionaries(st.sampled_from(NAMES), JSON), st.dictionaries(st.text(max_size=8), JSON))
def test_nothing_raises_anything_but_a_refusal(challenge: Content, payload: Content) -> None:
    content = AuthorizationSigner(valid_after=1).credential()
    content["challenge"].update(challenge)
    content["payload"].update(payload)
    try:
        assert parse(content).payer
    except Refusal:
        return


@given(st.integers(0, 4_000_000_000))
def test_parses_the_times_that_it_formats(seconds: int) -> None:
    assert parse_moment(format_moment(seconds)) == seconds


def test_the_repr_hides_the_secret() -> None:
    assert "sss" not in repr(replace(CHALLENGER, other_secrets=(b"sss",)))
