"""Guards of calls that run again: at any gateway, under one charge, with a signature that counts once."""

from tests.guards.guard import Guard, guard

_CUT = "contracts/test_cut_responses.py"

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
)
