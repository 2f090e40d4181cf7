"""Guards of prices and payees over time: which version of a listing prices a call, and from when on a payee counts (threats P5, P9, P15)."""

from tests.guards.guard import guard

UNDECIDED = (
    "gateway/test_authorization_payment_settlement.py"
    "::test_an_undecided_settlement_gets_no_402_and_the_same_proof_gets"
)
SLOW_BODIES = "gateway/test_pipeline_slow_bodies.py"
PAYEE_TIMES = "gateway/test_payee_times.py"

PRICE_GUARDS = (
    guard(
        "P15",
        "a version sets no price on a network that it did not name",
        "payments.pricing:_sets_price_on",
        "return terms.until_ms is None or chain_id in terms.networks",
        "return True",
        test="payments/test_pricing.py::test_an_older_version_sets_a_price_only_on_its_networks",
    ),
    guard(
        "P15",
        "credit of a network that the listing no longer names buys calls",
        "payments.pricing:_sets_price_on",
        "terms.until_ms is None or ",
        "",
        test="payments/test_pricing.py::test_the_current_version_counts_on_a_network_that_it_dropped_long_ago",
    ),
    guard(
        "P5",
        "an admitted payment counts although it is older than its payee",
        "payments.transaction_rules:_find_worth",
        "given.is_admitted or ",
        "",
        test="payments/test_transaction_rules.py::test_an_admitted_payment_counts_however_new_its_payee_is",
    ),
    guard(
        "P9",
        "a payee counts from the time of its network",
        "payments.transaction_verifier:TransactionVerifier._apply_rules",
        "begin_by_heads(given.payees, heads)",
        "given.payees",
        test=f"{PAYEE_TIMES}::test_a_payment_made_after_the_quote_is_served_however_far_its_network_lags",
    ),
    guard(
        "P9",
        "a head that is dated ahead refuses no payment",
        "payments.pricing:begin_by_heads",
        "min(payee.since_s, heads.get(payee.address, payee.since_s))",
        "heads.get(payee.address, payee.since_s)",
        test="payments/test_pricing.py::test_a_payee_begins_at_the_head_of_its_network_where_that_is_earlier",
    ),
    guard(
        "P5",
        "the head of an older time of a payee does not count",
        "storage.catalog_store:CatalogStore.list_payee_heads",
        "            .where(terms.since_ms >= entry.versions[-1].since_ms)\n",
        "",
        test=f"{PAYEE_TIMES}::test_a_payee_that_returns_begins_again",
    ),
    guard(
        "P9",
        "no terms stand beside a payment that reached the payee before it was named",
        "payments.transaction_rules:explain_result",
        """                code=Code.PAYMENT_TOO_OLD,
                detail="The payment was mined before its payee""",
        """                code=Code.PAYMENT_VERIFICATION_FAILED,
                detail="The payment was mined before its payee""",
        test=f"{PAYEE_TIMES}::test_a_payment_from_before_the_payee_is_refused_without_terms_until_it_is_admitted",
    ),
    guard(
        "P9",
        "the heads of networks are read where a payee begins",
        "web.listing_edits:ListingEdits._read_heads",
        "known = previous.networks if previous is not None and is_same else ()",
        "known = () if previous is None else previous.networks",
        test="web/test_listing_routes_patch.py::test_the_heads_of_networks_are_read_where_a_payee_begins",
    ),
    guard(
        "P9",
        "a call with a slow body is decided by the listing as it is when the body has arrived",
        "gateway.pipeline:CallPipeline._is_outdated",
        "return await self._catalog.find(request.listing_id) is not entry",
        "return False",
        test=f"{SLOW_BODIES}::test_a_listing_that_changed_during_a_slow_body_decides_the_call_again",
    ),
    guard(
        "P9",
        "a remembered decision does not outlive a slow body",
        "gateway.pipeline:CallPipeline._serve",
        "entry = None if decision.verified is not None else route.entry",
        "entry = route.entry",
        test=f"{SLOW_BODIES}::test_a_remembered_decision_does_not_outlive_a_slow_body",
    ),
    guard(
        "P9",
        "a suspended listing delivers no stored response after a slow body",
        "gateway.pipeline:CallPipeline._decide",
        "if read is not None and ",
        "if False and ",
        test=f"{SLOW_BODIES}::test_a_stored_response_is_delivered_by_the_listing_as_it_is_after_a_slow_body",
    ),
    guard(
        "P11",
        "an undecided x402 payment gets no terms where x402 is off now",
        "payments.authorization_check:parse_presented",
        "return presented if is_x402 else replace(presented, fault=_X402_OFF)",
        "return presented if is_x402 else _X402_OFF",
        test=f"{UNDECIDED}_the_response",
    ),
    guard(
        "P11",
        "an undecided MPP payment gets no terms where MPP is off now",
        "payments.authorization_check:_parse_mpp",
        "return parse_credential(value, find_fault=lambda challenge, nonce: _MPP_OFF, limits=limits)",
        "raise Refusal(_MPP_OFF)",
        test=f"{UNDECIDED}_the_response",
    ),
    guard(
        "P9",
        "an edit ends a price by the clock of the database",
        "storage.catalog_store:CatalogStore.revise",
        "now_ms=self._shared_clock(connection, listing.updated_ms)",
        "now_ms=listing.updated_ms",
        test="contracts/test_terms_versions.py::test_an_edit_ends_a_price_by_the_clock_of_the_database",
    ),
    guard(
        "P9",
        "a version records every operation of a very large document",
        "gateway.routing:_list_operations",
        "if digest_operation(operation.method, operation.path) in digests:",
        "if False:",
        test="gateway/test_routing_prices.py::test_what_was_for_sale_keeps_its_old_price_for_a_transaction",
    ),
    guard(
        "P15",
        "what a very large document did not describe has no old price",
        "gateway.routing:_list_operations",
        "if digest_operation(operation.method, operation.path) in digests:",
        "if True:",
        test="gateway/test_routing_prices.py::test_what_was_never_for_sale_has_no_old_price_for_a_transaction",
    ),
)
