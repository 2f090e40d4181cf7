"""The rules for a payment by transaction: whether it pays for this listing, how much, and whether it is deep enough; and the
problem of each refusal. Pure.

The outcomes are a closed set: a transaction that is not clearly accepted is refused or pending. Only the facts of the chain, the
listing's terms and the signers count; other statements of the caller do not. A transaction that may still pay for the call never
gets a code whose status is 402, because the caller would pay twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import assert_never

from tollway.chain.networks import ChainRules
from tollway.chain.port import ChainFacts
from tollway.chain.tokens import find_authorizers, parse_authorizations_used, parse_transfers
from tollway.errors import Code, Problem
from tollway.ids import ZERO_ADDRESS, Address, TxHash
from tollway.ledger.records import NewPayment, Payment
from tollway.limits import Limits
from tollway.money import UNITS_MAX, Asset
from tollway.payments.pricing import Payee

PAYEE_SLACK_S = 60
"""The clocks of chain and gateway may differ by this much."""

BEFORE_LISTING = "before_listing"
"""The `reason` of `payment_too_old` for a payment to the right wallet from before it was the listing's `payTo`."""


class TransactionReason(StrEnum):
    """Why a transaction does not pay for this listing. Public (`reason` of `payment_verification_failed`)."""

    TRANSACTION_FAILED = "transaction_failed"
    WRONG_CHAIN = "wrong_chain"
    WRONG_TOKEN = "wrong_token"  # noqa: S105 - a reason, not a secret
    WRONG_RECIPIENT = "wrong_recipient"
    INTERNAL_TRANSFER = "internal_transfer"
    AUTHORIZATION_TRANSFER = "authorization_transfer"
    NO_TRANSFER = "no_transfer"
    RETURNED = "returned"  # the payee sent it back in the same transaction
    BELOW_LEDGER_UNIT = "below_ledger_unit"
    AMOUNT_TOO_LARGE = "amount_too_large"
    REFUND = "refund"  # it has refunded calls of its recipient


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationInput:
    """The input of a verification, besides the facts: the rules of one network and the terms of one listing.

    `assets`: the accepted assets on that chain. `age_credit_s`: the part of the payment's age in which no gateway was ready.
    `is_admitted`: an operator accepts the transaction although it is late, or older than the payee. `held_before_s`: after a restore of
    the database, older transactions count only when they are admitted.
    """

    rules: ChainRules
    assets: tuple[Asset, ...]
    payees: tuple[Payee, ...]
    now_s: int
    age_credit_s: int = 0
    is_admitted: bool = False
    held_before_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The payments of the signer, one per asset and payee; never empty."""

    payments: tuple[NewPayment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """The transaction is not deep enough, or its block is no longer canonical. The caller retries."""

    confirmations: int
    needed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockInFuture:
    """The transaction pays, but the time of its block is further ahead than clocks may differ. The caller retries."""

    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotThePayer:
    """The transaction pays for the listing, but none of the signers paid it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TooOld:
    """The transaction was presented too long after its block."""

    age_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeListing:
    """The transaction moved value to the payee before the payee was the listing's `payTo`. Only an operator can admit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldByRestore:
    """The transaction was mined before the database was restored: the lost part of the ledger may contain its use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    reason: TransactionReason


