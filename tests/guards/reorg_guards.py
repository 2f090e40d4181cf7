"""Guards of reorganisations: the calls of a payment that left its chain, the debts that they leave, and the credit that pays debts."""

from tests.guards.breaking import Edit
from tests.guards.guard import Guard, guard

_LARGE = "contracts/test_gone_payments.py"
_LEDGER = "contracts/test_ledger_store.py"

REORG_GUARDS: tuple[Guard, ...] = (
    guard(
        "P5",
        "a transaction moves a bounded number of the calls of a gone payment",
        "storage.gone_payments:move_calls",
        "after=after, calls_max=calls_max,",
        "after=after, calls_max=10**9,",
        test=f"{_LARGE}::test_a_reorganisation_and_a_return_move_all_calls_in_small_transactions[sqlite-1001]",
    ),
    guard(
        "P5",
        "a transaction pays a bounded number of debts",
        "storage.debts:pay_debts",
        "after=after, calls_max=calls_max,",
        "after=after, calls_max=10**9,",
        test=f"{_LARGE}::test_a_reorganisation_and_a_return_move_all_calls_in_small_transactions[sqlite-1001]",
    ),
    guard(
        "P5",
        "a later check moves the calls that an ended gateway has left",
        "storage.finality:FinalityStore.continue_moves",
        "await self._database.read(partial(find_unmoved, chain_id=chain_id))",
        "()",
        test=f"{_LARGE}::test_what_an_end_between_two_transactions_leaves_is_continued[sqlite-1001]",
    ),
    guard(
        "P5",
        "a payment returns with less value only after its charged calls are moved",
        "storage.payments:_record",
        "            if is_lower and has_unmoved",
        "            if False and has_unmoved",
        test=f"{_LARGE}::test_a_payment_returns_before_all_its_calls_are_moved[sqlite-900-601]",
    ),
    guard(
        "P5",
        "credit pays the debt of its account before a claim is refused",
        "storage.ledger_store:LedgerStore.claim",
        "while isinstance(outcome, InDebt) and",
        "while False and",
        test=f"{_LEDGER}::test_a_debt_is_paid_from_older_credit_of_the_same_account_before_a_claim[sqlite]",
    ),
    # In the query, and again once the payments are locked.
    Guard(
        threat="P5",
        name="credit that cannot be spent pays no debt",
        edits=(
            Edit(place="storage.debts:_HAS_CREDIT", before="    ~payment_table.c.is_held,", after=""),
            Edit(place="storage.debts:_is_credit", before=" and not payment.is_held", after=""),
        ),
        test=f"tests/{_LEDGER}::test_a_claim_names_the_debt_that_no_credit_pays[sqlite]",
    ),
    guard(
        "P5",
        "the audit compares the kept debt with the calls",
        "storage.history:audit",
        ", *_wrong_debts(connection)",
        "",
        test="contracts/test_debts.py::test_the_audit_names_a_debt_that_is_not_what_the_calls_lack[sqlite]",
    ),
    guard(
        "P5",
        "a response does not call a price charged whose payment left the chain",
        "gateway.proxy:_format_closed",
        "closed is None or closed.is_reorged",
        "closed is None",
        test="gateway/test_pipeline.py::test_a_call_whose_payment_left_the_chain_before_its_end_is_not_charged",
    ),
)
