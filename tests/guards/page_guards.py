"""Guards of the pages for people: their policy, their escaping, and the rule that says when HTML replaces JSON (threat T6), and what their module asks a wallet for (threat T7)."""

from tests.guards.guard import guard

HEADERS = "web/test_page_routes.py::test_every_page_has_the_headers_of_a_page_and_no_cors"
WORDS = "web/test_page_routes.py::test_words_of_a_provider_stay_text"
NAVIGATES = "web/test_page_response.py::test_only_a_browser_that_navigates_is_shown_html"
PROOF = "web/test_page_response.py::test_a_request_with_a_proof_is_no_navigation"

TRY, WALLET = "web/pages/ui/try.js", "web/pages/ui/wallet.js"
TRIED = "browser/test_try.py"

PAGE_GUARDS = (
    guard(
        "T6",
        "templates escape",
        "web.page_renderer:_make_environment",
        "autoescape=True",
        "autoescape=False",
        test=WORDS,
    ),
    guard(
        "T6",
        "hidden characters of a search stay out of the page",
        "web.page_views:view_filters",
        'words=" ".join(drop_refused_characters(given.get("q", "")).split())',
        'words=" ".join(given.get("q", "").split())',
        test=WORDS,
    ),
    guard(
        "T6",
        "scripts are named by path, not by origin",
        "web.page_renderer:content_security_policy",
        'files = " ".join(f"{origin}/ui/" for origin in origins)',
        "files = \"'self'\"",
        test=HEADERS,
    ),
    guard(
        "T6",
        "a page is not framed",
        "web.page_renderer:PageRenderer.headers",
        '"X-Frame-Options": "DENY"',
        '"X-Frame-Options": "SAMEORIGIN"',
        test=HEADERS,
    ),
    guard(
        "T6",
        "no CORS header is on a page",
        "web.middleware:_headers_of",
        'if scope["state"].get(IS_PAGE):',
        "if False:",
        test=HEADERS,
    ),
    guard(
        "T6",
        "a proof keeps the JSON",
        "web.page_response:is_navigation",
        "        if name in _PROOFS:\n            return False\n",
        "",
        test=PROOF,
    ),
    guard(
        "T6",
        "only a navigation is shown HTML",
        "web.page_response:is_navigation",
        'mode == b"navigate" and ',
        "",
        test=NAVIGATES,
    ),
    guard(
        "T6",
        "only a document is shown HTML, no frame",
        "web.page_response:is_navigation",
        'target == b"document" and ',
        "",
        test=NAVIGATES,
    ),
    guard(
        "T6",
        "an accepted type is named, not implied",
        "web.page_response:is_navigation",
        ' and names_html(accept.decode("latin-1"))',
        "",
        test=NAVIGATES,
    ),
    guard(
        "T7",
        "a page signs for no payee that it did not show",
        TRY,
        "const option = same.find((/** @type {any} */ one) => lower(one.payTo) === lower(way.payTo));",
        "const option = same[0];",
        test=f"{TRIED}::test_another_payee_stops",
    ),
    guard(
        "T7",
        "a higher price is asked for again",
        TRY,
        "if (option.amount !== agreed) {",
        "if (false) {",
        test=f"{TRIED}::test_a_higher_price_is_asked_again",
    ),
    guard(
        "T7",
        "a click of a script pays nothing",
        TRY,
        "isPressed = event.isTrusted;",
        "isPressed = true;",
        test=f"{TRIED}::test_a_click_of_a_script_pays_nothing",
    ),
    guard(
        "T7",
        "the button rests when the page comes to the front",
        TRY,
        'addEventListener("focus", () => this.rest());',
        "",
        test=f"{TRIED}::test_the_button_is_dead_for_a_moment_after_the_page_came_to_the_front",
    ),
    guard(
        "T7",
        "nothing is signed on another chain",
        WALLET,
        'if ((await readChain(wallet)) !== chain.chainId) throw new WalletRefused("wrongChain");',
        "",
        test=f"{TRIED}::test_a_wallet_that_stays_on_another_chain_signs_nothing",
    ),
    guard(
        "T7",
        "the account of the ticket is the one that signs",
        TRY,
        'if (lower(now) !== lower(from)) throw new Stop(this.say("accountChanged"));',
        "",
        test=f"{TRIED}::test_an_account_that_changes_signs_nothing",
    ),
    guard(
        "T7",
        "a payment is written down before it is sent",
        TRY,
        'intent.state = "shown";\n    this.writeIntent(intent);\n    this.slip.note(this.say("nothingMoved"));',
        'intent.state = "shown";\n    this.slip.note(this.say("nothingMoved"));',
        test=f"{TRIED}::test_a_reload_after_the_signature_sends_the_same_payment",
    ),
    guard(
        "T7",
        "a held payment is not forgotten",
        TRY,
        'if (state === "held") this.offerToAskAgain(intent);\n    else this.forgetIntent();',
        "this.forgetIntent();",
        test="browser/test_try_outcomes.py::test_a_held_call_is_not_paid_again_after_a_reload",
    ),
    guard(
        "T7",
        "a transfer is written down before the wallet sends it",
        TRY,
        "price: this.priceOf(way, option) };\n    this.writeIntent(intent);\n    try {\n      intent.transaction",
        "price: this.priceOf(way, option) };\n    try {\n      intent.transaction",
        test="browser/test_try_outcomes.py::test_a_transaction_whose_hash_never_came_pays_by_its_hash",
    ),
)
