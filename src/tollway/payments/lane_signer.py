"""The next transaction of a gas key: signed with the lane's next nonce and handed to the books.

Nothing is broadcast here, and no call is judged: `store` says whether the call may still have one.
"""

from collections.abc import Awaitable, Callable

from tollway.ledger.authorization import SettlementAttempt
from tollway.ledger.book import Fenced
from tollway.ledger.gas import GasBook, LaneTaken
from tollway.payments.gas_lane import GasLane
from tollway.payments.gas_tank import GasTank
from tollway.payments.settlement_signing import Carriage, offer_fee, sign_attempt

LANE_TRIES = 8
"""How often one call asks for a nonce when others were faster, on this gateway and elsewhere."""


async def sign_next(
    carriage: Carriage,
    lane: GasLane,
    *,
    store: Callable[[SettlementAttempt], Awaitable[bool | LaneTaken]],
    gas: GasBook,
    tank: GasTank,
    now_ms: Callable[[], int],
) -> SettlementAttempt | Fenced | None:
    """The attempt, signed and stored. Fenced: `store` said False, the call is not to have one. None: what gas costs is not
    known, or others were always quicker on this lane.

    Between taking a nonce and handing it to the books nothing is awaited, so many that come at once get theirs in order
    and share one commit.
    """
    is_noted = False
    for _ in range(LANE_TRIES):
        if not lane.is_known:
            lane.start_at(await gas.next_nonce(lane.chain_id, lane.key.address))
        fees = tank.quote(lane.chain_id)
        if fees is None:
            return None
        offer = offer_fee(fees, price_max_wei=tank.price_max_wei(lane.chain_id))
        taken = lane.take()
        try:
            attempt = sign_attempt(carriage, lane.key, nonce=taken.nonce, offer=offer, now_ms=now_ms())
            if not is_noted:  # before it is stored: of many that come at once each counts for those after it
                tank.note_spent(
                    attempt.chain_id, attempt.listing_id, attempt.fee_max_wei, code_hash=carriage.code_hash
                )
                is_noted = True
            stored = await store(attempt)
        except BaseException:
            lane.forget(taken)
            raise
        if isinstance(stored, LaneTaken):
            lane.correct(taken, next_nonce=stored.next_nonce)
        elif stored:
            return attempt
        else:
            lane.correct(taken, next_nonce=taken.nonce)
            return Fenced()
    return None
