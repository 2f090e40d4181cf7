"""The check of an authorisation: a row per acceptance, a row per refusal; the default refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.narrowing import of_type
from tests.kit.payer import (
    CHALLENGER,
    NOW_S,
    PAY_TO,
    ROUTE,
    TIMEOUT_S,
    USDC,
    AuthorizationSigner,
    decode_header,
    encode_header,
    facts_of,
    requirement_of,
    wrap,
)
from tollway.chain.port import ContractResult
from tollway.errors import Code, Problem
from tollway.ids import Address, ChainId, keccak256
from tollway.ledger.records import Authorization, Cover, Dialect
from tollway.limits import DEFAULT_LIMITS
from tollway.money import UNITS_MAX, Asset, TokenDomain
from tollway.payments.authorization_check import (
    AuthorizationRefused,
    check_authorization,
    check_times,
    match_requirement,
    parse_presented,
)
from tollway.payments.eip3009 import recover_signer
from tollway.payments.settlement import AUTHORIZATION_VALIDITY_S_MAX
from tollway.payments.wire import AuthorizationReason as Reason
from tollway.payments.wire import PresentedAuthorization

REVERTED = ContractResult(reverted=True, payload=b"")
THIRD_PARTY = Address(b"\x99" * 20)
MIN_BEFORE = NOW_S + TIMEOUT_S + 30


def judge(authorization: Authorization | None = None, **given: Any) -> Reason | Cover:
    """The facts of a plain wallet's valid authorisation. Other names replace facts of the chain."""
    requirement = given.pop("requirement", requirement_of())
    signer = given.pop("signer", AuthorizationSigner().address)
    result = check_authorization(
        authorization or AuthorizationSigner().authorize(signature=b"\1" * 65),
        requirement,
        facts_of(**given),
        signer=signer,
        timeout_s=TIMEOUT_S,
    )
    return result.reason if isinstance(result, AuthorizationRefused) else result


def test_a_valid_authorisation_is_covered_by_the_balance_at_the_head() -> None:
    assert judge() == Cover(balance_units=1_000_000_000, block_number=500)


def test_the_exact_balance_is_enough() -> None:
    assert judge(balance=10_000) == Cover(balance_units=10_000, block_number=500)


def test_the_simulation_checks_a_contract_wallet() -> None:
    for signer in (None, THIRD_PARTY, AuthorizationSigner().address):
        assert isinstance(judge(code_size=23, signer=signer), Cover)
        assert judge(code_size=23, signer=signer, simulation=REVERTED) is Reason.SIMULATION_FAILED


def test_the_cover_is_floored_to_ledger_units_and_capped() -> None:
    asset = replace(USDC, decimals=18)
    payer = AuthorizationSigner(asset=asset, base_units=10**16)
    wanted = requirement_of(asset)
    good = payer.authorize(signature=b"\1" * 65)
    assert judge(good, requirement=wanted, balance=10**16 + 999) == Cover(
        balance_units=10**7, block_number=500
    )
    huge = judge(good, requirement=wanted, balance=2**256 - 1)
    assert huge == Cover(balance_units=UNITS_MAX, block_number=500)


GOOD = AuthorizationSigner().authorize(signature=b"\1" * 65)
OTHER_TOKEN = replace(GOOD, token=Address(b"\x05" * 20))


