"""The nonces of bound signatures: each counts once in a transaction, for a claim or for a call that runs again.

The nonce of a claim stands in the row of its call, under a unique index. A call may run again with another signature: the nonce of that one
stands in `repeat_nonce`. Either counts while its call is not `released`.

No index covers both places. A reopen looks for claims with the payment of its call locked, and every claim on that payment waits for that
lock; a decided claim looks in both places under the same lock. A plain claim is one statement, which may look before it waits. It misses
no reopen of the same request: its snapshot has either the call that may run again, which makes the claim not plain, or the nonce.
"""

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, literal_column, or_, select, text, union_all

from tollway.errors import StorageUnavailable
from tollway.ids import CallId, ChainId, TxHash
from tollway.ledger.claims import NonceKey, nonce_key
from tollway.ledger.ledger import Claim, NonceUsed
from tollway.ledger.records import CallState
from tollway.storage.engine.statements import Prepared, Within, insert_for
from tollway.storage.ledger.ledger_tables import COUNTING_NONCE, call_table, repeat_nonce_table


def find_nonces(connection: Connection, claims: Sequence[Claim]) -> dict[NonceKey, NonceUsed]:
    wanted = {key for key in map(nonce_key, claims) if key is not None}
    return find_holders(connection, wanted) if wanted else {}


def find_holders(connection: Connection, keys: Collection[NonceKey]) -> dict[NonceKey, NonceUsed]:
    """The calls that hold these nonces, with one statement. Other nonces of the same transactions may be among them."""
    found = _HOLDERS.fetch(
        connection,
        nonces=list({key.nonce for key in keys}),
        tx_hashes=list({key.tx_hash for key in keys}),
    )
    return {
        NonceKey(ChainId(chain_id), TxHash(tx_hash), bytes(nonce)): NonceUsed(
            call_id=CallId(call_id), state=CallState(state)
        )
        for call_id, state, chain_id, tx_hash, nonce in found
    }


def take_nonce(connection: Connection, key: NonceKey, call_id: CallId) -> NonceUsed | None:
    """The payment of the call is locked. Returns the other call that holds the nonce, and then writes nothing."""
    holder = find_holders(connection, [key]).get(key)
    if holder is not None:
        return None if holder.call_id == call_id else holder
    row = {"nonce": key.nonce, "tx_hash": key.tx_hash, "chain_id": key.chain_id, "call_id": call_id}
    columns, holds = repeat_nonce_table.c, call_table.alias("holder")
    # The row of a released call is replaced. Another payment of the transaction has another lock: its reopen may have been faster.
    is_free = ~select(holds.c.id).where(holds.c.id == columns.call_id, holds.c.state != "released").exists()
    statement = insert_for(connection, repeat_nonce_table).values(row)
    taken = connection.execute(
        statement.on_conflict_do_update(
            index_elements=["nonce", "tx_hash", "chain_id"],
            set_={"call_id": statement.excluded.call_id},
            where=or_(columns.call_id == statement.excluded.call_id, is_free),
        )
    )
    if taken.rowcount != 1:
        raise StorageUnavailable("another call took the nonce at the same time")
    return None


_OF_CLAIMS = select(
    call_table.c.id,
    call_table.c.state,
    call_table.c.nonce_chain_id,
    call_table.c.nonce_tx_hash,
    call_table.c.nonce,
).where(
    Within(call_table.c.nonce, "nonces"),
    Within(call_table.c.nonce_tx_hash, "tx_hashes"),
    text(COUNTING_NONCE),
)
_OF_REPEATS = (
    select(
        call_table.c.id,
        call_table.c.state,
        repeat_nonce_table.c.chain_id,
        repeat_nonce_table.c.tx_hash,
        repeat_nonce_table.c.nonce,
    )
    .join(call_table, call_table.c.id == repeat_nonce_table.c.call_id)
    .where(
        Within(repeat_nonce_table.c.nonce, "nonces"),
        Within(repeat_nonce_table.c.tx_hash, "tx_hashes"),
        call_table.c.state != literal_column("'released'"),
    )
)
_HOLDERS = Prepared(union_all(_OF_CLAIMS, _OF_REPEATS))
