"""Builds, signs and stores the transactions that carry authorisations to their token, and replaces those that are not mined.

Every byte is built from the signed fields, and the `value` is 0. The only bytes that a payer composed are the call that deploys its
wallet, to a factory of the operator's list (`payments.deployment`). A transaction is stored in the ledger with its nonce before it is
broadcast. A replacement keeps the nonce, so at most one of the two can be mined.

All transactions behind an unmined nonce wait for it. So a transaction that no node has is broadcast to all nodes again, and the
first unmined one is replaced at a higher price, up to the operator's maximum. A missing nonce below waiting transactions is filled.
A sequence ahead of the chain's nonce without a waiting transaction goes back to it. One gateway does this for all; two at once do
no harm.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import structlog

from tollway.chain.channel_contract import SETTLEMENT_CONTRACT, encode_deposit, read_deposit_valid_before
from tollway.chain.multicall import MULTICALL3, parse_calls
from tollway.chain.port import ChainFacts, Fees, NotMined, SendFault, SendRefused, SettlementChain
from tollway.chain.signer import GasKey, read_transaction
from tollway.chain.tokens import encode_transfer_with_authorization
from tollway.errors import ChainUnavailable, StorageUnavailable
from tollway.ids import Address, CallId, ChainId, ListingId, TxHash
from tollway.ledger.ledger import Fenced, GasLedger, NonceUnavailable
from tollway.ledger.records import Authorization, SettlementAttempt
from tollway.limits import Limits
from tollway.observability.background import describe_failure, run_all
from tollway.observability.call_trace import CallTrace
from tollway.payments.deployment import Deployment, choose_signature, encode_deploying_transfer
from tollway.payments.gas import GasBudget
from tollway.payments.nonces import NonceSequence

_log = structlog.get_logger(__name__)

GAS_MARGIN_NUMERATOR, GAS_MARGIN_DENOMINATOR = 5, 4
GAS_MARGIN = 15_000
"""Gas beyond the estimate: before the block is mined the payee's balance can become 0, and creating a storage slot costs more than
changing one."""

BUMP_NUMERATOR, BUMP_DENOMINATOR = 9, 8
"""Nodes accept a replacement whose price is a tenth higher; this is an eighth."""

NEVER_S = 2**63
"""The claim of channels does not expire."""
_VALID_BEFORE = slice(4 + 4 * 32, 4 + 5 * 32)
"""The position of `validBefore` in the calldata of `transferWithAuthorization`, in both forms of the signature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFees:
    """The maximum price per gas, and the block builder's part of it."""

    max_fee_wei: int
    tip_wei: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SentCall:
    """The transaction of a settlement or of a claim of channels, and its gas limit. `call_id`: of the claim, in place of a call. `listing_id`: empty for a claim, because
    its channels are of many listings; its gas counts for the network. `code_hash`: of the payer's code, or what stands for it (`Deployment.code_hash`)."""

    chain_id: ChainId
    call_id: CallId
    listing_id: ListingId
    gas: int
    to: Address
    calldata: bytes
    code_hash: bytes | None = None


def encode_settlement(authorization: Authorization, deployment: Deployment | None) -> tuple[Address, bytes]:
    """The transaction that settles the authorisation: its recipient and its calldata. Without a deployment, the recipient is the token; that of a deposit is
    the contract of its channel."""
    deposit = authorization.deposit
    if deposit is not None:
        return SETTLEMENT_CONTRACT, encode_deposit(
            deposit.config,
            base_units=authorization.base_units,
            valid_after=authorization.valid_after,
            valid_before=authorization.valid_before,
            salt=deposit.salt,
            signature=authorization.signature,
        )
    transfer = encode_transfer_call(authorization)
    if deployment is None:
        return authorization.token, transfer
    return encode_deploying_transfer(deployment, token=authorization.token, calldata=transfer)


def encode_transfer_call(authorization: Authorization) -> bytes:
    return encode_transfer_with_authorization(
        payer=authorization.payer,
        payee=authorization.payee,
        base_units=authorization.base_units,
        valid_after=authorization.valid_after,
        valid_before=authorization.valid_before,
        nonce=authorization.nonce,
        signature=choose_signature(authorization.signature),
    )


