"""Guards of stored responses and of buffered bodies: neither is used up by one caller (threats X1 and X13), and a lost response is still paid (P16)."""

from tests.guards.guard import guard

POOL = "contracts/test_response_pool.py"
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
)
