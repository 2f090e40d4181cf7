"""Guards of the statements that grant plain claims and write plain ends of calls: none of them decides a claim that is
not plain, and no end misses what became of its call or payment."""

from tests.guards.guard import Guard, guard

_PLACE = "storage.plain_writes:_GUARDS"
_CLAIM_PLACE = "ledger.claims:CLAIM_GUARDS"
_TESTS = "contracts/test_plain_writes.py"


def _case(name: str) -> str:
    return f"{_TESTS}::test_what_is_not_plain_is_decided[postgresql-alone-{name}]"


def _sqlite_case(name: str) -> str:
    return f"{_TESTS}::test_what_is_not_plain_is_decided[sqlite-alone-{name}]"


PLAIN_GUARDS: tuple[Guard, ...] = (
    *(
        guard(
            threat,
            f"one statement grants no claim without: {name}",
            _PLACE,
            before,
            '"true"',
            test=_case(name),
        )
        for threat, name, before in (
            ("P2", "payer matches", '"p.payer = w.payer"'),
            ("P5", "not gone", "\"p.state <> 'gone'\""),
            ("P13", "not held", '"NOT p.is_held"'),
            ("P3", "plain form counts", '"NOT (w.has_plain_proof AND p.is_plain_ended)"'),
            ("P3", "one form of proof", '"NOT (w.has_plain_proof AND w.has_bound_proof)"'),
            ("P16", "no open repeat", '"p.id NOT IN (SELECT payment_id FROM repeating)"'),
        )
    ),
    *(
        guard(
            threat,
            f"one statement grants no claim without: {name}",
            _CLAIM_PLACE,
            before,
            "True",
            test=_case(name),
        )
        for threat, name, before in (
            ("P10", "no authorisation", "claim.authorization is None"),
            ("P1", "no idempotency key", "claim.idempotency_key is None"),
            ("P1", "no first price", "not claim.is_first_price"),
            ("P5", "no maximum of unfinal value", "claim.currency not in limited"),
        )
    ),
    guard(
        "P5",
        "one statement grants no claim of a payer in debt",
        _PLACE,
        "AND o.units > 0) IS NULL",
        "AND o.units > 0) IS NULL OR true",
        test=_case("no debt"),
    ),
    guard(
        "P1",
        "what is not covered fails no other claim of its statement",
        _PLACE,
        '"w.units <= p.value_units - p.taken_units"',
        '"true"',
        test=f"{_TESTS}::test_what_is_not_covered_fails_no_other_claim_of_its_batch[postgresql]",
    ),
    guard(
        "P3",
        "one statement grants no claim with the nonce of a call that ran again",
        _PLACE,
        '"p.id NOT IN (SELECT payment_id FROM replaying)"',
        '"true"',
        test="contracts/test_nonces.py::test_a_nonce_that_ran_a_call_again_buys_no_other_call[postgresql-plain]",
    ),
    guard(
        "P16",
        "an end that comes late marks the hour of its call",
        "storage.plain_writes:_END_GUARDS",
        'f"c.created_ms / {HOUR_MS} * {HOUR_MS} + {HOUR_MS + UNMARKED_MS} > $2::bigint"',
        '"$2::bigint IS NOT NULL"',
        test="contracts/test_closed_periods.py::test_claims_and_ends_leave_a_mark_once_their_hour_may_close[sqlite-300000-1]",
    ),
    *(
        guard(
            threat,
            f"an end is written only: {before}",
            "storage.plain_writes:_END_GUARDS",
            before,
            "$1::text IS NOT NULL",  # the text needs its first parameter
            test=f"{_TESTS}::{test}",
        )
        for threat, before, test in (
            ("P16", "c.state = 'forwarding'", "test_an_end_that_meets_recovery_is_fenced[alone]"),
            (
                "P16",
                "c.epoch = e.epoch",
                "test_an_end_is_written_by_the_gateway_and_in_the_run_that_it_is_of[postgresql]",
            ),
            (
                "P16",
                "c.owner_id = $1::text",
                "test_an_end_is_written_by_the_gateway_and_in_the_run_that_it_is_of[postgresql]",
            ),
            (
                "P10",
                "c.rail IN ('none', 'tx', 'credit')",
                "test_an_end_is_written_by_the_gateway_and_in_the_run_that_it_is_of[postgresql]",
            ),
            (
                "P5",
                "NOT c.needs_locks",
                "test_an_end_after_the_loss_of_its_payment_leaves_a_debt_too[postgresql]",
            ),
        )
    ),
    *(
        guard(
            threat,
            f"on SQLite, {promise}",
            f"storage.{place}",
            before,
            after,
            test=test,
        )
        for threat, promise, place, before, after, test in (
            (
                "P16",
                "no claim of an open call's request is granted without a decision",
                "plain_writes:_LOOK_UPS",
                'f"({_REPEATED}) IS NULL"',
                'f"({_REPEATED}) IS NULL OR true"',
                _sqlite_case("no open repeat"),
            ),
            (
                "P3",
                "a used nonce fails no other claim of its batch",
                "plain_writes:_LOOK_UPS",
                'f"({_REPLAYED}) IS NULL"',
                'f"({_REPLAYED}) IS NULL OR true"',
                f"{_TESTS}::test_a_used_nonce_fails_no_other_claim_of_its_batch[sqlite]",
            ),
            (
                "P3",
                "one nonce twice fails no other claim of its batch",
                "plain_writes:_grant_each",
                " or nonce in nonces",
                "",
                f"{_TESTS}::test_on_sqlite_claims_are_granted_in_order[its nonce is used by the one before]",
            ),
            (
                "P1",
                "no plain claim is granted before one of its payment that came earlier",
                "plain_writes:_grant_each",
                "claim.payment_id in left or ",
                "",
                f"{_TESTS}::test_on_sqlite_claims_are_granted_in_order[it is not covered]",
            ),
            (
                "P1",
                "a claim that may be written is looked up with its payment read",
                "ledger_batch:LedgerBatch.run",
                " and not self._is_retry",
                "",
                "contracts/test_ledger_batch.py::test_claims_whose_commit_lost_its_answer_are_granted_once[sqlite]",
            ),
            (
                "P1",
                "a claim that is not plain by itself is decided",
                "ledger_batch:LedgerBatch._grant_plain_claims",
                "is_claim_alone_plain(claim, limited) and ",
                "",
                _sqlite_case("no idempotency key"),
            ),
            (
                "P16",
                "what an end gives back is given back",
                "ledger_batch:LedgerBatch._write_plain_closes",
                " and is_plain_close(move)",
                "",
                "contracts/test_ledger_store.py::test_a_close_moves_the_call_and_only_a_release_gives_back[sqlite-released]",
            ),
        )
    ),
    guard(
        "P5",
        "the loss of a payment marks the calls that it leaves open",
        "storage.gone_payments:_mark_running",
        ".values(needs_locks=True)",
        ".values(needs_locks=call_table.c.needs_locks)",
        test=f"{_TESTS}::test_an_end_that_meets_the_loss_of_its_payment_leaves_a_debt[alone]",
    ),
    guard(
        "P16",
        "a second end of a call waits behind the statement queue that has the first",
        "storage.statement_queues:StatementQueues.find_holder",
        "if queue.has(call_id)",
        "if not call_id",
        test=f"{_TESTS}::test_of_two_ends_of_one_call_the_first_counts[consumed]",
    ),
    guard(
        "P16",
        "a claim behind a cut answer finds it",
        "storage.group_commit:GroupCommit.are_statement_queues_closed",
        " or self._has_cut_waiting",
        "",
        test="contracts/test_idempotency_open_calls.py::test_a_claim_immediately_after_a_cut_response_finds_it",
    ),
    guard(
        "P16",
        "a claim behind a cut answer finds it, while other finishes are written",
        "storage.statement_queues:StatementQueues._write_ends",
        "self.ends.release(closing)",
        "pass",
        test="contracts/test_plain_writes.py::test_a_claim_after_a_cut_that_waits_for_its_close_finds_it",
    ),
)
