"""Guards of calls that run again: at any gateway, under one charge, with a signature that counts once."""

from tests.guards.guard import Guard, guard

_CUT = "contracts/test_cut_responses.py"
_NONCES = "contracts/test_nonces.py"
_PLAIN = "contracts/test_plain_nonces.py"

REPEAT_GUARDS: tuple[Guard, ...] = (
    guard(
        "P16",
        "a caller that sees a cut response finds the cut at every gateway",
        "gateway.rail:CallPayment.finish",
        "        if finish.is_cut:",
        "        if not finish.call_id:",
        test=f"{_CUT}::test_a_repeat_at_another_gateway_is_free[postgresql]",
    ),
    guard(
        "P16",
        "the cut of a response is kept until the database takes it",
        "storage.group_commit:GroupCommit._fail",
        " or waiting.is_cut:",
        ":",
        test=f"{_CUT}::"
        "test_while_the_database_is_away_the_break_waits_for_its_limit_and_the_cut_for_the_database[sqlite]",
    ),
    guard(
        "P16",
        "the cut of a response is flushed before the caller sees the break",
        "storage.group_commit:GroupCommit._write",
        " or is_cut(entry)",
        "",
        test=f"{_CUT}::test_a_cut_is_flushed[sqlite]",
    ),
    guard(
        "P1",
        "a caller that stalls its response until the upstream cuts it gets no second run free",
        "gateway.response_body:UpstreamBody.read_chunk",
        " or self._waited_ms > CALLER_WAIT_MS_MAX",
        "",
        test="gateway/test_response_body.py::"
        "test_a_cut_after_long_waits_for_the_caller_allows_no_repeat[over the limit]",
    ),
    guard(
        "P1",
        "waits for a caller count in all",
        "gateway.response_body:UpstreamBody.read_chunk",
        "self._waited_ms += max(",
        "self._waited_ms = max(",
        test="gateway/test_response_body.py::"
        "test_a_cut_after_long_waits_for_the_caller_allows_no_repeat[over the limit in all]",
    ),
    guard(
        "P3",
        "the signature of a repeat takes its nonce",
        "storage.ledger_batch:LedgerBatch._reopen",
        "None if reopen.nonce is None else self._take_nonce(call, reopen.nonce)",
        "None",
        test=f"{_NONCES}::test_a_nonce_that_ran_a_call_again_buys_no_other_call[sqlite-decided]",
    ),
    guard(
        "P3",
        "the signature of another call runs no call again",
        "storage.nonces:take_nonce",
        "        return None if holder.call_id == call_id else holder",
        "        return None",
        test=f"{_NONCES}::test_the_nonce_of_another_call_runs_no_call_again[sqlite]",
    ),
    guard(
        "P3",
        "the bound signature of a repeat ends the plain form",
        "storage.ledger_batch:LedgerBatch._take_nonce",
        "            self._locked_rows.end_plain(payment.id)",
        "            pass",
        test=f"{_NONCES}::test_a_bound_signature_that_runs_a_call_again_ends_the_plain_form[sqlite-False]",
    ),
    guard(
        "P3",
        "a plain claim sees the nonces of calls that ran again",
        "storage.plain_writes:_REPLAYED",
        "coalesce(({_CLAIMED}), ({_RUN_AGAIN}))",
        "coalesce(({_CLAIMED}), NULL)",
        test=f"{_NONCES}::test_a_nonce_that_ran_a_call_again_buys_no_other_call[postgresql-plain]",
    ),
    guard(
        "P3",
        "the request of a repeat answers no other caller",
        "gateway.transaction_payment:TransactionPayment._reopen",
        "nonce=None if binding is None else binding.nonce,",
        "nonce=None,",
        test="gateway/test_repeat_signatures.py::"
        "test_the_signed_request_of_a_repeat_counts_once[bound-without a key]",
    ),
    guard(
        "P1",
        "a demand that no column can hold is not granted by a statement",
        "storage.plain_writes:_PaymentDebit.add",
        "        self.units += claim.price_units",
        "        self.units = min(self.units + claim.price_units, UNITS_MAX)",
        test=f"{_PLAIN}::test_a_demand_beyond_a_column_is_decided",
    ),
    guard(
        "X10",
        "a nonce that another gateway takes meanwhile fails no other claim",
        "storage.plain_writes:_claim_text",
        "        ON CONFLICT (nonce, nonce_tx_hash, nonce_chain_id) WHERE {COUNTING_NONCE} DO NOTHING\n",
        "",
        test=f"{_PLAIN}::test_a_nonce_that_another_gateway_takes_meanwhile_costs_its_own_claim",
    ),
    guard(
        "P6",
        "no caller is asked for units that are there but held",
        "ledger.claims:_BatchDecision._collect_parts",
        "        is_held = held_units >= missing",
        "        is_held = False",
        test="contracts/test_payments_held.py::test_no_caller_is_asked_for_what_is_held[sqlite-0]",
    ),
    guard(
        "K11",
        "an hour that the ledger takes for open is not closed",
        "storage.closed_periods:ClosedPeriods._make_plan",
        "min(self._read_clock(connection), self._ledger_ms())",
        "self._read_clock(connection)",
        test="contracts/test_closed_periods.py::"
        "test_no_hour_is_closed_that_the_ledger_takes_for_open[sqlite]",
    ),
)