@pytest.mark.parametrize(
    ("expected", "authorization", "facts"),
    [
        (Reason.NETWORK, replace(GOOD, chain_id=ChainId(1)), {}),
        (Reason.NETWORK, GOOD, {"chain_id": ChainId(1)}),
        (Reason.TOKEN, OTHER_TOKEN, {}),
        (Reason.RECIPIENT, replace(GOOD, payee=THIRD_PARTY), {}),
        (Reason.RETURNED, replace(GOOD, payer=PAY_TO), {"signer": PAY_TO}),
        (Reason.RETURNED, replace(GOOD, payer=PAY_TO), {"code_size": 23}),
        (Reason.AMOUNT, replace(GOOD, base_units=9_999), {}),
        (Reason.AMOUNT, replace(GOOD, base_units=10_001), {}),
        (Reason.SIGNATURE, GOOD, {"signer": None}),
        (Reason.SIGNATURE, GOOD, {"signer": THIRD_PARTY}),
        (Reason.SIGNATURE, GOOD, {"signer": THIRD_PARTY, "is_used": True}),
        (Reason.SIGNATURE, replace(GOOD, signature=b"\1" * 64), {"signer": None}),
        (Reason.UNDEPLOYED_WALLET, replace(GOOD, signature=b"\1" * 66), {"signer": None}),
        (Reason.FACTORY, replace(GOOD, signature=wrap(b"for a contract")), {"signer": None}),
        (Reason.FACTORY, replace(GOOD, signature=wrap(b"for a contract")), {"signer": None, "is_used": True}),
        (Reason.ALREADY_USED, GOOD, {"is_used": True}),
        (Reason.ALREADY_USED, GOOD, {"is_used": True, "balance": 0, "simulation": REVERTED}),
        (
            Reason.ALREADY_USED,
            GOOD,
            {"is_used": True, "head_time": NOW_S + 9_999},
        ),  # money moved: no new terms
        (Reason.ALREADY_USED, GOOD, {"is_used": True, "code_size": 5, "signer": None}),
        (Reason.EXPIRED, GOOD, {"head_time": NOW_S + 31}),
        (Reason.INSUFFICIENT_BALANCE, GOOD, {"balance": 9_999}),
        (Reason.INSUFFICIENT_BALANCE, GOOD, {"balance": 0, "simulation": REVERTED}),
        (Reason.SIMULATION_FAILED, GOOD, {"simulation": REVERTED}),
        (Reason.SIMULATION_FAILED, GOOD, {"gas_estimate": None}),
        (Reason.NOT_YET_VALID, replace(GOOD, valid_after=NOW_S - 1), {"simulation": REVERTED}),
    ],
)
def test_refusals(expected: Reason, authorization: Authorization, facts: dict[str, Any]) -> None:
    assert judge(authorization, **facts) is expected


def test_the_chains_clock_leaves_room_to_serve_and_settle() -> None:
    """validBefore >= head + timeoutSeconds + 30, to the second."""
    assert isinstance(judge(head_time=NOW_S + 30), Cover)
    assert judge(head_time=NOW_S + 31) is Reason.EXPIRED


def test_a_token_without_a_domain_takes_no_authorisation() -> None:
    bare = Asset(chain_id=USDC.chain_id, token=USDC.token, symbol="USDC", decimals=6)
    assert judge(requirement=requirement_of(bare)) is Reason.TOKEN


@pytest.mark.parametrize(
    ("expected", "valid_after", "valid_before"),
    [
        (None, 0, MIN_BEFORE),
        (None, NOW_S, MIN_BEFORE),
        (None, 0, NOW_S + 86_400),
        (Reason.EXPIRED, 0, MIN_BEFORE - 1),
        (Reason.EXPIRED, 0, NOW_S),
        (Reason.EXPIRED, 0, 0),
        (Reason.EXPIRED, NOW_S + 9, NOW_S + 9),
        (Reason.NOT_YET_VALID, NOW_S + 1, MIN_BEFORE),
        (Reason.NOT_YET_VALID, 2**256 - 2, 2**256 - 1),
        (Reason.ENDLESS, 0, NOW_S + 86_401),
        (Reason.ENDLESS, 0, 2**256 - 1),
    ],
)
def test_checks_times_by_the_gateways_clock(
    expected: Reason | None, valid_after: int, valid_before: int
) -> None:
    authorization = replace(GOOD, valid_after=valid_after, valid_before=valid_before)
    refused = check_times(
        authorization,
        now_s=NOW_S,
        timeout_s=TIMEOUT_S,
        validity_s_max=AUTHORIZATION_VALIDITY_S_MAX,
    )
    assert (refused.reason if refused else None) is expected


# ---- Parses three dialects into one record, and matches the requirement that it meets exactly.


VECTORS = sorted((Path(__file__).parent / "vectors").glob("*.json"))
OTHER_PAYEE = Address(b"\x99" * 20)


def parse(*headers: tuple[bytes, bytes], **given_: Any) -> PresentedAuthorization | Problem | None:
    fields = {"challenger": CHALLENGER, "find_route": lambda: ROUTE, "now_s": NOW_S, **given_}
    return parse_presented(headers, **fields)


def shown(dialect: Dialect, payer: AuthorizationSigner | None = None) -> tuple[bytes, bytes]:
    payer = payer or AuthorizationSigner()
    if dialect is Dialect.X402_V2:
        return b"payment-signature", encode_header(payer.payment())
    if dialect is Dialect.X402_V1:
        return b"x-payment", encode_header(payer.payment_v1())
    return b"authorization", b"Payment " + encode_header(payer.credential(), is_urlsafe=True)


