"""Guards of what the caller's own tools show, and of what they take from their caller (threats C20 and up)."""

from tests.guards.guard import guard

TERMINAL = "cli/test_terminal.py::test_no_command_brings_an_escape_of_a_stranger_to_a_terminal"
DOCUMENTS = "client/test_agent_tools.py"

SHOWN_GUARDS = (
    guard(
        "C20",
        "a console prints plain text, whatever it is given",
        "cli.showing:_Shown.__rich_console__",
        "yield Segment(text if control else plain(text), style, control)",
        "yield Segment(text, style, control)",
        test="cli/test_showing.py::test_a_console_lets_nothing_through",
    ),
    guard(
        "C20",
        "a printed line is plain",
        "cli.showing:print_text",
        ".write(plain(text) + ",
        ".write(text + ",
        test=TERMINAL,
    ),
    guard(
        "C20",
        "JSON is harmless on a terminal",
        "client.shown_text:format_json",
        '    return "".join(character if _is_shown(character) else _escape(character) for character in text)\n',
        "    return text\n",
        test="client/test_shown_text.py::test_json_is_the_same_value_and_harmless_on_a_terminal",
    ),
    guard(
        "C20",
        "a traceback is plain",
        "cli:main",
        "    sys.excepthook = _print_traceback\n",
        "",
        test=TERMINAL,
    ),
    guard(
        "C20",
        "a symbol that a contract names is a symbol",
        "client.transfer:_decode_symbol",
        "    return symbol if is_symbol(symbol) else None\n",
        "    return symbol\n",
        test="client/test_hostile_node.py::test_a_symbol_is_a_symbol_or_makes_no_asset",
    ),
    guard(
        "C20",
        "a measured rate is a number from 0 to 1",
        "cli.showing:_tell_quality",
        "not isinstance(rate, int | float) or not 0 <= rate <= 1 or",
        "rate is None or",
        test="cli/test_showing.py::test_quality_is_numbers_or_not_measured",
    ),
    guard(
        "C21",
        "no member of a gateway's document replaces the label",
        "client.agent_tools:_hand_on",
        'if key not in ("notice", "isCut")}',
        "}",
        test=f"{DOCUMENTS}::test_no_member_of_a_gateways_document_takes_the_place_of_the_label",
    ),
    guard(
        "C21",
        "a number that an agent reads is a number",
        "client.agent_tools:_read_number",
        "    return value if 0 <= value <= 2**53 else None\n",
        "    return value\n",
        test="client/test_agent_tools.py::test_numbers_and_details_of_a_search_are_of_their_types",
    ),
    guard(
        "C21",
        "a price that an agent reads is a price",
        "client.tool_answers:read_price",
        "    return text if isinstance(text, str) and _PRICE.fullmatch(text) else None\n",
        "    return text if isinstance(text, str) else None\n",
        test="client/test_tool_answers.py::test_what_headers_say_of_money_is_a_price_a_state_and_an_id_or_left_out",
    ),
    guard(
        "C21",
        "a document for an agent has a maximum",
        "client.shown_text:_Cut._take_text",
        "        most = max(self._left, 0)\n",
        "        most = len(text)\n",
        test=f"{DOCUMENTS}::test_a_document_has_a_size_and_says_when_it_was_cut",
    ),
    guard(
        "C21",
        "a body for an agent has a maximum as JSON",
        "client.tool_answers:_is_short",
        "    return len(format_json(body)) <= BODY_CHARACTERS_MAX\n",
        "    return True\n",
        test="client/test_tool_answers.py::test_an_answer_has_a_size_however_it_is_written",
    ),
    guard(
        "C21",
        "a refusal's detail is labelled",
        "client.tool_answers:explain",
        '{"notice": DETAIL_UNTRUSTED, "isRetryable"',
        '{"isRetryable"',
        test=f"{DOCUMENTS}::test_a_refusal_is_labelled_and_bounded",
    ),
    guard(
        "C22",
        "a page without its list is malformed",
        "client.control:read_document",
        "        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):\n",
        "        if False:\n",
        test="client/test_control.py::test_a_page_without_its_list_is_malformed",
    ),
)
