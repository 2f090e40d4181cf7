"""Parses the authorisation of a request (three dialects), matches it with a requirement, and checks it against chain facts. Pure.

The outcomes are a closed set, and the default refuses. Only the signed fields, the gateway's own requirement and the chain's
facts count; other statements of the caller do not. The order protects the caller's money: parse, look the authorisation up in
the ledger, and only then match. The response to an authorisation that is in the ledger never offers new terms.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from tollway.chain.port import AuthorizationFacts
from tollway.errors import Problem, Refusal
from tollway.identity.signatures import KEY_SIGNATURE_BYTES
from tollway.ids import Address
from tollway.ledger.records import Authorization, Cover
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.money import UNITS_MAX
from tollway.payments import x402
from tollway.payments.deployment import Deployment, explain_factory, is_wrapped
from tollway.payments.eip3009 import recover_signer
from tollway.payments.mpp import CREDENTIAL_HEADER, Challenger, ChallengeRoute, parse_credential
from tollway.payments.pricing import PaymentRequirement
from tollway.payments.wire import (
    AuthorizationReason,
    PresentedAuthorization,
    explain_authorization,
    unreadable,
)

_MPP = re.compile(rb"[ \t]*payment(?:[ \t]+(.*))?", re.IGNORECASE | re.DOTALL)
_RAILS = (x402.PAYMENT_HEADER, x402.PAYMENT_HEADER_V1)


def parse_presented(
    headers: Sequence[tuple[bytes, bytes]],
    *,
    challenger: Challenger | None,
    find_route: Callable[[], ChallengeRoute],
    now_s: float,
    limits: Limits = DEFAULT_LIMITS,
    is_x402: bool = True,
) -> PresentedAuthorization | Problem | None:
    """The authorisation in the headers (names in lower case), the problem with it, or None when the headers have none.

    `challenger` None: MPP is off. `is_x402` False: x402 is off. An authorisation of a form that is off is parsed, with that as its
    `fault`: the ledger may have it from a time when the form was on, and decides before the fault does. `find_route` returns the route that an MPP challenge must be bound to. Never raises.
    """
    x402_headers = [(name, value) for name, value in headers if name in _RAILS]
    credentials = [_MPP.fullmatch(value) for name, value in headers if name == CREDENTIAL_HEADER]
    payments = [match[1] or b"" for match in credentials if match is not None]
    if not x402_headers and not payments:
        return None
    if len(payments) + bool(x402_headers) > 1:
        return explain_authorization(AuthorizationReason.MORE_THAN_ONE)
    try:
        if payments:
            return _parse_mpp(payments[0], challenger, find_route, now_s, limits)
        presented = _parse_x402(x402_headers, limits)
        return presented if is_x402 else replace(presented, fault=_X402_OFF)
    except Refusal as refusal:
        return refusal.problem


def _parse_x402(headers: Sequence[tuple[bytes, bytes]], limits: Limits) -> PresentedAuthorization:
    """The payment in the headers of x402. A client that does not know the version of its server sends one payment in both: the same value twice, or the
    same signed authorisation in the forms of both versions. It counts as one of version 2."""
    values = dict(headers)
    value, value_v1 = values.get(x402.PAYMENT_HEADER), values.get(x402.PAYMENT_HEADER_V1)
    if len(headers) > len(values):
        raise _more_than_one()  # one header twice
    if value is None:
        return x402.parse_payment_v1(values[x402.PAYMENT_HEADER_V1], limits=limits)
    if value_v1 is None or value_v1 == value:
        return x402.parse_payment(value, limits=limits)
    try:
        presented = x402.parse_payment(value, limits=limits)
        repeated = x402.parse_payment_v1(value_v1, limits=limits)
    except Refusal as exc:
        raise _more_than_one() from exc
    if _name_payment(presented) != _name_payment(repeated):
        raise _more_than_one()
    return replace(presented, fault=presented.fault or repeated.fault)


def _more_than_one() -> Refusal:
    return Refusal(explain_authorization(AuthorizationReason.MORE_THAN_ONE))


def _name_payment(presented: PresentedAuthorization) -> tuple[object, ...]:
    return (
        presented.chain_id,
        presented.payer,
        presented.payee,
        presented.base_units,
        presented.valid_after,
        presented.valid_before,
        presented.nonce,
        presented.signature,
    )


def _parse_mpp(
    value: bytes,
    challenger: Challenger | None,
    find_route: Callable[[], ChallengeRoute],
    now_s: float,
    limits: Limits,
) -> PresentedAuthorization:
    if challenger is None:
        try:
            return parse_credential(value, find_fault=lambda challenge, nonce: _MPP_OFF, limits=limits)
        except Refusal:
            raise Refusal(_MPP_OFF) from None
    if not value.strip():
        raise unreadable("`Authorization: Payment` carries no credential.")
    return challenger.parse(value, find_route(), now_s=now_s, limits=limits)


_MPP_OFF = explain_authorization(AuthorizationReason.MPP_METHOD, "MPP is off at this gateway.")
_X402_OFF = explain_authorization(
    AuthorizationReason.SCHEME, "x402 is off at this gateway. Pay with another option of the terms."
)


def match_requirement(
    presented: PresentedAuthorization, requirements: Sequence[PaymentRequirement]
) -> tuple[PaymentRequirement, Authorization] | Problem:
    """The requirement that the authorisation meets exactly, and the authorisation as the ledger stores it; otherwise the problem
    of the nearest requirement.

    Network and token are those that the payment names; payee and amount must be of one and the same requirement.
    """
    if presented.fault is not None:
        return presented.fault
    on_network = [one for one in requirements if one.asset.chain_id == presented.chain_id]
    if not on_network:
        return explain_authorization(AuthorizationReason.NETWORK)
    of_token = [one for one in on_network if presented.token is None or one.asset.token == presented.token]
    if not of_token:
        return explain_authorization(AuthorizationReason.TOKEN)
    to_payee = [one for one in of_token if one.pay_to == presented.payee]
    if not to_payee:
        return explain_authorization(AuthorizationReason.RECIPIENT)
    if presented.payee == presented.payer:
        return explain_authorization(AuthorizationReason.RETURNED)
    exact = [one for one in to_payee if one.base_units == presented.base_units]
    if not exact:
        return explain_authorization(AuthorizationReason.AMOUNT, _describe_amount(presented, to_payee[0]))
    return _choose(presented, exact)


def _choose(
    presented: PresentedAuthorization, exact: Sequence[PaymentRequirement]
) -> tuple[PaymentRequirement, Authorization]:
    """The first match. Version 1 of x402 names no token: where several tokens match, the token that the payer's key signed for."""
    choices = [(requirement, _authorize_for(presented, requirement)) for requirement in exact]
    if len(choices) > 1:
        for requirement, authorization in choices:
            domain = requirement.asset.domain
            if domain is not None and recover_signer(authorization, domain) == presented.payer:
                return requirement, authorization
    return choices[0]