def read(dialect: Dialect, payer: AuthorizationSigner | None = None) -> PresentedAuthorization:
    return of_type(PresentedAuthorization, parse(shown(dialect, payer)))


@pytest.mark.parametrize("dialect", Dialect)
def test_every_dialect_gives_the_same_record(dialect: Dialect) -> None:
    presented = read(dialect)
    assert presented.dialect is dialect
    assert (presented.payer, presented.payee, presented.base_units) == (
        AuthorizationSigner().address,
        PAY_TO,
        10_000,
    )
    assert (presented.valid_after, presented.valid_before) == (0, AuthorizationSigner().valid_before)
    assert presented.token == (None if dialect is Dialect.X402_V1 else USDC.token)
    assert bool(presented.challenge_id) is (dialect is Dialect.MPP)
    matched = of_type(tuple, match_requirement(presented, [requirement_of()]))
    requirement, authorization = matched
    assert requirement == requirement_of()
    assert isinstance(authorization, Authorization)
    assert (authorization.dialect, authorization.challenge_id) == (dialect, presented.challenge_id)
    assert (
        recover_signer(authorization, TokenDomain(name="USDC", version="2")) == AuthorizationSigner().address
    )


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"x-payment-tx", b"0x")],
        [(b"authorization", b"Bearer token")],
        [(b"authorization", b"Payments abc")],
        [(b"authorization", b"")],
        [(b"payment-required", b"e30=")],
    ],
)
def test_other_headers_give_none(headers: list[tuple[bytes, bytes]]) -> None:
    assert parse(*headers) is None


@pytest.mark.parametrize(
    "value",
    [b"Payment", b"payment ", b"PAYMENT\t", b"Payment garbage", b"Payment !", b"Payment e30", b"Payment \xff\xfe",
     b'Payment id="x", realm="y"', b"Payment " + b"A" * 20_000],
)  # fmt: skip
def test_garbage_in_a_payment_credential_is_malformed(value: bytes) -> None:
    problem = of_type(Problem, parse((b"authorization", value)))
    assert (problem.code, problem.reason) == (Code.PAYMENT_MALFORMED, "invalid_payload")


@pytest.mark.parametrize("name", [b"payment-signature", b"x-payment"])
@pytest.mark.parametrize("value", [b"", b"garbage!", b"e30=", b"\xff", b"A" * 20_000])
def test_garbage_in_an_x402_header_is_malformed(name: bytes, value: bytes) -> None:
    problem = of_type(Problem, parse((name, value)))
    assert problem.code is Code.PAYMENT_MALFORMED


def test_the_same_authorisation_in_both_headers_of_x402_is_one_payment() -> None:
    name, value = shown(Dialect.X402_V2)
    for headers in ([(name, value), (b"x-payment", value)], [(b"x-payment", value), (name, value)],
                    [(name, value), shown(Dialect.X402_V1)]):  # fmt: skip
        assert parse(*headers) == read(Dialect.X402_V2)


def test_two_authorisations_in_the_headers_of_x402_are_refused_without_terms() -> None:
    other = AuthorizationSigner(nonce=bytes(31) + b"\x07")
    name, value = shown(Dialect.X402_V2)
    for headers in ([(name, value), shown(Dialect.X402_V1, other)],
                    [(name, value), (b"x-payment", shown(Dialect.X402_V2, other)[1])],
                    [(name, value), (b"x-payment", b"e30=")], [(name, b"e30="), shown(Dialect.X402_V1)]):  # fmt: skip
        problem = of_type(Problem, parse(*headers))
        assert (problem.code, problem.reason) == (Code.INVALID_REQUEST, "more_than_one_rail")


def test_one_malformed_value_in_both_headers_of_x402_is_malformed() -> None:
    problem = of_type(Problem, parse((b"payment-signature", b"e30="), (b"x-payment", b"e30=")))
    assert problem.code is Code.PAYMENT_MALFORMED


