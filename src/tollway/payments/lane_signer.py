"""The next transaction of a gas key: signed with the sequence's next nonce and handed to the ledger.

Nothing is broadcast here, and no call is judged: `store` says whether the call may still have one.
"""

from collections.abc import Awaitable, Callable

from tollway.ledger.authorization import SettlementAttempt
from tollway.ledger.book import Fenced
from tollway.ledger.gas import GasLedger, NonceUnavailable
from tollway.payments.gas_lane import NonceSequence
from tollway.payments.gas_tank import GasBudget
from tollway.payments.settlement_signing import TransferCall, choose_fees, sign_attempt

NONCE_TRIES_MAX = 8
"""How often one call asks for a nonce when others were faster, on this gateway and elsewhere."""


async def sign_next(
    transfer_call: TransferCall,
    sequence: NonceSequence,
    *,
    store: Callable[[SettlementAttempt], Awaitable[bool | NonceUnavailable]],
    gas: GasLedger,
    gas_budget: GasBudget,
    now_ms: Callable[[], int],
) -> SettlementAttempt | Fenced | None:
    """The attempt, signed and stored. Fenced: `store` said False, the call is not to have one. None: what gas costs is not
    known, or others were always quicker on this sequence.

    Between taking a nonce and handing it to the ledger nothing is awaited, so many that come at once get theirs in order
    and share one commit.
    """
    is_noted = False
    for _ in range(NONCE_TRIES_MAX):
        if not sequence.is_known:
            sequence.start_at(await gas.next_nonce(sequence.chain_id, sequence.key.address))
        fees = gas_budget.latest_fees(sequence.chain_id)
        if fees is None:
            return None
        tx_fees = choose_fees(fees, price_max_wei=gas_budget.price_max_wei(sequence.chain_id))
        taken = sequence.issue_nonce()
        try:
            attempt = sign_attempt(
                transfer_call, sequence.key, nonce=taken.nonce, tx_fees=tx_fees, now_ms=now_ms()
            )
            if not is_noted:  # before it is stored: of many that come at once each counts for those after it
                gas_budget.add_spent(
                    attempt.chain_id,
                    attempt.listing_id,
                    attempt.fee_max_wei,
                    code_hash=transfer_call.code_hash,
                )
                is_noted = True
            stored = await store(attempt)
        except BaseException:
            sequence.forget(taken)
            raise
        if isinstance(stored, NonceUnavailable):
            sequence.correct(taken, next_nonce=stored.next_nonce)
        elif stored:
            return attempt
        else:
            sequence.correct(taken, next_nonce=taken.nonce)
            return Fenced()
    return None
