"""Guards of the caller's own tools against the answers of gateways, providers and nodes (threats C10 to C12)."""

from tests.guards.guard import guard

REPLY, WHOLE, DEADLINE = "client/reply.py", "client/whole_answer.py", "client/deadline.py"
OUTPUT, SHOWING = "cli/answer_output.py", "cli/showing.py"

ANSWER_GUARDS = (
    guard(
        "C10",
        "only charsets of the web count",
        REPLY,
        "return named if named is not None and named.strip().lower() in CHARSETS else None",
        "return named",
        test="client/test_client.py::test_text_never_fails_whatever_charset_a_provider_names",
    ),
    guard(
        "C10",
        "JSON that cannot be written is shown as text",
        WHOLE,
        "    json.dumps(value, allow_nan=False)\n",
        "",
        test="cli/test_trade.py::test_no_paid_answer_fails_to_be_shown",
    ),
    guard(
        "C10",
        "an unwritable output is found before anything is sent",
        OUTPUT,
        "                self._open(Path(self._output).resolve())\n",
        "                pass\n",
        test="cli/test_trade.py::test_an_output_that_cannot_be_written_is_found_before_anything_is_sent",
    ),
    guard(
        "C10",
        "an answer that cannot be written is kept",
        OUTPUT,
        "{_keep(answer.content)}",
        "",
        test="cli/test_trade.py::test_an_answer_that_cannot_be_written_is_kept_and_is_no_usage_error",
    ),
    guard(
        "C10",
        "all members of a gzip stream are read",
        WHOLE,
        "        if not content.startswith(_GZIP_MAGIC, start):\n",
        "        if True:\n",
        test="client/test_client.py::test_all_members_of_a_gzip_stream_are_read",
    ),
    guard(
        "C10",
        "a bad coding is an error of the client",
        REPLY,
        "    except httpx.DecodingError as exc:\n",
        "    except ZeroDivisionError as exc:\n",
        test="client/test_client.py::test_a_stream_that_is_not_what_its_coding_says_is_an_error_of_the_client",
    ),
    guard(
        "C11",
        "a coded problem is bounded",
        WHOLE,
        '    coding = _find_coding(response)\n    if not coding:\n        return content\n    for name in ("content-encoding", "content-length"):\n',
        '    coding = ""\n    if not coding:\n        return content\n    for name in ("content-encoding", "content-length"):\n',
        test="client/test_client.py::test_a_coded_problem_is_bounded_and_never_fails",
    ),
    guard(
        "C11",
        "members together have a maximum",
        WHOLE,
        "            if len(inflated) > bytes_max:\n",
        "            if False:\n",
        test="client/test_client.py::test_members_together_have_the_maximum_of_an_answer",
    ),
    guard(
        "C11",
        "a document that the client fetches has a maximum",
        DEADLINE,
        "            if len(body) > bytes_max:\n",
        "            if False:\n",
        test="client/test_deadline.py::test_a_fetch_has_a_deadline_and_a_maximum",
    ),
    guard(
        "C12",
        "a read of the synchronous client keeps to the deadline",
        DEADLINE,
        "    rest = remaining_s()\n    if rest == 0.0:\n        raise failure",
        "    rest = None\n    if rest == 0.0:\n        raise failure",
        test="client/test_deadline.py::test_deadlines_nest_and_the_earliest_counts",
    ),
    guard(
        "C12",
        "the asynchronous client is interrupted at the deadline",
        DEADLINE,
        "async with asyncio.timeout(remaining_s()):",
        "async with asyncio.timeout(None):",
        test="client/test_deadline.py::test_eight_hanging_calls_of_an_agent_end",
    ),
)
