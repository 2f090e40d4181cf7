"""The verdict on an authorisation: would its transfer pay for this call, now and when the answer is there? Pure.

A closed set of outcomes, and the default refuses. Nothing the caller says about itself counts here: only the signed
fields, our own requirement, and what the chain says.
"""

from dataclasses import dataclass

from tollway.chain.reader import AuthorizationFacts
from tollway.identifiers import Address
from tollway.ledger.authorization import Authorization, Cover
from tollway.money import UNITS_MAX
from tollway.payments.authorization_reasons import AuthorizationReason
from tollway.payments.eip3009 import is_wrapped
from tollway.payments.requirement import PaymentRequirement

SETTLE_WITHIN_S = 30
"""An authorisation must outlive the upstream's time by this much: then its transfer can still be mined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRefused:
    reason: AuthorizationReason


def is_late(valid_before: int, *, now_s: float, timeout_s: int) -> bool:
    """Whether it could end before its transfer is mined, were an upstream asked now to take all its time."""
    return valid_before < now_s + timeout_s + SETTLE_WITHIN_S


def check_times(
    authorization: Authorization, *, now_s: float, timeout_s: int, validity_s_max: int
) -> AuthorizationRefused | None:
    """By our own clock, before any chain is asked; the chain's clock is looked at in `check_authorization`.

    What is undecided stays so until `validBefore`, so nobody may choose a time that never comes.
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
) -> Cover | AuthorizationRefused:
    """The balance that covers it, or why it does not count. `signer`: whose key made the signature, None where no key
    did (`eip3009.recover_signer`).

    A wallet with code answers for itself: the token asks it within the simulation, so its key counts for nothing here
    (`consents` asks it once more, within limits).
    A used nonce comes before the clock, because it means that money has moved: nobody is asked to pay again.
    """
    reason = _find_fault(authorization, requirement, facts, signer, timeout_s)
    if reason is not None:
        return AuthorizationRefused(reason=reason)
    units = min(requirement.asset.floor_to_ledger(facts.balance), UNITS_MAX)
    return Cover(balance_units=units, block_number=facts.head_number)


def find_failure_reason(authorization: Authorization, facts: AuthorizationFacts) -> AuthorizationReason:
    """Why a transfer that would have paid when it was claimed is refused in simulation now."""
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
    signer: Address | None,
    timeout_s: int,
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
    if facts.code_size == 0 and signer != authorization.payer:
        wrapped = is_wrapped(authorization.signature)
        return AuthorizationReason.UNDEPLOYED_WALLET if wrapped else AuthorizationReason.SIGNATURE
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
