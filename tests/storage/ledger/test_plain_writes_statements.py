"""The statements of plain claims and ends: each has every guard and no other condition, and the predicates that stand elsewhere too."""

import pytest

from tollway.ledger.claims import PAYMENT_GUARDS
from tollway.ledger.records import PaymentState
from tollway.ledger.sales import HOUR_MS, UNMARKED_MS
from tollway.storage.ledger import plain_writes
from tollway.storage.ledger.ledger_tables import COUNTING_NONCE, REPEATABLE
from tollway.storage.webhooks.webhook_events import HAS_ENDPOINT


def squeeze(sql: str) -> str:
    """The text with one space between words, and none inside a parenthesis."""
    return " ".join(sql.split()).replace("( ", "(").replace(" )", ")")


def look_up_repeat(payment_id: str, digest: str, *, index: str = "") -> str:
    return (
        f"SELECT 1 FROM call c{index} WHERE c.payment_id = {payment_id} AND c.digest = {digest}"
        f" AND ({REPEATABLE}) AND c.state <> 'forwarding' LIMIT 1"
    )


def look_up_nonce(nonce: str, tx_hash: str, chain_id: str, *, index: str = "") -> str:
    claimed = (
        f"SELECT 1 FROM call c{index} WHERE c.nonce = {nonce} AND c.nonce_tx_hash = {tx_hash}"
        f" AND c.nonce_chain_id = {chain_id} AND ({COUNTING_NONCE}) LIMIT 1"
    )
    run_again = (
        f"SELECT 1 FROM repeat_nonce r JOIN call h ON h.id = r.call_id WHERE r.nonce = {nonce}"
        f" AND r.tx_hash = {tx_hash} AND r.chain_id = {chain_id} AND h.state <> 'released' LIMIT 1"
    )
    return f"SELECT coalesce(({claimed}), ({run_again}))"


NO_DEBT = (
    "(SELECT 1 FROM account_debt o WHERE o.payer = p.payer AND o.payee = p.payee AND o.asset = p.asset"
    " AND o.chain_id = p.chain_id AND o.units > 0) IS NULL"
)
NO_OWNER = "(SELECT 1 FROM budget b WHERE b.agent = p.payer AND b.bound_ms IS NOT NULL) IS NULL"
REPEAT_ON_SQLITE = look_up_repeat("?1", "?6", index=" INDEXED BY ix_call_repeatable")
NONCE_ON_SQLITE = look_up_nonce("?7", "?8", "?9", index=" INDEXED BY uq_call_nonce")
GUARDS = {
    "payer matches": ("p.payer = w.payer", "p.payer = ?2"),
    "not gone": ("p.state <> 'gone'", "p.state <> 'gone'"),
    "not held": ("NOT p.is_held", "NOT p.is_held"),
    "plain form counts": ("NOT (w.has_plain_proof AND p.is_plain_ended)", "NOT (?4 AND p.is_plain_ended)"),
    "one form of proof": ("NOT (w.has_plain_proof AND w.has_bound_proof)", "NOT (?4 AND ?5)"),
    "whole sum covered": (
        "w.units <= p.value_units - p.taken_units",
        "?3 <= p.value_units - p.taken_units",
    ),
    "no debt": (NO_DEBT, NO_DEBT),
    "no open repeat": ("p.id NOT IN (SELECT payment_id FROM repeating)", f"({REPEAT_ON_SQLITE}) IS NULL"),
    "nonce not used": ("p.id NOT IN (SELECT payment_id FROM replaying)", f"({NONCE_ON_SQLITE}) IS NULL"),
    "no owner": (NO_OWNER, NO_OWNER),
}
"""`PAYMENT_GUARDS` in SQL: of a batch on PostgreSQL (`p` the payment, `w` the demand on it), and of one claim on SQLite."""
CLAIM_POSTGRES, CLAIM_SQLITE = (" AND ".join(each) for each in zip(*GUARDS.values(), strict=True))
LOOK_UPS = (
    f"SELECT a.payment_id FROM new_calls a WHERE ({look_up_repeat('a.payment_id', 'a.digest')}) = 1",
    f"SELECT a.payment_id FROM new_calls a WHERE ({look_up_nonce('a.nonce', 'a.nonce_tx_hash', 'a.nonce_chain_id')}) = 1",
)


def guard_end(*, call_id: str, epoch: str, owner_id: str, now_ms: str) -> str:
    return (
        f"WHERE c.id = {call_id} AND c.state = 'forwarding' AND c.epoch = {epoch} AND c.owner_id = {owner_id}"
        " AND c.rail IN ('none', 'tx', 'credit') AND NOT c.needs_locks"
        f" AND c.created_ms / {HOUR_MS} * {HOUR_MS} + {HOUR_MS + UNMARKED_MS} > {now_ms} RETURNING"
    )


END_POSTGRES = guard_end(call_id="e.id", epoch="e.epoch", owner_id="$1::text", now_ms="$2::bigint")
REST_UNITS = f"CASE p.state WHEN '{PaymentState.GONE.value}' THEN 0 ELSE p.value_units - p.taken_units END"
IS_CHARGE = "{call}.rail <> 'none' AND {call}.cut <> 'repeated' AND " + HAS_ENDPOINT

STATEMENTS = {
    "claim_one": (
        plain_writes._CLAIM_ONE,
        *LOOK_UPS,
        f"FROM debits w WHERE p.id = w.payment_id AND {CLAIM_POSTGRES} RETURNING",
    ),
    "claim_many": (
        plain_writes._CLAIM_MANY,
        *LOOK_UPS,
        f"ON p.id = w.payment_id WHERE {CLAIM_POSTGRES} ORDER BY p.id FOR NO KEY UPDATE OF p",
        f"ON CONFLICT (nonce, nonce_tx_hash, nonce_chain_id) WHERE {COUNTING_NONCE} DO NOTHING",
    ),
    "debit": (plain_writes._DEBIT_EACH, f"WHERE p.id = ?1 AND {CLAIM_SQLITE} RETURNING"),
    "close_one": (plain_writes._CLOSE_ONE, END_POSTGRES, REST_UNITS),
    "close_many": (plain_writes._CLOSE_MANY, END_POSTGRES, REST_UNITS),
    "close_noted": (
        plain_writes._CLOSE_NOTED,
        END_POSTGRES,
        REST_UNITS,
        f"WHERE {IS_CHARGE.format(call='m', wallet='n.wallet')})",
    ),
    "close": (
        plain_writes._CLOSE_EACH,
        guard_end(call_id="?3", epoch="?4", owner_id="?1", now_ms="?2"),
        REST_UNITS,
    ),
    "note": (plain_writes._NOTE_EACH, f"WHERE c.id = ?4 AND {IS_CHARGE.format(call='c', wallet='?2')}"),
}
"""The name of a file -> its text, and the conditions that stand in it once."""


def test_every_guard_has_its_condition() -> None:
    assert list(GUARDS) == list(PAYMENT_GUARDS)


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_has_every_condition_and_no_other(name: str) -> None:
    text, *conditions = STATEMENTS[name]
    squeezed = squeeze(text)
    assert {condition: squeezed.count(condition) for condition in conditions} == dict.fromkeys(conditions, 1)