VerificationResult = (
    Accepted | Pending | BlockInFuture | NotThePayer | TooOld | BeforeListing | HeldByRestore | Refused
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """The value that one wallet moved to one payee in one asset. `base_units`: less the value that the payee returned."""

    asset: Asset
    payer: Address
    payee: Payee
    base_units: int
    is_by_authorization: bool


def find_movements(facts: ChainFacts, given: VerificationInput) -> tuple[Movement, ...]:
    """The movements of the transaction in an accepted asset to a payee that counts, one per asset, payer and payee."""
    found: list[Movement] = []
    for asset in given.assets:
        found += (
            _find_native_movements(facts, asset, given.payees)
            if asset.token is None
            else _find_token_movements(facts, asset, given)
        )
    return tuple(found)


def is_before(facts: ChainFacts, payee: Payee) -> bool:
    """Whether the transaction is older than the payee by more than the slack."""
    return facts.block_time < payee.since_s - PAYEE_SLACK_S


def verify_transaction(
    facts: ChainFacts, given: VerificationInput, signers: Sequence[Address], *, limits: Limits
) -> VerificationResult:
    """The result for one mined transaction. The caller controls the wallets in `signers`.

    A transaction that is not deep enough is pending, whether it pays or not: it may be mined again in another block with another
    effect. Amounts become ledger units, rounded down once per sum.
    """
    if facts.chain_id != given.rules.chain_id:
        return Refused(reason=TransactionReason.WRONG_CHAIN)
    worth = _find_worth(facts, given, signers)
    pending = _find_pending(facts, given, worth if isinstance(worth, list) else [])
    if pending is not None:
        return pending
    if not isinstance(worth, list):
        return worth
    return _check_age(facts, given, tuple(payment for _, payment in worth), limits)


def _find_worth(
    facts: ChainFacts, given: VerificationInput, signers: Sequence[Address]
) -> "list[_Worth] | NotThePayer | BeforeListing | Refused":
    """The payments of the transaction to this listing at any depth and age; never an empty list. A refusal means that no value
    reached a payee: a payment that is too old for its payee is `BeforeListing`."""
    if not facts.succeeded:
        return Refused(reason=TransactionReason.TRANSACTION_FAILED)
    movements = find_movements(facts, given)
    if not movements:
        return Refused(reason=_explain_nothing_moved(facts, given))
    mine = [m for m in movements if m.payer in signers and m.payer != ZERO_ADDRESS]
    if not mine:
        return NotThePayer()
    unauthorized = [m for m in mine if not m.is_by_authorization]
    if not unauthorized:
        return Refused(reason=TransactionReason.AUTHORIZATION_TRANSFER)
    paid = [m for m in unauthorized if m.base_units > 0]
    if not paid:
        return Refused(reason=TransactionReason.RETURNED)
    valued = [m for m in paid if m.asset.floor_to_ledger(m.base_units) > 0]
    if not valued:
        return Refused(reason=TransactionReason.BELOW_LEDGER_UNIT)
    timely = [m for m in valued if given.is_admitted or not is_before(facts, m.payee)]
    if not timely:
        return BeforeListing()
    worth = [(m.asset, _new_payment(facts, m)) for m in timely]
    if any(payment.value_units > UNITS_MAX for _, payment in worth):
        return Refused(reason=TransactionReason.AMOUNT_TOO_LARGE)
    return worth


_Worth = tuple[Asset, NewPayment]


def _find_pending(facts: ChainFacts, given: VerificationInput, worth: "Sequence[_Worth]") -> Pending | None:
    """Checks the depth that the value requires; without a value, the smallest depth of this network."""
    rules = given.rules
    if worth:
        needed = max(rules.confirmations_for(asset, payment.value_units) for asset, payment in worth)
    else:
        needed = min((rules.confirmations_for(asset, 0) for asset in given.assets), default=1)
    if facts.canonical_hash != facts.block_hash:
        return Pending(confirmations=0, needed=needed)
    if facts.confirmations < needed:
        return Pending(confirmations=max(facts.confirmations, 0), needed=needed)
    return None


def _check_age(
    facts: ChainFacts, given: VerificationInput, payments: tuple[NewPayment, ...], limits: Limits
) -> VerificationResult:
    ahead_s = facts.block_time - given.now_s
    if ahead_s > PAYEE_SLACK_S:
        return BlockInFuture(seconds=ahead_s)
    if given.is_admitted:
        return Accepted(payments=payments)
    if given.held_before_s is not None and facts.block_time <= given.held_before_s:
        return HeldByRestore()
    age_s = given.now_s - facts.block_time - given.age_credit_s
    if age_s > limits.payment_age_s:
        return TooOld(age_s=age_s)
    return Accepted(payments=payments)


@dataclass(frozen=True, slots=True, kw_only=True)
class StillPays:
    """The transaction pays what `payment` says. `is_deep`: deep enough for that value."""

    payment: NewPayment
    is_deep: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCanonical:
    """The node named a block that is not on its own chain. The payment stays as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoLongerPays:
    """The transaction is mined and does not make this payment."""

    reason: str


def recheck_payment(
    facts: ChainFacts, payment: Payment, rules: ChainRules
) -> StillPays | NotCanonical | NoLongerPays:
    """Checks a payment of the ledger against the present facts of the chain.

    Signer, terms and age were checked when it was recorded, and do not change. A payment by authorisation needs an authorised
    transfer; every other payment needs a transfer without authorisation.
    """
    asset = next((asset for asset in rules.assets if asset.key == payment.asset), None)
    if facts.canonical_hash != facts.block_hash or asset is None:
        return NotCanonical()
    if not facts.succeeded:
        return NoLongerPays(reason=TransactionReason.TRANSACTION_FAILED)
    for movement in _find_recorded(facts, payment, asset, rules):
        if movement.payer == payment.payer and movement.is_by_authorization == payment.is_authorized:
            found = _new_payment(facts, movement)
            if 0 < found.value_units <= UNITS_MAX:
                needed = rules.confirmations_for(asset, found.value_units)
                return StillPays(payment=found, is_deep=facts.confirmations >= needed)
    return NoLongerPays(reason=TransactionReason.NO_TRANSFER)


def _find_recorded(
    facts: ChainFacts, payment: Payment, asset: Asset, rules: ChainRules
) -> tuple[Movement, ...]:
    """The movements to the payment's payee in its asset. An authorised transfer counts in full, as it did when it settled its
    call: value that the payee returned in the same transaction is not subtracted."""
    payee = Payee(address=payment.payee, since_s=0)
    if not payment.is_authorized or asset.token is None:
        return find_movements(
            facts, VerificationInput(rules=rules, assets=(asset,), payees=(payee,), now_s=0)
        )
    direction = (payment.payer, payment.payee)
    transfers = parse_transfers(facts.logs, token=asset.token)
    moved = Movement(
        asset=asset,
        payer=payment.payer,
        payee=payee,
        base_units=sum(t.base_units for t in transfers if (t.sender, t.recipient) == direction),
        is_by_authorization=any(
            payer == payment.payer for payer, _ in parse_authorizations_used(facts.logs, token=asset.token)
        ),
    )
    return (moved,)


def _find_token_movements(facts: ChainFacts, asset: Asset, given: VerificationInput) -> list[Movement]:
    """Value that the payee returned to the payer is subtracted, so a transfer of a wallet to itself counts as 0."""
    assert asset.token is not None
    transfers = [t for t in parse_transfers(facts.logs, token=asset.token) if t.base_units > 0]
    authorized = find_authorizers(facts.logs, token=asset.token)
    moved: dict[tuple[Address, Address], int] = {}
    for transfer in transfers:
        direction = (transfer.sender, transfer.recipient)
        moved[direction] = moved.get(direction, 0) + transfer.base_units
    payees = {payee.address: payee for payee in given.payees}
    return [
        Movement(
            asset=asset,
            payer=payer,
            payee=payees[recipient],
            base_units=paid - moved.get((recipient, payer), 0),
            is_by_authorization=payer in authorized,
        )
        for (payer, recipient), paid in moved.items()
        if recipient in payees
    ]


def _find_native_movements(facts: ChainFacts, asset: Asset, payees: tuple[Payee, ...]) -> list[Movement]:
    """Only the value of the transaction itself counts: a transfer inside a contract leaves no log that proves it."""
    return [
        Movement(
            asset=asset,
            payer=facts.sender,
            payee=payee,
            base_units=0 if facts.sender == payee.address else facts.value,
            is_by_authorization=False,
        )
        for payee in payees
        if facts.recipient == payee.address and facts.value > 0
    ]


def _new_payment(facts: ChainFacts, movement: Movement) -> NewPayment:
    return NewPayment(
        chain_id=facts.chain_id,
        tx_hash=facts.tx_hash,
        asset=movement.asset.key,
        payer=movement.payer,
        payee=movement.payee.address,
        value_units=movement.asset.floor_to_ledger(movement.base_units),
        block_number=facts.block_number,
        block_hash=facts.block_hash,
        block_time=facts.block_time,
        is_final=facts.finalized_number >= facts.block_number,
    )


def _explain_nothing_moved(facts: ChainFacts, given: VerificationInput) -> TransactionReason:
    """The most specific reason for a transaction that moved nothing to a payee in an accepted asset."""
    payees = {payee.address for payee in given.payees}
    tokens = {asset.token for asset in given.assets if asset.token is not None}
    accepted = [t for token in tokens for t in parse_transfers(facts.logs, token=token)]
    if any(t.base_units > 0 for t in accepted):
        return TransactionReason.WRONG_RECIPIENT
    foreign = (log for log in facts.logs if log.address not in tokens)
    others = [t for log in foreign for t in parse_transfers((log,), token=log.address)]
    if any(t.recipient in payees for t in others) or (facts.recipient in payees and facts.value > 0):
        return TransactionReason.WRONG_TOKEN
    if any(asset.token is None for asset in given.assets) and facts.value > 0:
        return TransactionReason.WRONG_RECIPIENT
    if others:
        return TransactionReason.WRONG_TOKEN
    return TransactionReason.NO_TRANSFER


PENDING_RETRY_S = 2
FUTURE_RETRY_S_MAX = 60


def explain_result(
    result: Pending | BlockInFuture | NotThePayer | TooOld | BeforeListing | HeldByRestore | Refused,
) -> Problem:
    match result:
        case Pending():
            return explain_pending(
                f"The payment has {result.confirmations} of {result.needed} confirmations.",
                reason="confirmations",
                members={"confirmations": result.confirmations, "confirmationsNeeded": result.needed},
            )
        case BlockInFuture():
            return explain_pending(
                f"The payment's block time is {result.seconds} seconds ahead of this gateway's clock.",
                reason="block_in_future",
                retry_after_s=min(result.seconds, FUTURE_RETRY_S_MAX),
            )
        case NotThePayer():
            return Problem(
                code=Code.PAYER_MISMATCH,
                detail="The wallet that paid this transaction did not make X-Signature; sign with that wallet.",
                payment_state="none",
            )
        case TooOld():
            return Problem(
                code=Code.PAYMENT_TOO_OLD,
                detail=f"The payment was mined {result.age_s} seconds ago and is too old for its first use. "
                "The operator or the provider can admit it.",
                payment_state="none",
            )
        case BeforeListing():
            return Problem(
                code=Code.PAYMENT_TOO_OLD,
                detail="The payment was mined before its payee became the payTo of this listing. Do not pay again: the operator or the "
                "provider can admit it.",
                reason=BEFORE_LISTING,
                payment_state="none",
            )
        case HeldByRestore():
            return Problem(
                code=Code.PAYMENT_HELD,
                detail="The payment was mined before this gateway's ledger was restored. Ask the operator to admit it.",
                payment_state="held",
            )
        case Refused():
            return refuse_transaction(result.reason)
        case _:
            assert_never(result)


def refuse_transaction(reason: TransactionReason) -> Problem:
    return Problem(
        code=Code.PAYMENT_VERIFICATION_FAILED,
        detail=_DETAILS[reason],
        reason=reason.value,
        payment_state="none",
    )


def other_network(network: str) -> Problem:
    """The ledger has the payment on another network than the request names. The caller must not pay again."""
    return Problem(
        code=Code.INVALID_REQUEST,
        detail=f"X-Payment-Network is wrong: this payment is on {network}. Send that network, or omit the header.",
        reason=TransactionReason.WRONG_CHAIN.value,
        payment_state="released",
    )


def not_mined(tx_hash: TxHash) -> Problem:
    return explain_pending(
        f"Transaction {tx_hash} is not mined yet on any network of this listing.", reason="not_mined"
    )


def explain_pending(
    detail: str,
    *,
    reason: str,
    retry_after_s: int = PENDING_RETRY_S,
    members: Mapping[str, object] = MappingProxyType({}),
) -> Problem:
    return Problem(
        code=Code.PAYMENT_PENDING,
        detail=detail,
        reason=reason,
        retry_after_s=retry_after_s,
        payment_state="none",
        members=members,
    )


_DETAILS = {
    TransactionReason.TRANSACTION_FAILED: "The transaction failed on the chain and moved nothing. Send a new one.",
    TransactionReason.WRONG_CHAIN: "This listing is not sold on that network. Pay one of the options in the terms.",
    TransactionReason.WRONG_TOKEN: "The transaction moved another token than this listing accepts. Pay one of the options in the terms.",
    TransactionReason.WRONG_RECIPIENT: "The transaction paid another wallet than this listing's payTo. Pay the payTo of the terms.",
    TransactionReason.INTERNAL_TRANSFER: "Native currency counts only when the transaction itself pays payTo, "
    "not when a contract forwards it.",
    TransactionReason.AUTHORIZATION_TRANSFER: "The transfer was made by a signed authorisation (EIP-3009); it cannot "
    "be used as X-Payment-Tx.",
    TransactionReason.NO_TRANSFER: "The transaction transferred nothing that this listing accepts. Pay one of the options in the terms.",
    TransactionReason.RETURNED: "The payee returned the value in the same transaction.",
    TransactionReason.BELOW_LEDGER_UNIT: "The amount is below the smallest unit of the ledger.",
    TransactionReason.AMOUNT_TOO_LARGE: "The amount is larger than one payment in the ledger can be.",
    TransactionReason.REFUND: "The transfer is the refund of earlier calls; it pays for nothing. Send a new one.",
}
