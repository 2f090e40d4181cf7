"""Guards of the pages for people: their policy, their escaping, and the rule that says when HTML replaces JSON (threat T6)."""

from tests.guards.guard import guard

HEADERS = "web/test_page_routes.py::test_every_page_has_the_headers_of_a_page_and_no_cors"
WORDS = "web/test_page_routes.py::test_words_of_a_provider_stay_text"
NAVIGATES = "web/test_page_response.py::test_only_a_browser_that_navigates_is_shown_html"
PROOF = "web/test_page_response.py::test_a_request_with_a_proof_is_no_navigation"

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
        "web.middleware:ResponseHeaders",
        '() if scope["state"].get(IS_PAGE) else _RESPONSE_HEADERS',
        "_RESPONSE_HEADERS",
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
)
