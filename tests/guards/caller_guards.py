"""Guards of the caller's own money against a hostile gateway, provider or node (threats C)."""

from tests.guards.guard import guard

HOSTILE = "client/test_hostile_gateway.py"

CALLER_GUARDS = (
    guard(
        "C1",
        "a released authorisation counts in the budget",
        "client/authorization_rows.py",
        "state NOT IN ('expired', 'unsent')",
        "state NOT IN ('expired', 'unsent', 'released')",
        test=f"{HOSTILE}::test_the_budget_holds_what_the_gateway_disowns",
    ),
    guard(
        "C1",
        "a session gives nothing back that was sent",
        "client/desk.py",
        "if is_learnt and step.state is AuthorizationState.UNSENT:",
        "if step.state is not AuthorizationState.OPEN:",
        test=f"{HOSTILE}::test_the_limit_of_a_session_holds_and_is_never_given_back",
    ),
    guard(
        "C1",
        "a second authorisation stays within the maximum of its call",
        "client/authorizing.py",
        "        if disowned and exceeds_call(offer.amount, asset, disowned, rules):\n",
        "        if False:\n",
        test=f"{HOSTILE}::test_a_second_signature_of_a_call_needs_room_within_the_maximum",
    ),
    guard(
        "C1",
        "a transfer after an authorisation stays within the maximum of its call",
        "client/checkout.py",
        "        if disowned and exceeds_call(amount, asset, disowned, rules):\n",
        "        if False:\n",
        test=f"{HOSTILE}::test_a_transaction_after_an_authorisation_needs_room_too",
    ),
    guard(
        "C1",
        "a difference counts with the authorisation before it",
        "client/checkout.py",
        "(*paid, *disowned)",
        "paid",
        test="client/test_authorizing.py::test_a_difference_counts_with_the_authorisation_before_it",
    ),
    guard(
        "C1",
        "what an earlier run left takes its part of the maximum",
        "client/payer.py",
        "    disowned: list[Unpaid] = [] if left is None else [left]\n",
        "    disowned: list[Unpaid] = []\n",
        test="client/test_authorizing.py::test_otherwise_it_takes_its_part_of_the_maximum_of_the_call",
    ),
    guard(
        "C1",
        "an authorisation expires by a block after its time",
        "client/finality.py",
        "        if final.time_s < signed.valid_before:  ",
        "        if False:  ",
        test=f"{HOSTILE}::test_until_then_it_counts",
    ),
    guard(
        "C1",
        "an authorisation that was cashed after all is charged",
        "client/finality.py",
        '"0" * 63 + "1": AuthorizationState.CHARGED',
        '"0" * 63 + "1": AuthorizationState.EXPIRED',
        test=f"{HOSTILE}::test_what_was_cashed_after_all_is_charged",
    ),
    guard(
        "C2",
        "a reverted transfer counts until its block is final",
        "client/finality.py",
        "    return status == 0 and mined is not None and mined <= final.number\n",
        "    return status == 0\n",
        test="client/test_client.py::test_a_failed_transfer_is_reported_and_does_not_count_once_it_is_final",
    ),
)
