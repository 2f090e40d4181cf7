"""Guards of stored responses and of buffered bodies: neither is used up by one caller (threats X1 and X13), and a lost response is still paid (P16)."""

from tests.guards.guard import guard

POOL = "contracts/test_response_pool.py"
ENDS = "web/test_middleware.py::test_a_body_keeps_its_rate_and_ends_within_a_minute"
LONG = "web/test_auth_routes.py::TestLongBody"
LOST = "contracts/test_stored_response_keys.py"

RESPONSE_GUARDS = (
    guard(
        "P16",
        "a stored response that no key opens counts as not stored",
        "storage.idempotency:ResponseStore.find",
        "        except StorageUnavailable:\n",
        "        except ZeroDivisionError:\n",
        test=f"{LOST}::test_a_response_whose_key_is_gone_is_reported_as_paid_and_not_stored[sqlite-plain-POST]",
    ),
    guard(
        "P16",
        "a lost response is written to the log once",
        "storage.idempotency:ResponseStore.find",
        "                self._is_loss_logged = True\n",
        "",
        test=f"{LOST}::test_a_response_whose_key_is_gone_is_reported_as_paid_and_not_stored[sqlite-plain-POST]",
    ),
    guard(
        "X13",
        "the account that holds most loses its responses first",
        "storage.response_pool:_Space.free_largest",
        "heapq.heappop(heap)",
        "heap.pop(heap.index(max(heap)))",
        test=f"{POOL}::test_a_response_older_than_an_hour_stays_while_others_hold_more[sqlite]",
    ),
    guard(
        "X13",
        "a provider has a maximum of stored responses",
        "storage.response_pool:_bytes_max",
        "    return limits.answers_per_provider_bytes_max\n",
        "    return limits.answers_bytes_max\n",
        test=f"{POOL}::test_many_payers_of_a_few_apis_delete_the_responses_of_these_apis[sqlite-1]",
    ),
    guard(
        "X13",
        "recent responses of small payers of a full provider stay",
        "storage.response_pool:_Space._find_unprotected",
        " if size >= share]",
        "]",
        test=f"{POOL}::test_callers_of_one_api_delete_no_recent_response_of_its_small_payers[sqlite-90]",
    ),
    guard(
        "X13",
        "only an hour protects a response",
        "storage.response_pool:_Space._delete_oldest",
        "or_(columns.created_ms <= self._protected_since_ms, columns.payer.in_(unprotected))",
        "columns.payer.in_(unprotected)",
        test=f"{POOL}::test_a_response_is_not_stored_where_no_other_may_be_deleted[sqlite]",
    ),
    guard(
        "X13",
        "a response without space is not stored",
        "storage.response_pool:_Space.free_account",
        "            raise NoSpace\n",
        "            pass\n",
        test=f"{POOL}::test_a_response_is_not_stored_where_no_other_may_be_deleted[sqlite]",
    ),
    guard(
        "X13",
        "the sums of other gateways are read before a deletion",
        "storage.idempotency:ResponseStore._read_sums",
        " and not is_old:",
        ":",
        test=f"{POOL}::test_the_sums_are_read_again_before_a_deletion[sqlite]",
    ),
    guard(
        "X13",
        "a stored response counts for the provider of its API",
        "gateway.proxy:Proxy._start_response",
        "provider=payment.route.entry.listing.provider",
        "provider=payment.payer",
        test="gateway/test_stored_response_space.py::test_a_keyed_response_is_replayed_after_the_keyed_calls_of_others[1-18]",
    ),
    guard(
        "X1",
        "a body that came fast may not rest for all the time that it is ahead",
        "web.admission:BodyPace.record",
        "min(self.left_s - waited_s + earned_s, longest_s)",
        "self.left_s - waited_s + earned_s",
        test="web/test_admission_bodies.py::test_a_body_that_came_fast_may_pause_for_the_window_only[33000000]",
    ),
    guard(
        "X1",
        "the rate of a body of the control plane is that of its last seconds",
        "web.middleware:_BoundedBody._receive_in_time",
        "min(self._pace.left_s, self._deadline - now)",
        "self._deadline - now",
        test=f"{ENDS}[longer pause]",
    ),
    guard(
        "X1",
        "a body of the control plane has a deadline in all",
        "web.middleware:_BoundedBody._receive_in_time",
        "min(self._pace.left_s, self._deadline - now)",
        "self._pace.left_s",
        test=f"{ENDS}[longer than a minute]",
    ),
    guard(
        "X1",
        "the rate of a body of a call is that of its last seconds",
        "web.gateway_app:IncomingBody._next_message",
        "        pace.record(len(message.get(",
        "        pace.left_s += len(message.get('body', b'')) / self._limits.body_rate_bytes_min\n        (lambda size, waited_s: None)(len(message.get(",
        test="web/test_gateway_app.py::test_a_body_that_came_fast_may_pause_for_the_window_only",
    ),
    guard(
        "X1",
        "bodies of strangers have a quarter of the room",
        "web.admission:BodyReservation.__init__",
        "self._pool = budget.unproven",
        "self._pool = budget.proven",
        test="web/test_admission_bodies.py::test_bodies_without_a_proof_leave_the_memory_of_the_others",
    ),
    guard(
        "X1",
        "a long body of the control plane is read after its proof",
        "web.auth_routes:make_wallet_dependency",
        "            await authenticator.verify_head(to_signed_request(request, body=None))\n",
        "",
        test=f"{LONG}::test_without_a_valid_proof_is_refused_unread",
    ),
    guard(
        "X1",
        "a long body of a call counts with the proven ones after its proof",
        "gateway.transaction_payment:TransactionPayment.check",
        "            self.request.body.prove()\n",
        "",
        test="web/test_gateway_app.py::test_bodies_of_strangers_leave_the_memory_of_proven_calls",
    ),
)
