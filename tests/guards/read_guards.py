"""Guards of what a wallet reads: turns, slices and rates of books, sums that are kept, responses that no cache stores (threats X4, X5, X11, I11, I21 and I22)."""

from tests.guards.guard import guard

TWO_AT_ONCE = "web/test_book_turns.py::test_no_more_than_two_books_are_read_at_once"
IN_SLICES = "web/test_history_routes.py::test_a_page_of_calls_is_read_in_slices"
ONE_QUOTA = "web/test_wallet_quota.py::test_every_proof_of_a_wallet_counts_in_one_quota"
PRIVATE = "attack/test_private_answers.py::test_every_answer_of_an_operation_of_wallets_is_private"

ENDS_VISIBLY = "web/test_exports_end.py::test_an_export_ends_visibly_with_what_allowed_it"

READ_GUARDS = (
    # ---- Turns.
    guard(
        "X4",
        "reads of books take turns",
        "web.book_turns:BookTurns.acquire",
        "        if self._free and wallet not in self._reading:\n",
        "        if True:\n",
        test=TWO_AT_ONCE,
    ),
    guard(
        "X4",
        "wallets that wait take turns in rotation",
        "web.book_turns:BookTurns.release",
        "                self._waiting[following] = waiters\n",
        "                self._waiting[following] = waiters\n                self._waiting.move_to_end(following, last=False)\n",
        test="web/test_book_turns.py::test_wallets_take_turns_in_rotation",
    ),
    guard(
        "X4",
        "an encoded path of a book takes a turn",
        "web.book_turns:is_book_read",
        'and scope["path"].startswith(_BOOK_PATHS)',
        'and scope["raw_path"].decode().startswith(_BOOK_PATHS)',
        test="web/test_book_turns.py::test_an_encoded_path_is_the_path_that_the_router_reads",
    ),
    guard(
        "X4",
        "a request with a proof waits for its turn",
        "web.auth_routes:admit_wallet",
        "    await enter_turn(request.scope, wallet)\n",
        "",
        test="web/test_wallet_quota.py::test_reads_of_the_api_and_of_pages_wait_for_the_same_turns",
    ),
    guard(
        "X4",
        "a look at a chain holds no turn",
        "web.history_routes:history_router",
        "            leave_turn(request.scope)  # the nodes of a chain may take seconds\n",
        "",
        test="web/test_history_routes.py::test_a_look_at_a_chain_holds_no_turn",
    ),
    # ---- Slices and sums.
    guard(
        "X4",
        "a page of calls is read in slices",
        "web.history_routes:history_json",
        "replace(query, limit=min(query.limit, SLICE_ROWS))",
        "query",
        test=IN_SLICES,
    ),
    guard(
        "X4",
        "a page of calls has at most 200 of them",
        "web.history_routes:HISTORY_LIMIT_MAX",
        "= 200",
        "= 1_000",
        test="web/test_history_routes.py::test_an_invalid_query_names_its_parameter_and_reads_nothing",
    ),
    guard(
        "X4",
        "the same question about sums is read once in some seconds",
        "web.kept_sums:KeptSums._read",
        "        if kept is not None:\n",
        "        if False:\n",
        test="web/test_kept_sums.py::test_the_same_question_is_read_once_in_some_seconds",
    ),
    guard(
        "X4",
        "kept sums have a maximum of rows",
        "web.kept_sums:KeptSums._keep",
        "        while self.rows > self._rows_max:\n",
        "        while False:\n",
        test="web/test_kept_sums.py::test_the_rows_of_all_wallets_have_a_maximum",
    ),
    # ---- Rates.
    guard(
        "X5",
        "a request with a proof counts, whatever the proof",
        "web.auth_routes:admit_wallet",
        "    await quota.charge(wallet, client_address=client_address_of(request))\n",
        "",
        test=ONE_QUOTA,
    ),
    guard(
        "X5",
        "a page of a signed-in reader counts",
        "web.page_session:PageAccess._find_session",
        "            await admit_wallet(request, session.address, quota=self._quota)\n",
        "            pass\n",
        test=ONE_QUOTA,
    ),
    guard(
        "I22",
        "permissions have a rate",
        "identity.viewers:BookAccess.allow",
        "        await self._quota.charge(wallet, client_address=client_address)\n",
        "",
        test="web/test_viewer_routes.py::test_permissions_have_a_rate_by_wallet_and_by_address",
    ),
    # ---- Permissions.
    guard(
        "I22",
        "a permission is listed once its viewer has read with it",
        "storage.viewer_store:SqlViewers.list_wallets",
        ", columns.accepted_ms.is_not(None)",
        "",
        test="contracts/test_viewers.py::test_strangers_fill_no_list_of_a_viewer",
    ),
    guard(
        "I22",
        "a menu has few wallets",
        "identity.viewers:BookAccess.list_menu",
        "self._limits.menu_wallets_max",
        "self._limits.viewed_wallets_max",
        test="contracts/test_viewers.py::test_limits_of_both_lists",
    ),
    guard(
        "I22",
        "a viewer declines the permission that it got",
        "identity.viewers:BookAccess.decline",
        "        await self._viewers.delete(wallet, viewer)\n",
        "        await self._viewers.delete(viewer, wallet)\n",
        test="contracts/test_viewers.py::test_a_viewer_declines_a_permission",
    ),
    # ---- Exports.
    guard(
        "I11",
        "an export ends with its session",
        "web.exports:_ExportReading.check_access",
        "        if not await self.services.is_session_open(self.request):\n",
        "        if False:\n",
        test=ENDS_VISIBLY + "[1-end_session]",
    ),
    guard(
        "I11",
        "an export ends with the permission of its reader, asked before each chunk",
        "web.exports:_read_calls",
        "        await reading.check_access()\n",
        "",
        test=ENDS_VISIBLY + "[1-withdraw_viewer]",
    ),
    guard(
        "I11",
        "an export ends with a block of its wallet",
        "web.exports:_ExportReading.check_access",
        "        if block is not None:\n",
        "        if False:\n",
        test=ENDS_VISIBLY + "[1-block_wallet]",
    ),
    guard(
        "X11",
        "a wallet keeps one slot while another one waits",
        "web.exports:ExportSlots._wait",
        "        self._end_one()\n",
        "",
        test="web/test_exports_end.py::test_a_wallet_keeps_one_slot_while_another_wallet_waits",
    ),
    guard(
        "X11",
        "a page of a file has a deadline",
        "web.exports:_Pace.send",
        "            if began_s >= self._ends_s:\n",
        "            if False:\n",
        test="web/test_exports_end.py::test_a_page_has_a_deadline_however_fast_its_reader_is",
    ),
    guard(
        "X4",
        "an export that opens holds no turn while it waits for one",
        "web.exports:CsvResponse.__call__",
        "        leave_turn(scope)  # each chunk takes a turn of its own\n",
        "",
        test="web/test_exports_end.py::test_exports_that_open_together_hold_no_turn_while_they_wait_for_one",
    ),
    # ---- Caches.
    guard(
        "I21",
        "a response to a proof is private",
        "web.auth_routes:make_wallet_dependency",
        "        mark_private(request.scope, API_PROOFS)\n",
        "",
        test=PRIVATE,
    ),
    guard(
        "I21",
        "no route keeps a Cache-Control of its own beside it",
        "web.page_response:PrivateResponses.__call__",
        ' if header[0] != b"cache-control"',
        "",
        test=PRIVATE,
    ),
    guard(
        "I21",
        "a page of a signed-in reader is private",
        "web.page_session:PageAccess._find_session",
        "        mark_private(request.scope, PAGE_PROOFS)\n",
        "",
        test="web/test_my_routes.py::test_a_page_of_a_reader_is_never_stored_compressed_or_framed",
    ),
)
