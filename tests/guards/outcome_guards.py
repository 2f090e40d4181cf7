"""Guards of outcomes: of held calls that an authorisation pays (P10), of responses that name no payment state (C1), of fields that a provider's document
makes (H1), and of receipts with two readings (I10)."""

from tests.guards.guard import guard

RESOLUTION = "contracts/test_resolution.py::"
HELD = "payments/test_held_calls.py::"
UNMARKED = "client/test_unmarked_responses.py::"
FIELDS = "registry/test_listing_operations.py::test_a_caller_sends_parameters_that_the_gateway_does_not_add"

OUTCOME_GUARDS = (
    # ---- Held calls.
    guard(
        "P10",
        "a held call by authorisation is settled before it is charged",
        "ledger.records:decide_resolution",
        "CallState.SETTLING if outcome is CallState.CONSUMED and is_unpaid else outcome",
        "outcome",
        test=f"{RESOLUTION}test_a_charge_settles_the_authorisation_and_takes_nothing_before_the_transfer",
    ),
    guard(
        "P10",
        "a charge is left to settlement recovery in its own transaction",
        "storage.recovery:resolve",
        "        mark_calls_orphaned(connection, [call_id])\n",
        "        pass\n",
        test=f"{RESOLUTION}test_a_charge_settles_the_authorisation_and_takes_nothing_before_the_transfer[sqlite]",
    ),
    guard(
        "P10",
        "what the provider charged is no credit",
        "ledger.records:decide_settlement_end",
        "if not is_orphaned or has_stored_response or is_charged_by_provider:",
        "if not is_orphaned or has_stored_response:",
        test=f"{RESOLUTION}test_a_charged_call_is_consumed_by_its_transfer_and_never_runs_again",
    ),
    guard(
        "P10",
        "a decision is made once",
        "storage.recovery:resolve",
        "if call is None or call.state is not CallState.UNKNOWN:",
        "if call is None or call.state not in (CallState.UNKNOWN, CallState.SETTLING):",
        test=f"{RESOLUTION}test_a_decision_is_final[sqlite-consumed]",
    ),
    guard(
        "P10",
        "an authorisation that is over charges nothing",
        "payments.held_calls:HeldCalls._read_fault",
        "return ChargeFault.EXPIRED if facts.head_time >= authorization.valid_before else by_clock",
        "return None",
        test=f"{HELD}test_what_cannot_be_charged_is_refused_with_the_reason_and_can_be_released",
    ),
    guard(
        "P10",
        "an authorisation that is used elsewhere charges nothing",
        "payments.held_calls:HeldCalls._read_fault",
        "return ChargeFault.USED if isinstance(use, Cancelled) else None",
        "return None",
        test=f"{HELD}test_what_cannot_be_charged_is_refused_with_the_reason_and_can_be_released",
    ),
    guard(
        "P7",
        "the look-ups of a held call have a quota",
        "payments.held_calls:HeldCalls.find_charge_fault",
        "if await lookup.take(str(call.provider)) is not None:",
        "if False:",
        test=f"{HELD}test_questions_about_one_call_have_a_quota_on_the_chain",
    ),
    # ---- Responses without a payment state.
    guard(
        "C1",
        "a response without a payment state is no outcome of a paid request",
        "client.responses:read_response",
        "if step.carries_payment and answered.payment_state not in PAYMENT_STATES:",
        "if False:",
        test=f"{UNMARKED}test_the_outcome_of_a_paid_request_without_a_payment_state_is_unknown",
    ),
    guard(
        "C1",
        "a payment by transaction is a payment, too",
        "client.steps:PROOF_HEADERS",
        'frozenset({"x-payment-tx", "payment-signature"})',
        'frozenset({"payment-signature"})',
        test=f"{UNMARKED}test_the_outcome_of_a_paid_request_without_a_payment_state_is_unknown",
    ),
    # ---- Fields of a provider's document.
    guard(
        "H1",
        "a control header is no field of a form or a tool",
        "registry.listing:is_sent_by_caller",
        "not is_control_header(lower)",
        "lower",
        test=FIELDS,
    ),
    guard(
        "H1",
        "the key of a call is no field of a form or a tool",
        "registry.header_names:is_control_header",
        "name.lower() in _CONTROLS or is_reserved_header(name)",
        "is_reserved_header(name)",
        test=FIELDS,
    ),
    # ---- Receipts.
    guard(
        "I10",
        "a receipt with a member twice is not valid",
        "client.receipts:parse_document",
        "    if repeated:\n",
        "    if False:\n",
        test="client/test_receipts.py::test_a_receipt_with_a_member_twice_is_not_valid",
    ),
    guard(
        "I10",
        "a receipt has one text of its signature",
        "payments.call_receipt:_recover_signer",
        "or _SIGNATURE.fullmatch(signature) is None",
        "",
        test="payments/test_call_receipt.py::test_a_signature_in_another_text_is_refused",
    ),
)
