"""The tables of authorisations, the transactions that settle them, what those of payers with code cost, and the lanes of
the gas keys. Columns only.

Amounts and times of an authorisation are `uint256`, so they are text. What settling may cost is kept in wei, capped
to what a signed 64-bit column holds: nine ether for one transaction is beyond every budget.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    text,
)

from tollway.storage.database import metadata

authorization_table = Table(
    "authorization",
    metadata,
    Column("nonce", LargeBinary(32), nullable=False),
    Column("chain_id", BigInteger, nullable=False),
    Column("asset", String(42), nullable=False),
    Column("payer", LargeBinary(20), nullable=False),
    Column("call_id", String(64), ForeignKey("call.id", name="fk_authorization_call"), nullable=False),
    Column("payee", LargeBinary(20), nullable=False),
    Column("base_units", String(78), nullable=False),
    Column("valid_after", String(78), nullable=False),
    Column("valid_before", String(78), nullable=False),
    Column("signature", LargeBinary, nullable=False),
    Column("dialect", String(10), nullable=False),
    Column("challenge_id", Text, nullable=False),
    Column("seen_block", BigInteger, nullable=False),
    Column("is_adrift", Boolean, nullable=False),
    Column("looked_ms", BigInteger, nullable=False),
    Column("tx_hash", LargeBinary(32)),
    Column("settled_block", BigInteger),
    Column("client_network", LargeBinary(16)),
    PrimaryKeyConstraint("nonce", "chain_id", "asset", "payer", name="pk_authorization"),
    Index("uq_authorization_call_id", "call_id", unique=True),
    Index(
        "ix_authorization_adrift",
        "looked_ms",
        sqlite_where=text("is_adrift"),
        postgresql_where=text("is_adrift"),
    ),
    Index(
        "ix_authorization_settled",
        "payer",
        "chain_id",
        "settled_block",
        sqlite_where=text("settled_block IS NOT NULL"),
        postgresql_where=text("settled_block IS NOT NULL"),
    ),
)

attempt_table = Table(
    "settlement_attempt",
    metadata,
    Column("tx_hash", LargeBinary(32), nullable=False),
    Column("chain_id", BigInteger, nullable=False),
    Column("call_id", String(64), ForeignKey("call.id", name="fk_settlement_attempt_call"), nullable=False),
    Column("listing_id", String(64), nullable=False),
    Column("sender", LargeBinary(20), nullable=False),
    Column("nonce", BigInteger, nullable=False),
    Column("raw", LargeBinary, nullable=False),
    Column("fee_max_wei", String(78), nullable=False),
    Column("cost_wei", BigInteger, nullable=False),
    Column("is_open", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("tx_hash", "chain_id", name="pk_settlement_attempt"),
    Index("ix_settlement_attempt_call_id", "call_id"),
    Index(
        "ix_settlement_attempt_spent",
        *("chain_id", "created_ms", "listing_id", "sender", "nonce", "cost_wei"),
    ),
    Index(
        "ix_settlement_attempt_open",
        "sender",
        "chain_id",
        "nonce",
        sqlite_where=text("is_open"),
        postgresql_where=text("is_open"),
    ),
)

wallet_gas_table = Table(
    "wallet_gas",
    metadata,
    Column("sender", LargeBinary(20), nullable=False),
    Column("chain_id", BigInteger, nullable=False),
    Column("nonce", BigInteger, nullable=False),
    Column("code_hash", LargeBinary(32), nullable=False),
    Column("listing_id", String(64), nullable=False),
    Column("cost_wei", BigInteger, nullable=False),
    Column("is_reverted", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("sender", "chain_id", "nonce", name="pk_wallet_gas"),
    Index("ix_wallet_gas_spent", *("chain_id", "created_ms", "listing_id", "cost_wei")),
    Index("ix_wallet_gas_code", *("chain_id", "created_ms", "code_hash", "is_reverted")),
)
"""One row for each nonce that was taken for a payer with code: contract wallets and delegated accounts have a part of the
gas budgets of their own."""

settlement_nonce_table = Table(
    "gas_lane",
    metadata,
    Column("sender", LargeBinary(20), nullable=False),
    Column("chain_id", BigInteger, nullable=False),
    Column("next_nonce", BigInteger, nullable=False),
    PrimaryKeyConstraint("sender", "chain_id", name="pk_gas_lane"),
)
