"""Guards of the memory of decisions: what a remembered decision follows (`gateway.decisions.INPUTS`)."""

from tests.guards.guard import guard

FOLLOWS = "gateway/test_decisions.py::test_a_remembered_decision_follows_its_input"
KEY, RECALL = "gateway.decisions:find_key", "gateway.pipeline:CallPipeline._find_decision"

DECISION_GUARDS = (
    guard(
        "P2",
        "a remembered decision is that of one plain signature",
        KEY,
        "left_out = NEUTRAL if find_header(PARAMS_HEADER) is None else _NEUTRAL_BOUND",
        "left_out = _NEUTRAL_BOUND",
        test=f"{FOLLOWS}[plain signature]",
    ),
    guard(
        "P3",
        "a bound signature is recovered although its request is remembered",
        "gateway.transaction_payment:TransactionPayment._is_verified_again",
        "match_keys(verified.spendables, self.proof, bound, self.route.listing.id) == verified.spendables",
        "True",
        test="gateway/test_decisions.py::test_a_bound_signature_of_another_wallet_buys_nothing_by_memory",
    ),
    guard(
        "P8",
        "a contract wallet is asked although its request was served",
        "gateway.transaction_payment:TransactionPayment.remember",
        "if match_keys(spendables, self.proof, bound, self.route.listing.id) != spendables:",
        "if False:",
        test="gateway/test_decisions.py::test_a_contract_wallet_is_verified_at_each_call",
    ),
    guard(
        "P2",
        "a payment that is not known any more is verified anew",
        "gateway.transaction_payment:TransactionPayment._is_verified_again",
        "if not rail.transaction_verifier.is_known(self.proof.tx_hash, verified.spendables):",
        "if False:",
        test=f"{FOLLOWS}[known payment]",
    ),
    guard(
        "P9",
        "a remembered price ends",
        "gateway.decisions:DecisionMemory.find",
        "if decision is None or request.received_ms >= decision.expires_ms:",
        "if decision is None:",
        test=f"{FOLLOWS}[time at which a price ends]",
    ),
    guard(
        "P9",
        "a remembered decision is that of one revision of its listing",
        RECALL,
        "if route is None or await self._catalog.find(request.listing_id) is not route.entry:",
        "if route is None:",
        test=f"{FOLLOWS}[revision of the listing]",
    ),
    guard(
        "P9",
        "a remembered decision has the target of its own request",
        RECALL,
        "elif route is known.route:",
        "elif route is not None:",
        test=f"{FOLLOWS}[values of query parameters]",
    ),
    guard(
        "P9",
        "a maximum price is never remembered",
        "gateway.decisions:_NEVER",
        '_NEVER = (b"idempotency-key", b"tollway-max-price")',
        '_NEVER = (b"idempotency-key",)',
        test=f"{FOLLOWS}[Tollway-Max-Price]",
    ),
    guard(
        "I7",
        "an ownership that has ended ends a remembered decision",
        RECALL,
        "if self._is_verified is not None and not await self._is_verified(route.listing.id):",
        "if False:",
        test=f"{FOLLOWS}[ownership of the listing]",
    ),
    guard(
        "X4",
        "an upstream that is known to be down is not dialled by memory",
        "gateway.routing:Router.renew",
        "if self._wait_s(route.endpoint) is not None:",
        "if False:",
        test=f"{FOLLOWS}[circuit breaker]",
    ),
    guard(
        "H3",
        "a value that may be refused is a part of the key",
        KEY,
        "if header[0] in left_out and is_plain(header[1]) is not None else header",
        "if header[0] in left_out else header",
        test="gateway/test_decisions.py::test_a_neutral_value_that_may_be_refused_is_a_part_of_the_key",
    ),
    guard(
        "X1",
        "headers that could grow over their limit are not remembered",
        "gateway.decisions:DecisionMemory.put",
        "or not self._is_small(request)",
        "",
        test="gateway/test_decisions.py::test_headers_that_could_grow_over_their_limit_are_not_remembered",
    ),
)
