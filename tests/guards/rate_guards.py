"""Guards of rates, of what the gateway fetches by itself, and of the settings file (threats X5, O6, O8, K4)."""

from tests.guards.guard import guard

AUTHENTICATOR, CHECKS, CUSTOMERS = (
    "identity/authenticator.py",
    "web/ownership_routes.py",
    "gateway/customers.py",
)
SIGNED = "identity/test_authenticator.py::test_a_wallet_and_an_address_sign_so_many_requests_and_no_more"
FILE, LOOKUPS = "settings_file.py", "outbound/name_lookups.py"

RATE_GUARDS = (
    guard(
        "X5",
        "a signed request that left a row counts",
        AUTHENTICATOR,
        "            self._signed.note(proof.address, client_address=request.client_address)\n",
        "",
        test=SIGNED,
    ),
    guard(
        "X5",
        "ownership checks have a rate",
        CHECKS,
        "        await self._share.charge(provider, client_address=client_address_of(request))\n",
        "",
        test="web/test_ownership_routes.py::test_a_wallet_has_so_many_checks_an_hour",
    ),
    guard(
        "X5",
        "ownership checks count by address, with however many wallets",
        CHECKS,
        "self._share.charge(provider, client_address=client_address_of(request))",
        "self._share.charge(provider, client_address=str(provider))",
        test="web/test_ownership_routes.py::test_checks_count_by_address_too_with_however_many_wallets",
    ),
    guard(
        "X5",
        "a provider's own rate holds for free calls",
        CUSTOMERS,
        "        if rate is not None:\n            wait_s = await meters.charge_free_listing(",
        "        if rate is not None and False:\n            wait_s = await meters.charge_free_listing(",
        test="gateway/test_customers.py::test_a_providers_own_rate_holds_for_free_calls_by_address",
    ),
    guard(
        "X5",
        "an address makes so many free calls over all listings",
        CUSTOMERS,
        "        wait_s = await meters.charge_free_address(call.client_address)\n",
        "        wait_s = None\n",
        test="gateway/test_customers.py::test_an_address_makes_five_listings_free_calls_over_all_of_them",
    ),
    guard(
        "X5",
        "a free call that the address's rate refuses does not count for the provider's",
        CUSTOMERS,
        "            meters.give_back_free_listing(rate, listing.id, call.client_address)\n            most = self._desk",
        "            most = self._desk",
        test="gateway/test_customers.py::test_a_free_call_that_is_refused_counts_for_no_other_rate",
    ),
    guard(
        "X5",
        "a window takes little memory",
        "own_windows.py",
        "        if self.grains and ",
        "        if False and ",
        test="test_own_windows.py::test_however_much_a_window_allows_it_takes_little_memory",
    ),
    guard(
        "K4",
        "a settings file that everybody can read holds no secret",
        FILE,
        "if mode & stat.S_IROTH else ()",
        "if False else ()",
        test="test_settings_file.py::test_a_file_that_everybody_can_read_holds_no_secret",
    ),
    guard(
        "K4",
        "a key in the URL of a node is a secret",
        FILE,
        "_has_password(url) or _has_key(url)",
        "_has_password(url)",
        test="test_settings_file.py::test_what_is_secret_is_known_by_its_setting",
    ),
    guard(
        "O8",
        "slow names leave threads to the others",
        LOOKUPS,
        "self._proven_threads if host in self._quick else self._newcomer_threads",
        "self._newcomer_threads",
        test="outbound/test_name_lookups.py::test_slow_names_hold_up_no_name_that_has_answered_before",
    ),
    guard(
        "O8",
        "a name that turned slow is not quick again at once",
        LOOKUPS,
        "        elif self._slow_until_s.get(host, 0.0) <= now_s:\n",
        "        else:\n",
        test="outbound/test_name_lookups.py::test_a_name_that_turned_slow_is_a_newcomer_for_a_while",
    ),
    guard(
        "O8",
        "one name has one thread",
        LOOKUPS,
        "        running = self._running.get(host)\n",
        "        running = None\n",
        test="outbound/test_name_lookups.py::test_one_name_has_one_thread_whatever_its_ports",
    ),
    guard(
        "O6",
        "a facilitator's redirect is not followed",
        "outbound/facilitator_line.py",
        "allow_redirects=False",
        "allow_redirects=True",
        test="outbound/test_facilitator_line.py::test_follows_no_redirect_and_keeps_no_cookie",
    ),
)