@pytest.mark.parametrize(
    "names",
    [(Dialect.X402_V1, Dialect.MPP), (Dialect.X402_V2, Dialect.MPP), (Dialect.X402_V2, Dialect.X402_V2)],
)
def test_more_than_one_is_refused_without_terms(names: tuple[Dialect, Dialect]) -> None:
    problem = of_type(Problem, parse(*(shown(dialect) for dialect in names)))
    assert (problem.code, problem.reason) == (Code.INVALID_REQUEST, "more_than_one_rail")


@pytest.mark.parametrize("dialect", list(Dialect))
def test_each_rail_can_be_off_and_its_authorisation_is_parsed_for_the_ledger(dialect: Dialect) -> None:
    is_mpp = dialect is Dialect.MPP
    off: dict[str, Any] = {"challenger": None} if is_mpp else {"is_x402": False}
    on = {"is_x402": False} if is_mpp else {"challenger": None}
    accepted, refused = parse(shown(dialect), **on), parse(shown(dialect), **off)
    assert isinstance(accepted, PresentedAuthorization)
    assert isinstance(refused, PresentedAuthorization)
    assert (accepted.fault, refused) == (None, replace(accepted, fault=refused.fault))
    assert refused.fault is not None
    assert refused.fault.code is Code.PAYMENT_METHOD_UNSUPPORTED


@pytest.mark.parametrize("value", [b"Payment", b"Payment garbage", b"Payment e30"])
def test_what_is_no_credential_is_not_supported_where_mpp_is_off(value: bytes) -> None:
    problem = of_type(Problem, parse((b"authorization", value), challenger=None))
    assert problem.code is Code.PAYMENT_METHOD_UNSUPPORTED


def test_the_header_is_bounded_by_the_limit() -> None:
    header = shown(Dialect.X402_V2)
    tight = replace(DEFAULT_LIMITS, payment_header_bytes_max=len(header[1]) - 1)
    assert isinstance(parse(header, limits=tight), Problem)


def test_a_faulty_challenge_is_refused_only_when_terms_are_matched() -> None:
    """The ledger comes first: the response to an authorisation that has paid must not contain a new challenge."""
    presented = of_type(PresentedAuthorization, parse(shown(Dialect.MPP), now_s=NOW_S + 10_000))
    refused = of_type(Problem, match_requirement(presented, [requirement_of()]))
    assert (refused.code, refused.reason) == (Code.PAYMENT_EXPIRED, "challenge_expired")


@pytest.mark.parametrize("dialect", Dialect)
def test_an_unknown_member_is_refused_only_when_terms_are_matched(dialect: Dialect) -> None:
    """The ledger comes first: the same authorisation may have paid without the unknown member."""
    name, value = shown(dialect)
    content = {**decode_header(value.removeprefix(b"Payment ")), "note": 1}
    prefix = b"Payment " if dialect is Dialect.MPP else b""
    presented = parse((name, prefix + encode_header(content, is_urlsafe=dialect is Dialect.MPP)))
    assert isinstance(presented, PresentedAuthorization)
    assert presented.nonce == read(dialect).nonce
    refused = of_type(Problem, match_requirement(presented, [requirement_of()]))
    assert (refused.code, refused.reason) == (Code.PAYMENT_MALFORMED, "invalid_payload")
    assert "`note`" in refused.detail


BRIDGED = replace(USDC, token=Address(b"\x77" * 20))
ELSEWHERE = replace(USDC, chain_id=ChainId(8453))


@pytest.mark.parametrize(
    ("payer", "requirements", "code", "reason"),
    [
        (AuthorizationSigner(), [], Code.PAYMENT_METHOD_UNSUPPORTED, "invalid_network"),
        (AuthorizationSigner(), [requirement_of(ELSEWHERE)], Code.PAYMENT_METHOD_UNSUPPORTED, "invalid_network"),
        (AuthorizationSigner(), [requirement_of(BRIDGED)], Code.PAYMENT_METHOD_UNSUPPORTED, "invalid_exact_evm_eip3009_not_supported"),
        (AuthorizationSigner(payee=OTHER_PAYEE), [requirement_of()], Code.PAYMENT_VERIFICATION_FAILED, "invalid_exact_evm_payload_recipient_mismatch"),
        (AuthorizationSigner(payee=AuthorizationSigner().address), [requirement_of(pay_to=AuthorizationSigner().address)], Code.PAYMENT_VERIFICATION_FAILED, "returned"),
        (AuthorizationSigner(base_units=9_999), [requirement_of()], Code.PAYMENT_VERIFICATION_FAILED, "invalid_exact_evm_payload_authorization_value_mismatch"),
        (AuthorizationSigner(base_units=10_001), [requirement_of()], Code.PAYMENT_VERIFICATION_FAILED, "invalid_exact_evm_payload_authorization_value_mismatch"),
        (AuthorizationSigner(base_units=0), [requirement_of()], Code.PAYMENT_VERIFICATION_FAILED, "invalid_exact_evm_payload_authorization_value_mismatch"),
    ],
)  # fmt: skip
def test_refuses_with_the_reason_of_the_nearest_requirement(
    payer: AuthorizationSigner, requirements: Any, code: Code, reason: str
) -> None:
    refused = of_type(Problem, match_requirement(read(Dialect.X402_V2, payer), requirements))
    assert (refused.code, refused.reason, refused.payment_state) == (code, reason, "none")


