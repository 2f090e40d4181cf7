"""`Refunds` over a ledger in SQL and a chain in memory, wired as a gateway wires them."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.kit.chain import MemoryChain
from tests.kit.lookup_counter import LookupCounter
from tollway.chain.networks import ChainRules
from tollway.identity.signatures import SignatureVerifier
from tollway.ids import ChainId
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.refunds import Refunds
from tollway.payments.transaction_verifier import TransactionVerifier


async def read_no_terms(*_: Any) -> Any:
    raise AssertionError("a refund reads no terms of a listing")


def make_refunds(
    ledger: Any, chain: MemoryChain, rules: Mapping[ChainId, ChainRules], *, now_ms: Callable[[], int]
) -> Refunds:
    """`ledger`: a `SqlLedger`."""
    quota = LookupCounter()
    verifier = TransactionVerifier(
        payments=ledger,
        readiness=ledger,
        chains=chain,
        rules=rules,
        signature_verifier=SignatureVerifier(chain, limits=DEFAULT_LIMITS),
        quota=quota,
        limits=DEFAULT_LIMITS,
        now_ms=now_ms,
        find_older_terms=read_no_terms,
        find_payee_heads=read_no_terms,
    )
    return Refunds(
        ledger=ledger,
        payments=ledger,
        verifier=verifier,
        rules=rules,
        quota=quota,
        limits=DEFAULT_LIMITS,
        now_ms=now_ms,
        shared_ms=now_ms,
    )
