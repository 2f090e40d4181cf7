"""The statements of a paid call find their rows by an index, however many calls one payment has paid."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from tests.kit.ledger_records import (
    CHAIN,
    GAS_KEY,
    NOW_MS,
    PAYER,
    PROVIDER,
    attempt_of,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    new_payment,
    transfer_in,
)
from tests.kit.sql_ledger import SqlLedger
from tollway.ids import CallId
from tollway.ledger.history import HistoryQuery
from tollway.ledger.ledger import StoredResponse
from tollway.ledger.records import CallState
from tollway.limits import Limits
from tollway.storage.engine.database import SqliteDatabase
from tollway.storage.engine.encryption import Sealer
from tollway.storage.ledger.gas_store import GasStore
from tollway.storage.ledger.idempotency import ResponseStore

# a piece of the statement -> the search that it must be
PLANS = {
    "call.nonce IN": "uq_call_nonce (nonce=? AND nonce_tx_hash=?",
    "call.digest =": "ix_call_repeatable (payment_id=? AND digest=?",
    "(call.payment_id, call.digest) IN": "ix_call_repeatable (payment_id=? AND digest=?",
    "call_terms.pay_to =": "ix_call_reorged (payer=? AND (created_ms,id)>(?,?))",
    "WHERE account_debt.payer IN": "account_debt USING PRIMARY KEY (payer=?)",
    "AS has_credit": "account_debt USING PRIMARY KEY (payer=? AND payee=? AND asset=? AND chain_id=?)",
    "account_debt.chain_id = ? AND account_debt.units > 0": "account_debt USING INDEX ix_account_debt_owed (chain_id=?)",
    "ORDER BY payment.block_number": "payment USING INDEX ix_payment_account (payer=? AND payee=?",
    "call.state IN ('consumed', 'reorged') AND (call.created_ms, call.id) >": "(payment_id=?",
    "UPDATE call SET needs_locks": "(payment_id=?",
    "payment.taken_units > ?": "ix_payment_gone (chain_id=?",
    "authorization.nonce IN": "(nonce=?",
    "authorization.settled_block >": "ix_authorization_settled (payer=? AND chain_id=? AND settled_block>?",
    "state IN ('forwarding', 'settling', 'unknown')": "ix_call_moving (payer=?",
    "WHERE authorization.call_id IN": "uq_authorization_call_id (call_id=?",
    "WHERE authorization.nonce = ?": "(nonce=? AND chain_id=? AND asset=? AND payer=?",
    "WHERE authorization.looked_ms <= ? AND is_adrift": "ix_authorization_adrift",
    "authorization.settled_block IS NULL": "ix_call_unknown (moved_ms<?",
    "call.id = ? AND call.state = 'unknown'": "(call_id=?",
    "call.payment_id = ? ORDER BY call.id": "ix_call_payment_time (payment_id=?",
    "authorization.call_id = ? AND authorization.tx_hash = ?": "uq_authorization_call_id (call_id=?",
    "call.owner_id = ? AND call.state = 'settling'": "ix_call_settling (owner_id=?",
    "call.idempotency_key = ?": "ix_call_keyed (payer=? AND idempotency_key=? AND created_ms>?",
    "(call.payer, call.idempotency_key) IN": "ix_call_keyed (payer=? AND idempotency_key=? AND created_ms>?",
    "settlement_attempt.call_id = ? ORDER": "(call_id=?",
    "AND is_open": "ix_settlement_attempt_open (sender=? AND chain_id=?",
    "max(settlement_attempt.cost_wei)": "COVERING INDEX ix_settlement_attempt_spent (chain_id=? AND created_ms>?",
    "settlement_attempt.is_open = 0": "ix_settlement_attempt_spent (chain_id=? AND created_ms>?",
    "FROM gas_lane": "(sender=? AND chain_id=?",
    "UPDATE wallet_gas": "(sender=? AND chain_id=? AND nonce=?",
    "sum(wallet_gas.cost_wei": "COVERING INDEX ix_wallet_gas_spent (chain_id=? AND created_ms>?",
    "SELECT wallet_gas.code_hash": "COVERING INDEX ix_wallet_gas_code (chain_id=? AND created_ms>?",
    "sum(stored_response.bytes)": "COVERING INDEX ix_stored_response",
    "stored_response.payer = ?": "COVERING INDEX ix_stored_response_payer (payer=?",
    "stored_response.provider = ?": "COVERING INDEX ix_stored_response_provider (provider=?",
    "(state IN ('forwarding', 'unknown') OR cut = 'cut') UNION": "ix_call_repeatable (payment_id=?",
    "state IN ('consumed', 'reorged') UNION": "ix_call_unmeasured (payment_id=?",
    ".taken_units > ? AND by_ix_call_repeatable.state = ?": "ix_call_repeatable (payment_id=?",
    "call_topup.payment_id = ? AND": "ix_call_topup_payment_id (payment_id=?",
    "call_topup.payment_id IN": "ix_call_topup_payment_id (payment_id=?",
    "call.owner_id = ? AND call.state = 'forwarding'": "ix_call_forwarding (owner_id=?",
    "AND call.clock_releases": "ix_call_unknown (moved_ms<?",
    "FROM call_total": "PRIMARY KEY (wallet=? AND role=?)",
    "FROM call NOT INDEXED": "SEARCH call USING INTEGER PRIMARY KEY (rowid>?",
    "payment.tx_hash = ? AND": "(tx_hash=? AND chain_id=? AND asset=? AND payer=? AND payee=?",
    "UPDATE payment SET taken_units": "PRIMARY KEY",
    "GROUP BY payment.payer": "SEARCH payment USING INDEX ix_payment_unfinal_payer (payer=?)",
}

EMPTY_RESPONSE = StoredResponse(status=200, headers=(), body=b"")


@pytest.fixture
async def plans(sqlite_url: str, tmp_path: Path) -> dict[str, str]:
    """Every statement of a few calls, with its plan."""
    database = SqliteDatabase(tmp_path / "tollway.sqlite3")
    found: dict[str, str] = {}

    def explain(connection: Any, _cursor: Any, sql: str, values: Any, _context: Any, is_many: bool) -> None:
        if sql.startswith(("SELECT", "UPDATE")) and sql not in found:
            one = values[0] if is_many else values
            plan = connection.connection.driver_connection.execute(f"EXPLAIN QUERY PLAN {sql}", one)
            found[sql] = "; ".join(row[3] for row in plan.fetchall())

    for engine in (database._read_engine, database._write_engine):
        event.listen(engine, "before_cursor_execute", explain)
    most = {"USDC": 10**12}
    ledger = SqlLedger(database, owner_id="one", now_ms=lambda: NOW_MS, unfinal_max_nano=most)
    writing = asyncio.get_running_loop().create_task(ledger.run())
    await ledger.open()
    (payment,) = await ledger.record_payments([new_payment(10)], now_ms=NOW_MS)
    claim = claim_on(payment, nonce=b"\x01" * 32)
    await ledger.claim(claim)
    await ledger.find_open_call(payment.id, claim.digest)
    await ledger.claim(claim_on(payment, 9))
    await ledger.claim(claim_on(payment))
    await ledger.close(close_of(claim))
    await ledger.unknown_calls(payment.id, limit=5)
    lost, left = await ledger.record_payments(
        [new_payment(5, name, is_final=False, payee=PROVIDER) for name in ("lost", "left")], now_ms=NOW_MS
    )
    await ledger.claim(spent := claim_on(lost, 3))
    await ledger.close(close_of(spent))
    await ledger.mark_gone(lost.id, now_ms=NOW_MS)
    await ledger.claim(claim_on(left))
    await ledger.continue_moves(CHAIN, now_ms=NOW_MS)
    await ledger.debts(PAYER)
    await ledger.history(HistoryQuery(wallet=PAYER))
    await settle_some(ledger, database)
    ledger.stop()
    await writing
    await database.close()
    return found


async def settle_some(ledger: SqlLedger, database: SqliteDatabase) -> None:
    gas = GasStore(database)
    limits = Limits(responses_per_payer_bytes_max=20, answers_per_provider_bytes_max=20)
    answers = ResponseStore(database, sealer=Sealer(b"1" * 32, entropy=bytes), limits=limits)
    claims = [authorized_claim(authorization_of(), idempotency_key="key") for _ in range(2)]
    for nonce, claim in enumerate(claims):
        await ledger.claim(claim)
        attempt = attempt_of(claim, nonce, code_hash=bytes(32))
        await ledger.settle(close_of(claim, CallState.SETTLING), attempt=attempt, digest=None)
        await ledger.add_attempt(attempt_of(claim, nonce, f"bump {nonce}"))
        await gas.record_cost(attempt, cost_wei=1)
        await gas.record_wallet_cost(attempt, cost_wei=1, is_reverted=True)
        await gas.wallet_gas_wei(attempt.chain_id, since_ms=0)
        await gas.reverting_codes(attempt.chain_id, since_ms=0)
        await answers.keep(claim.call_id, EMPTY_RESPONSE, payer=PAYER, provider=PROVIDER, now_ms=NOW_MS)
    await answers.keep(CallId("c"), EMPTY_RESPONSE, payer=PROVIDER, provider=PROVIDER, now_ms=NOW_MS)
    await ledger.conclude(
        claims[0].call_id, epoch=1, transfer=transfer_in(), is_orphaned=False, now_ms=NOW_MS
    )
    place = transfer_in()
    (settled,) = await ledger.find_payments(place.tx_hash)
    await ledger.authorizations_in(settled.id, limit=5)
    await ledger.move_transfer(
        claims[0].call_id, before=place.tx_hash, transfer=transfer_in("elsewhere"), now_ms=NOW_MS
    )
    await ledger.mark_orphaned(claims[1].call_id, epoch=1)
    await ledger.unsettled(limit=5)
    await ledger.postpone(claims[1].call_id, until_ms=NOW_MS)
    await ledger.attempts_of(claims[1].call_id)
    await ledger.recover(now_ms=NOW_MS)
    await ledger.find_keyed_call(PAYER, "key", since_ms=0)
    await gas.open_attempts(CHAIN, GAS_KEY, limit=5)
    await gas.mark_mined(CHAIN, GAS_KEY, below=1)
    await gas.reopen(CHAIN, GAS_KEY, since_nonce=0, since_ms=0)
    await gas.gas_spent_wei(CHAIN, since_ms=0)
    for claim in claims:
        assert claim.authorization is not None
        await ledger.find_authorized_call(claim.authorization.key)


def test_every_statement_uses_its_index(plans: dict[str, str]) -> None:
    statements = {" ".join(sql.split()): plan for sql, plan in plans.items()}
    for piece, search in PLANS.items():
        matching = [plan for sql, plan in statements.items() if piece in sql]
        assert matching, (piece, list(statements))
        assert [plan for plan in matching if search not in plan] == [], piece
