"""Five ways to break the gateway, each as an exact replacement of text, and the test that must notice.

`make mutants` (or `python -m tests.mutants`) lets the machine of `tests/guards` apply one at a time to a copy of the
package. `tests/test_mutants.py` asserts on every run that each mutant still applies.
"""

import sys

from tests.guards.breaking import Breakage, Edit, Verdict, judge_all

MUTANTS = (
    Breakage(
        name="no unique key",
        edits=(
            Edit(
                place="storage/migrations/baseline.sqlite.sql",
                before=",\n  CONSTRAINT uq_payment_transfer UNIQUE (tx_hash, chain_id, asset, payer, payee)",
                after="",
            ),
        ),
        test="tests/contracts/test_ledger_store.py::test_records_a_payment_once[sqlite]",
    ),
    Breakage(
        name="signature not checked",
        edits=(
            Edit(
                place="payments.transaction_verifier:match_keys",
                before=" if one.payment.payer in signers[one.payment.chain_id])",
                after=")",
            ),
        ),
        test="tests/gateway/test_pipeline.py::test_a_stranger_may_not_spend_a_known_payment",
    ),
    Breakage(
        name="claim after forward",
        edits=(
            Edit(
                place="outbound.client:UpstreamExchange.__aenter__",
                before="        self._connected_ms = client.ticks_ms()\n",
                after=(
                    '        head = await self._deliver(request, self._connection, b"", 2.0)\n'
                    "        self.status, self.headers, self.length = head.status, head.headers, head.length\n"
                ),
            ),
            Edit(
                place="outbound.client:UpstreamExchange.send",
                before=(
                    "            connection = self._connection = await self._client.renew(self._connection, request)\n"
                    "            self._client.check_age(self._connected_ms)\n"
                    "            may_repeat = connection.exchanges > 0 and _may_repeat(request)\n"
                    "            try:\n"
                    "                head = await self._deliver(request, connection, fields, head_deadline_s)\n"
                ),
                after="            try:\n                pass\n",
            ),
            Edit(
                place="outbound.client:UpstreamExchange.send",
                before="        self.status, self.headers, self.length = head.status, head.headers, head.length\n",
                after="",
            ),
        ),
        test="tests/gateway/test_pipeline.py::test_fifty_callers_and_a_payment_for_ten_make_ten_requests",
    ),
    Breakage(
        name="timeout answered with 402",
        edits=(
            Edit(
                place="web.problems:PROBLEM_KINDS",
                before="Code.UPSTREAM_TIMEOUT: _transient(504,",
                after="Code.UPSTREAM_TIMEOUT: _transient(402,",
            ),
        ),
        test="tests/gateway/test_proxy.py::test_a_head_that_does_not_come_in_time_is_held",
    ),
    Breakage(
        name="release without fence",
        edits=(
            Edit(
                place="storage.ledger_batch:LedgerBatch._close",
                before=(
                    "        if call is None or call.owner_id != self._rules.owner_id"
                    " or call.epoch != close.epoch:\n"
                ),
                after="        if call is None:\n",
            ),
        ),
        test="tests/contracts/test_ledger_store.py::test_a_close_by_another_gateway_or_epoch_is_fenced[sqlite]",
    ),
)


def show(verdict: Verdict) -> None:
    told = "caught" if verdict.is_caught else "SURVIVED"
    print(f"{verdict.breakage.name:<26} {told:<10} {verdict.breakage.test}: {verdict.said}", flush=True)


def main() -> int:
    verdicts = judge_all(MUTANTS, workers=1, show=show)
    return 0 if all(verdict.is_caught for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