def _authorize_for(presented: PresentedAuthorization, requirement: PaymentRequirement) -> Authorization:
    token = requirement.asset.token
    assert token is not None  # every requirement has a token
    return to_authorization(presented, token)


def to_authorization(presented: PresentedAuthorization, token: Address) -> Authorization:
    return Authorization(
        chain_id=presented.chain_id,
        token=token,
        payer=presented.payer,
        payee=presented.payee,
        base_units=presented.base_units,
        valid_after=presented.valid_after,
        valid_before=presented.valid_before,
        nonce=presented.nonce,
        signature=presented.signature,
        dialect=presented.dialect,
        challenge_id=presented.challenge_id,
    )


def _describe_amount(presented: PresentedAuthorization, requirement: PaymentRequirement) -> str:
    return (
        f"The authorisation must be for exactly {requirement.base_units} base units of "
        f"{requirement.asset.symbol}; it is for {presented.base_units}."
    )


SETTLE_WITHIN_S = 30
"""An authorisation must be valid for this long after the upstream's deadline, so that its transfer can still be mined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRefused:
    """`detail`: replaces the general sentence of the reason."""

    reason: AuthorizationReason
    detail: str | None = None


def is_late(valid_before: int, *, now_s: float, timeout_s: int) -> bool:
    """Whether the authorisation could expire before its transfer is mined, when the upstream uses its whole deadline from now."""
    return valid_before < now_s + timeout_s + SETTLE_WITHIN_S


def check_times(
    authorization: Authorization, *, now_s: float, timeout_s: int, validity_s_max: int
) -> AuthorizationRefused | None:
    """Checks validity by the gateway's clock, before any request to a chain; `check_authorization` checks it by the chain's clock.

    An undecided settlement stays undecided until `validBefore`, so `validBefore` has a maximum.
    """
    if is_late(authorization.valid_before, now_s=now_s, timeout_s=timeout_s):
        return AuthorizationRefused(reason=AuthorizationReason.EXPIRED)
    if authorization.valid_after > now_s:
        return AuthorizationRefused(reason=AuthorizationReason.NOT_YET_VALID)
    if authorization.valid_before > now_s + validity_s_max:
        return AuthorizationRefused(reason=AuthorizationReason.ENDLESS)
    return None


def check_authorization(
    authorization: Authorization,
    requirement: PaymentRequirement,
    facts: AuthorizationFacts,
    *,
    signer: Address | None,
    timeout_s: int,
    deployment: Deployment | None = None,
    factories: Collection[Address] = (),
) -> Cover | AuthorizationRefused:
    """The balance that covers the authorisation, or the reason of the refusal. `signer`: the address whose key made the signature,
    or None (`eip3009.recover_signer`). `deployment`: the one in the simulated transaction; `factories`: those that it may call.

    For a wallet with code, or with a deployment, the key is not checked here: the token calls the wallet within the simulation, and
    `find_precheck_refusal` calls it once more, within limits.
    A used nonce is reported before an expired time: it means that money has moved, and the caller must not pay again.
    """
    is_contract = facts.code_size > 0 or deployment is not None
    reason = _find_fault(
        authorization, requirement, facts, timeout_s, is_signed=is_contract or signer == authorization.payer
    )
    if reason is AuthorizationReason.SIGNATURE:
        return _explain_unsigned(authorization.signature, factories)
    if reason is AuthorizationReason.SIMULATION_FAILED and deployment is not None:
        return AuthorizationRefused(reason=reason, detail=_DEPLOYMENT_FAILS)
    if reason is not None:
        return AuthorizationRefused(reason=reason)
    units = min(requirement.asset.floor_to_ledger(facts.balance), UNITS_MAX)
    return Cover(balance_units=units, block_number=facts.head_number)


def _explain_unsigned(signature: bytes, factories: Collection[Address]) -> AuthorizationRefused:
    """The refusal of a payer without code whose key did not make the signature, and whose wallet is not deployed."""
    if is_wrapped(signature):
        return AuthorizationRefused(
            reason=AuthorizationReason.FACTORY, detail=explain_factory(signature, factories)
        )
    if len(signature) > KEY_SIGNATURE_BYTES:
        return AuthorizationRefused(reason=AuthorizationReason.UNDEPLOYED_WALLET)
    return AuthorizationRefused(reason=AuthorizationReason.SIGNATURE)


_DEPLOYMENT_FAILS = (
    "The transaction that deploys the paying wallet and makes its transfer fails in simulation; check the deployment and the signature "
    "in the wrapper (ERC-6492), or deploy the wallet first."
)


def find_failure_reason(authorization: Authorization, facts: AuthorizationFacts) -> AuthorizationReason:
    """Why the simulation refuses a transfer now that it accepted before the claim."""
    if facts.head_time >= authorization.valid_before:
        return AuthorizationReason.EXPIRED
    if facts.balance < authorization.base_units:
        return AuthorizationReason.INSUFFICIENT_BALANCE
    if authorization.valid_after >= facts.head_time:
        return AuthorizationReason.NOT_YET_VALID
    return AuthorizationReason.SIMULATION_FAILED


def _find_fault(
    authorization: Authorization,
    requirement: PaymentRequirement,
    facts: AuthorizationFacts,
    timeout_s: int,
    *,
    is_signed: bool,
) -> AuthorizationReason | None:
    asset = requirement.asset
    if not authorization.chain_id == asset.chain_id == facts.chain_id:
        return AuthorizationReason.NETWORK
    if authorization.token != asset.token or asset.domain is None:
        return AuthorizationReason.TOKEN
    if authorization.payee != requirement.pay_to:
        return AuthorizationReason.RECIPIENT
    if authorization.payee == authorization.payer:
        return AuthorizationReason.RETURNED
    if authorization.base_units != requirement.base_units:
        return AuthorizationReason.AMOUNT
    if not is_signed:
        return AuthorizationReason.SIGNATURE
    if facts.is_used:
        return AuthorizationReason.ALREADY_USED
    if is_late(authorization.valid_before, now_s=facts.head_time, timeout_s=timeout_s):
        return AuthorizationReason.EXPIRED
    if facts.balance < authorization.base_units:
        return AuthorizationReason.INSUFFICIENT_BALANCE
    if facts.simulation.reverted or facts.gas_estimate is None:
        is_early = authorization.valid_after >= facts.head_time
        return AuthorizationReason.NOT_YET_VALID if is_early else AuthorizationReason.SIMULATION_FAILED
    return None