def limit_gas(estimate: int, *, gas_max: int) -> int:
    """A transaction's gas limit: the estimate and a margin, at most `gas_max`."""
    return min(estimate * GAS_MARGIN_NUMERATOR // GAS_MARGIN_DENOMINATOR + GAS_MARGIN, gas_max)


def choose_fees(fees: Fees, *, price_max_wei: int) -> TransactionFees:
    """Twice the base fee, which covers the rise of six full blocks in a row; never above the operator's maximum."""
    max_fee_wei = min(2 * fees.base_fee_wei + fees.tip_wei, price_max_wei)
    return TransactionFees(max_fee_wei=max_fee_wei, tip_wei=min(fees.tip_wei, max_fee_wei))


def bump_fees(earlier: TransactionFees, fees: Fees, *, price_max_wei: int) -> TransactionFees | None:
    """The fees of a replacement; None when they would be above the maximum."""
    fresh = choose_fees(fees, price_max_wei=price_max_wei)
    tip_wei = max(fresh.tip_wei, _raise_price(earlier.tip_wei))
    max_fee_wei = max(fresh.max_fee_wei, _raise_price(earlier.max_fee_wei), tip_wei)
    return None if max_fee_wei > price_max_wei else TransactionFees(max_fee_wei=max_fee_wei, tip_wei=tip_wei)


def _raise_price(wei: int) -> int:
    return -(-wei * BUMP_NUMERATOR // BUMP_DENOMINATOR) + 1


def sign_attempt(
    sent: SentCall, key: GasKey, *, nonce: int, tx_fees: TransactionFees, now_ms: int
) -> SettlementAttempt:
    """Signs a transaction without sending it: the ledger stores it first."""
    signed = key.sign(
        chain_id=sent.chain_id,
        nonce=nonce,
        to=sent.to,
        calldata=sent.calldata,
        gas=sent.gas,
        max_fee_wei=tx_fees.max_fee_wei,
        tip_wei=tx_fees.tip_wei,
    )
    return SettlementAttempt(
        chain_id=sent.chain_id,
        tx_hash=signed.tx_hash,
        call_id=sent.call_id,
        listing_id=sent.listing_id,
        sender=key.address,
        nonce=nonce,
        raw=signed.raw,
        fee_max_wei=sent.gas * tx_fees.max_fee_wei,
        created_ms=now_ms,
        code_hash=sent.code_hash,
    )


def sign_replacement(
    attempt: SettlementAttempt, key: GasKey, *, tx_fees: TransactionFees, now_ms: int
) -> SettlementAttempt:
    before = read_transaction(attempt.raw)
    return _sign_instead(
        attempt, key, to=before.to, calldata=before.calldata, gas=before.gas, tx_fees=tx_fees, now_ms=now_ms
    )


def sign_filler(
    attempt: SettlementAttempt, key: GasKey, *, tx_fees: TransactionFees, now_ms: int
) -> SettlementAttempt:
    """The key pays itself 0. The gas limit stays that of `attempt`: on some networks the simplest transaction needs more gas."""
    gas = read_transaction(attempt.raw).gas
    return _sign_instead(attempt, key, to=key.address, calldata=b"", gas=gas, tx_fees=tx_fees, now_ms=now_ms)


def read_fees(attempt: SettlementAttempt) -> TransactionFees:
    tx_fields = read_transaction(attempt.raw)
    return TransactionFees(max_fee_wei=tx_fields.max_fee_wei, tip_wei=tx_fields.tip_wei)


def read_valid_before(attempt: SettlementAttempt) -> int:
    """`validBefore` of the authorisation in the transaction; 0 for a filler, `NEVER_S` for a claim of channels."""
    tx_fields = read_transaction(attempt.raw)
    calldata = tx_fields.calldata
    if calldata and tx_fields.to == MULTICALL3:
        calldata = parse_calls(calldata)[-1].calldata  # the transfer follows the deployment
    if calldata and tx_fields.to == SETTLEMENT_CONTRACT:
        valid_before = read_deposit_valid_before(calldata)
        return NEVER_S if valid_before is None else valid_before
    return int.from_bytes(calldata[_VALID_BEFORE], "big")


def is_filler(attempt: SettlementAttempt) -> bool:
    """Whether the transaction carries no authorisation and only uses its nonce."""
    return not read_transaction(attempt.raw).calldata


def _sign_instead(
    attempt: SettlementAttempt,
    key: GasKey,
    *,
    to: Address,
    calldata: bytes,
    gas: int,
    tx_fees: TransactionFees,
    now_ms: int,
) -> SettlementAttempt:
    signed = key.sign(
        chain_id=attempt.chain_id,
        nonce=attempt.nonce,
        to=to,
        calldata=calldata,
        gas=gas,
        max_fee_wei=tx_fees.max_fee_wei,
        tip_wei=tx_fees.tip_wei,
    )
    return replace(
        attempt,
        tx_hash=signed.tx_hash,
        raw=signed.raw,
        fee_max_wei=gas * tx_fees.max_fee_wei,
        created_ms=now_ms,
    )


NONCE_TRIES_MAX = 32
"""How many nonces one call tries when other calls, also of other gateways, take them first. With twenty calls at once at two gateways,
up to eight tries in a row were lost in many runs."""


async def sign_next(
    sent: SentCall,
    sequence: NonceSequence,
    *,
    store: Callable[[SettlementAttempt], Awaitable[bool | NonceUnavailable]],
    gas_ledger: GasLedger,
    gas_budget: GasBudget,
    now_ms: Callable[[], int],
) -> SettlementAttempt | Fenced | None:
    """Signs and stores an attempt with the next nonce. Fenced: `store` returned False, because this gateway no longer owns the
    call. None: the gas price is unknown, or other calls took every nonce first.

    Nothing is awaited between issuing a nonce and passing it to the ledger, so many calls at once get their nonces in order and
    share one commit.
    """
    is_noted = False
    for _ in range(NONCE_TRIES_MAX):
        if not sequence.is_known:
            sequence.start_at(await gas_ledger.next_nonce(sequence.chain_id, sequence.key.address))
        fees = gas_budget.latest_fees(sequence.chain_id)
        if fees is None:
            return None
        tx_fees = choose_fees(fees, price_max_wei=gas_budget.price_max_wei(sequence.chain_id))
        taken = sequence.issue_nonce()
        try:
            attempt = sign_attempt(sent, sequence.key, nonce=taken.nonce, tx_fees=tx_fees, now_ms=now_ms())
            if not is_noted:  # before storing, so that the budget of the next call includes this one
                gas_budget.add_spent(
                    attempt.chain_id,
                    attempt.listing_id,
                    attempt.fee_max_wei,
                    code_hash=sent.code_hash,
                )
                is_noted = True
            stored = await store(attempt)
        except BaseException:
            sequence.forget(taken)
            raise
        # There are three cases. Another transaction has the nonce: the next try takes the nonce that the ledger names. The attempt is
        # stored. The call is not of this gateway any more: the ledger took no nonce, so the sequence goes back to it.
        if isinstance(stored, NonceUnavailable):
            sequence.correct(taken, next_nonce=stored.next_nonce)
        elif stored:
            return attempt
        else:
            sequence.correct(taken, next_nonce=taken.nonce)
            return Fenced()
    return None


async def resend(chains: SettlementChain, attempt: SettlementAttempt) -> SendRefused | None:
    """Sends a stored transaction to all nodes."""
    refused = await chains.resend_transaction(attempt.chain_id, attempt.raw)
    if refused is not None:
        _log.warning(
            "settlement_send_refused",
            call_id=attempt.call_id,
            transaction=str(attempt.tx_hash),
            fault=refused.fault.value,
        )
    return refused


OPEN_MAX = 64
FILL_AFTER_MS = 5_000
"""How long a transaction may take to reach the polled node."""
FILLS_MAX = 16
GAP_MAX = 1_000
"""A wider gap is not filled: each nonce costs gas, and only one node reports the gap."""


class TransactionReplacer:
    """Used from one event loop: settlement recovery calls `run_once`, waiting calls call `resend_before`."""

    def __init__(
        self,
        gas_ledger: GasLedger,
        chains: SettlementChain,
        gas_budget: GasBudget,
        *,
        limits: Limits,
        now_ms: Callable[[], int],
    ) -> None:
        self._gas_ledger = gas_ledger
        self._chains = chains
        self._gas_budget = gas_budget
        self._limits = limits
        self._now_ms = now_ms
        self._capped: dict[NonceSequence, TxHash] = {}  # already logged: the next fees are above the maximum
        self._resending: set[NonceSequence] = set()
        self.traced: dict[CallId, CallTrace] = {}
        """The sampled calls that wait for their transaction here."""

    async def run_once(self) -> None:
        """Checks every sequence, also those of keys without gas."""
        sequences = [
            sequence
            for chain_id in self._gas_budget.chain_ids
            for sequence in self._gas_budget.sequences(chain_id)
        ]
        await run_all([partial(self._check_sequence, sequence) for sequence in sequences])

    async def resend_before(self, attempt: SettlementAttempt) -> None:
        """Broadcasts the transactions before an attempt again that no node has: the gateway that stored them may be paused. One run
        per sequence at a time. An unavailable chain or database ends the run without an exception."""
        sequences = self._gas_budget.sequences(attempt.chain_id)
        sequence = next((sequence for sequence in sequences if sequence.key.address == attempt.sender), None)
        if sequence is None or sequence in self._resending:
            return
        self._resending.add(sequence)
        try:
            attempts = await self._gas_ledger.open_attempts(
                sequence.chain_id, sequence.key.address, limit=OPEN_MAX
            )
            newest = {one.nonce: one for one in attempts if one.nonce < attempt.nonce}
            account = await self._chains.fetch_account(sequence.chain_id, sequence.key.address)
            waiting = [one for nonce, one in newest.items() if nonce >= account.mined_nonce]
            pending, mined = await self._find_pending_and_mined(sequence, waiting)
            for one in waiting:
                if one.nonce not in pending | mined:
                    await resend(self._chains, one)
        except (ChainUnavailable, StorageUnavailable) as exc:
            address = str(sequence.key.address)
            _log.warning("lane_unseen", chain_id=sequence.chain_id, address=address, detail=str(exc))
        finally:
            self._resending.discard(sequence)

    async def _check_sequence(self, sequence: NonceSequence) -> None:
        try:
            await self._replace_unmined(sequence)
        except ChainUnavailable as exc:
            _log.warning(
                "lane_unseen", chain_id=sequence.chain_id, address=str(sequence.key.address), detail=str(exc)
            )
        except StorageUnavailable:
            raise  # logged once for all sequences
        except Exception as exc:  # noqa: BLE001 - a task root: one bad sequence must not stop the others
            where = {"chain_id": sequence.chain_id, "address": str(sequence.key.address)}
            _log.error("lane_failed", **where, **describe_failure(exc))

    async def _replace_unmined(self, sequence: NonceSequence) -> None:
        attempts = await self._gas_ledger.open_attempts(
            sequence.chain_id, sequence.key.address, limit=OPEN_MAX
        )
        newest = {attempt.nonce: attempt for attempt in attempts}
        is_stuck = sequence.progress.is_stuck
        if all(self._is_younger(attempt, FILL_AFTER_MS) for attempt in newest.values()) and not is_stuck:
            return
        account = await self._chains.fetch_account(sequence.chain_id, sequence.key.address)
        waiting = [attempt for attempt in attempts if attempt.nonce >= account.mined_nonce]
        if is_stuck:
            await self._repair_gap(sequence, account.mined_nonce, waiting)
        pending, mined = await self._find_pending_and_mined(sequence, waiting)
        for nonce, attempt in newest.items():
            if nonce < account.mined_nonce or nonce in mined or self._is_younger(attempt, FILL_AFTER_MS):
                continue
            # The first unmined transaction holds up all others. In a pool, it is replaced at a higher price; in none, it is sent again, and
            # replaced when it can never be mined unchanged. A later one waits for the first one, so it is at most sent again.
            is_first = nonce == account.mined_nonce
            is_to_replace = nonce in pending
            if not is_to_replace or (is_first and is_stuck):
                refused = await resend(self._chains, attempt)
                is_to_replace |= refused is not None and self._is_unminable(attempt, refused.fault)
            if is_to_replace and is_first:
                await self._replace(sequence, attempt)

    async def _repair_gap(
        self, sequence: NonceSequence, mined_nonce: int, waiting: Sequence[SettlementAttempt]
    ) -> None:
        """Fills nonces that were never signed, when waiting transactions need them; without waiting transactions, moves the sequence back."""
        fields = {"chain_id": sequence.chain_id, "address": str(sequence.key.address)}
        if not waiting:
            now_at = await self._gas_ledger.lower_nonce(sequence.chain_id, sequence.key.address, mined_nonce)
            if now_at == mined_nonce:
                _log.warning("lane_went_back", nonce=mined_nonce, **fields)
            return
        taken = {attempt.nonce for attempt in waiting}
        if min(taken) - mined_nonce > GAP_MAX:
            _log.error("lane_gap_too_wide", nonce=mined_nonce, waiting=min(taken), **fields)
            return
        missing = (nonce for nonce in range(mined_nonce, max(taken)) if nonce not in taken)
        for nonce in islice(missing, FILLS_MAX):
            await self._fill(sequence, nonce, waiting[0])

    async def _fill(self, sequence: NonceSequence, nonce: int, above: SettlementAttempt) -> None:
        """Fills a nonce with a filler, on behalf of the call of a waiting attempt."""
        fees = self._gas_budget.latest_fees(sequence.chain_id)
        if fees is None:
            return
        tx_fees = choose_fees(fees, price_max_wei=self._gas_budget.price_max_wei(sequence.chain_id))
        filler = sign_filler(
            replace(above, nonce=nonce), sequence.key, tx_fees=tx_fees, now_ms=self._now_ms()
        )
        if await self._gas_ledger.add_attempt(filler, is_filling=True) is True:
            _log.warning(
                "lane_nonce_filled",
                chain_id=sequence.chain_id,
                address=str(sequence.key.address),
                nonce=nonce,
            )
            await resend(self._chains, filler)

    def _is_unminable(self, attempt: SettlementAttempt, fault: SendFault) -> bool:
        """Its price is too low, or a node refuses it for another reason and its authorisation has expired."""
        return fault is SendFault.UNDERPRICED or (fault is SendFault.OTHER and self._is_expired(attempt))

    def _is_younger(self, attempt: SettlementAttempt, age_ms: int) -> bool:
        """False for a time in the future: this clock was set back, or another gateway's clock is ahead."""
        return 0 <= self._now_ms() - attempt.created_ms < age_ms

    def _is_expired(self, attempt: SettlementAttempt) -> bool:
        return read_valid_before(attempt) * 1000 <= self._now_ms()

    async def _find_pending_and_mined(
        self, sequence: NonceSequence, attempts: Sequence[SettlementAttempt]
    ) -> tuple[frozenset[int], frozenset[int]]:
        """The nonces with a transaction in a pool, and those with one in a block."""
        if not attempts:
            return frozenset(), frozenset()
        receipts = await self._chains.fetch_receipts(
            sequence.chain_id, [attempt.tx_hash for attempt in attempts]
        )
        found = [(attempt.nonce, receipts.get(attempt.tx_hash)) for attempt in attempts]
        return (
            frozenset(n for n, receipt in found if isinstance(receipt, NotMined) and receipt.is_pending),
            frozenset(n for n, receipt in found if isinstance(receipt, ChainFacts)),
        )

    async def _replace(self, sequence: NonceSequence, attempt: SettlementAttempt) -> None:
        """The same transaction at a higher price, up to the maximum; a filler where the call has ended and its authorisation has expired."""
        last = await self._find_last(attempt)
        if self._is_younger(last, round(self._limits.fee_bump_after_s * 1000)):
            return
        tx_fees = self._raise_fees(sequence, last)
        if tx_fees is None:
            return
        replacement = sign_replacement(last, sequence.key, tx_fees=tx_fees, now_ms=self._now_ms())
        is_stored = await self._gas_ledger.add_attempt(replacement)
        if is_stored is False:
            if self._is_expired(last):
                replacement = sign_filler(last, sequence.key, tx_fees=tx_fees, now_ms=self._now_ms())
            is_stored = await self._gas_ledger.add_attempt(replacement, is_filling=True)
        if is_stored is True:
            if (trace := self.traced.get(last.call_id)) is not None and trace.step is not None:
                trace.step.count("tollway.settle.fee_bumps")
            _log.info("settlement_fee_bumped", call_id=last.call_id, transaction=str(replacement.tx_hash))
            await resend(self._chains, replacement)

    async def _find_last(self, attempt: SettlementAttempt) -> SettlementAttempt:
        """The newest attempt of that nonce: the list of open attempts is limited and may not contain it."""
        attempts = await self._gas_ledger.attempts_of(attempt.call_id)
        place = (attempt.chain_id, attempt.sender, attempt.nonce)
        return next(one for one in reversed(attempts) if (one.chain_id, one.sender, one.nonce) == place)

    def _raise_fees(self, sequence: NonceSequence, last: SettlementAttempt) -> TransactionFees | None:
        fees = self._gas_budget.latest_fees(sequence.chain_id)
        if fees is None:
            return None
        price_max_wei = self._gas_budget.price_max_wei(sequence.chain_id)
        tx_fees = bump_fees(read_fees(last), fees, price_max_wei=price_max_wei)
        if tx_fees is None and self._capped.get(sequence) != last.tx_hash:
            self._capped[sequence] = last.tx_hash
            _log.warning(
                "lane_waits_at_ceiling",
                chain_id=sequence.chain_id,
                address=str(sequence.key.address),
                nonce=last.nonce,
                transaction=str(last.tx_hash),
            )
        return tx_fees