def test_payee_and_amount_must_meet_in_one_requirement() -> None:
    """The old payee with the new price is of neither version."""
    old = requirement_of(pay_to=OTHER_PAYEE, units=20_000)
    new = requirement_of()
    assert isinstance(
        match_requirement(read(Dialect.X402_V2, AuthorizationSigner(payee=OTHER_PAYEE)), [new, old]), Problem
    )
    assert isinstance(
        match_requirement(read(Dialect.X402_V2, AuthorizationSigner(base_units=20_000)), [new, old]), Problem
    )
    both = match_requirement(
        read(Dialect.X402_V2, AuthorizationSigner(payee=OTHER_PAYEE, base_units=20_000)), [new, old]
    )
    assert isinstance(both, tuple)
    assert both[0] == old


def test_version_1_uses_the_token_of_the_signature() -> None:
    euro = Asset(
        chain_id=USDC.chain_id,
        token=Address(b"\x66" * 20),
        symbol="EURC",
        decimals=6,
        domain=TokenDomain(name="EURC", version="2"),
    )
    requirements = [requirement_of(euro), requirement_of()]
    matched = of_type(tuple, match_requirement(read(Dialect.X402_V1), requirements))
    assert matched[0].asset == USDC
    # A contract wallet's choice is unknown here: the first is used, and its token decides.
    smart = replace(read(Dialect.X402_V1), signature=b"\1" * 80)
    matched = of_type(tuple, match_requirement(smart, requirements))
    assert matched[0].asset == euro


# ---- What stock clients really send.


@pytest.mark.parametrize(
    "path", [path for path in VECTORS if path.stem != "siwx"], ids=lambda path: path.stem
)
def test_parses_payments_of_stock_clients(path: Path) -> None:
    vector = json.loads(path.read_text())
    headers = [
        (name.lower().encode(), value.encode()) for name, value in vector["paid"]["request"]["headers"]
    ]
    presented = of_type(PresentedAuthorization, parse(*headers))
    payer = Address.parse(vector["signer"]["address"])
    assert (presented.payer, presented.base_units) == (payer, 10_000)
    if presented.dialect is Dialect.MPP:  # its challenge was another server's; everything else must hold
        assert presented.fault is not None
        assert presented.fault.reason == "invalid_challenge"
        challenge = vector["paid"]["decoded"]["challenge"]
        assert presented.nonce == keccak256((challenge["id"] + challenge["realm"]).encode())
        presented = replace(presented, fault=None)
    matched = of_type(tuple, match_requirement(presented, [requirement_of(pay_to=presented.payee)]))
    requirement, authorization = matched
    assert requirement.asset.domain is not None
    assert recover_signer(authorization, requirement.asset.domain) == payer


def test_the_vectors_include_every_dialect() -> None:
    stems = " ".join(path.stem for path in VECTORS)
    assert all(
        name in stems for name in ("x402_v2_fetch", "x402_v2_axios", "x402_v2_httpx", "x402_v2_requests")
    )
    assert all(name in stems for name in ("x402_v1_fetch", "mpp"))


NAMES = st.sampled_from([b"payment-signature", b"x-payment", b"authorization", b"x-other"])


@given(
    st.lists(
        st.tuples(NAMES, st.binary(max_size=60) | st.binary(max_size=60).map(lambda v: b"Payment " + v)),
        max_size=3,
    )
)
def test_nothing_raises(headers: list[tuple[bytes, bytes]]) -> None:
    presented = parse(*headers)
    assert presented is None or isinstance(presented, PresentedAuthorization | Problem)
