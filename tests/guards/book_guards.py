"""Guards of the books: who reads them, files that are whole or visibly broken, sums that equal their calls (threats I, X and K)."""

from tests.guards.guard import guard

SAME_REFUSAL = "contracts/test_viewers.py::test_every_reason_not_to_read_has_the_same_refusal"
UNTIL_ITS_END = "contracts/test_viewers.py::test_a_viewer_reads_until_the_end_and_another_wallet_never"
IN_PACE = "web/test_exports.py::test_a_client_that_takes_too_little_is_cut_off"
FEW_AT_ONCE = "web/test_exports.py::test_a_wallet_and_a_gateway_write_few_files_at_once"

BOOK_GUARDS = (
    # ---- Viewers.
    guard(
        "I11",
        "a wallet that names a foreign wallet is its viewer",
        "identity.viewers:BookAccess.resolve_wallet",
        "if permission is None:\n            raise Refusal(self._refusal)\n",
        "if permission is None:\n            return named\n",
        test=SAME_REFUSAL,
    ),
    guard(
        "I11",
        "a permission has an end",
        "storage.viewer_store:SqlViewers.find",
        ", columns.until_ms > now_ms",
        "",
        test=UNTIL_ITS_END,
    ),
    guard(
        "I11",
        "a permission ends at most so many days ahead",
        "web.viewer_routes:read_until",
        "if not now_ms < until_ms <= now_ms + days_max * DAY_MS:",
        "if False:",
        test="web/test_viewer_routes.py::test_refuses_what_is_no_permission_and_stores_nothing",
    ),
    guard(
        "I11",
        "two gateways count the viewers of a wallet one after the other",
        "storage.viewer_store:_put",
        "if (connection.scalar(others) or 0) >= most:",
        "if False:",
        test="contracts/test_viewers.py::test_two_gateways_that_add_the_last_viewer_add_one",
    ),
    guard(
        "I11",
        "a call of another wallet is none of the named one",
        "web.history_routes:find_call",
        "if call is None or wallet not in (call.payer, call.provider):",
        "if call is None:",
        test="web/test_viewer_routes.py::test_a_viewer_of_one_wallet_reads_no_call_of_another",
    ),
    # ---- Files.
    guard(
        "X11",
        "a wallet reads few files at once",
        "web.exports:ExportSlots.enter",
        "if mine >= self._limits.exports_per_wallet_max or wallet in self._waiting:",
        "if False:",
        test=FEW_AT_ONCE,
    ),
    guard(
        "X11",
        "a gateway writes few files at once",
        "web.exports:ExportSlots.enter",
        "if self.running < self._limits.exports_at_once_max:",
        "if True:",
        test=FEW_AT_ONCE,
    ),
    guard(
        "X11",
        "a reader keeps a rate",
        "web.exports:_Pace._time_left_s",
        "min(limits.write_stall_s, max(0.0, left_s))",
        "3_600.0",
        test=IN_PACE,
    ),
    guard(
        "X11",
        "a client that leaves ends the reading",
        "web.exports:CsvResponse._stream",
        "watcher.add_done_callback(lambda _: flow.cancel())",
        "watcher.add_done_callback(lambda _: None)",
        test="web/test_exports.py::test_a_client_that_disconnects_stops_the_reading",
    ),
    guard(
        "X11",
        "a file that failed has no end",
        "web.exports:CsvResponse._stream",
        "return False",
        "return True",
        test="web/test_exports.py::test_a_database_that_fails_later_breaks_the_response",
    ),
    # ---- Closed hours.
    guard(
        "K11",
        "an hour that another leader has written since the read is not written",
        "storage.closed_periods:_take_periods",
        "closed.start_ms == one.start_ms, closed.version == one.version",
        "closed.start_ms == one.start_ms",
        test="contracts/test_closed_periods.py::test_of_two_leaders_the_one_with_the_older_read_writes_nothing",
    ),
    guard(
        "K11",
        "the audit compares no hour that waits to be written again",
        "storage.closed_periods:audit_periods",
        "    starts = {*closed, *found} - marked\n",
        "    starts = {*closed, *found}\n",
        test="contracts/test_closed_periods.py::test_a_call_that_moves_between_the_read_and_the_write_stays_marked",
    ),
    # ---- The client.
    guard(
        "C27",
        "a page is of this gateway",
        "client.export:CsvPages._read_next",
        'f"{self._path}?{urlsplit(found[1]).query}"',
        "found[1]",
        test="client/test_export.py::test_all_pages_are_one_file_with_one_header_line",
    ),
    guard(
        "C27",
        "a file appears when it is complete",
        "cli.csv_output:write_csv",
        "_write_whole(parts, partial)\n        partial.replace(output)",
        "_write_whole(parts, output.with_name(output.name)) if not output.exists() else output.write_bytes(b''.join(parts))",
        test="cli/test_csv_output.py::test_a_file_has_all_pages_and_only_its_owner_reads_it",
    ),
)
