"""The check of an authorisation: a row per acceptance, a row per refusal; the default refuses."""

from dataclasses import replace
from typing import Any

import pytest

from tests.kit.payer import (
    NOW_S,
    PAY_TO,
    TIMEOUT_S,
    USDC,
    AuthorizationSigner,
    facts_of,
    requirement_of,
    wrap,
)
from tollway.chain.port import ContractResult
from tollway.ids import Address, ChainId
from tollway.ledger.records import Authorization, Cover
from tollway.money import UNITS_MAX, Asset
from tollway.payments.authorization_check import AuthorizationRefused, check_authorization, check_times
from tollway.payments.settlement import AUTHORIZATION_VALIDITY_S_MAX
from tollway.payments.wire import AuthorizationReason as Reason

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
