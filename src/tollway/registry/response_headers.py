"""The response headers of an upstream that no caller gets, and those whose URLs are rewritten: two tables, a row for each class of names with its source. Pure.

Every other header is returned as it is. A row of dropped headers names prefixes rather than headers, so that the next header of a family is dropped too. The documentation
has these tables (`python -m tests.kit.response_header_page`), a trial call names what it dropped, and so does the warning `header_not_returned` of a listing.
"""

import re
from dataclasses import dataclass
from functools import partial
from typing import Literal

Group = Literal["framing", "intermediary", "origin", "gateway"]
"""framing: it belongs to one connection. intermediary: a proxy or a cache in front of the gateway obeys it. origin: a browser keeps it for all pages of the
gateway, or shows a dialog in their name. gateway: only the gateway says it."""

GROUP_REASONS: dict[Group, str] = {
    "framing": "it belongs to the connection between your server and the gateway",
    "intermediary": "a proxy or a cache in front of the gateway would obey it",
    "origin": "a browser would keep it for every page and API of the gateway, or ask its reader in the gateway's name",
    "gateway": "only the gateway sends it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedHeaders:
    """A row. `names`: lower case; `*` at one end stands for any text. `schemes`: the row drops only challenges with one of these schemes. `effect`: what the header does.
    `source`: the section that says so."""

    group: Group
    names: tuple[str, ...]
    effect: str
    source: str
    schemes: tuple[str, ...] = ()


def _row(
    group: Group, names: str, effect: str, source: str, *, schemes: tuple[str, ...] = ()
) -> DroppedHeaders:
    return DroppedHeaders(
        group=group, names=tuple(names.split()), effect=effect, source=source, schemes=schemes
    )


_framing, _intermediary = partial(_row, "framing"), partial(_row, "intermediary")
_origin, _gateway = partial(_row, "origin"), partial(_row, "gateway")

_RFC = "https://www.rfc-editor.org/rfc/"

DROPPED_HEADERS = (
    _framing(
        "connection keep-alive te trailer transfer-encoding upgrade content-length http2-settings",
        "framing and options of one connection; the gateway writes its own",
        _RFC + "rfc9110#section-7.6.1",
    ),
    _framing("proxy-*", "between a proxy and its neighbour", _RFC + "rfc9110#section-11.7"),
    # ---- What an intermediary obeys.
    _intermediary(
        "x-accel*",
        "nginx answers from another location, limits the rate, buffers and caches; Squid varies by it",
        "https://nginx.org/en/docs/http/ngx_http_proxy_module.html#proxy_ignore_headers",
    ),
    _intermediary(
        "x-sendfile* x-send-file*",
        "Apache and lighttpd answer with a file of the machine",
        "https://tn123.org/mod_xsendfile/",
    ),
    _intermediary(
        "x-lighttpd-*",
        "lighttpd answers with a file of the machine",
        "https://redmine.lighttpd.net/projects/lighttpd/wiki/X-LIGHTTPD-send-file",
    ),
    _intermediary(
        "x-reproxy-*",
        "H2O and Perlbal answer from another URL or file",
        "https://h2o.examp1e.net/configure/reproxy_directives.html",
    ),
    _intermediary(
        "x-litespeed-* x-lsadc-* lsc-cookie",
        "LiteSpeed answers from another location, stores and purges",
        "https://docs.litespeedtech.com/lscache/devguide/controls/",
    ),
    _intermediary(
        "x-envoy-*",
        "Envoy takes the gateway out of rotation, marks it as degraded or as limited",
        "https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/router_filter#http-headers-consumed-from-upstream",
    ),
    _intermediary(
        "l5d-*",
        "Linkerd closes the connection, or counts the response as a failure",
        "https://linkerd.io/1/reference/http-headers/",
    ),
    _intermediary(
        "fly-replay*",
        "Fly.io sends the request again, to another application",
        "https://fly.io/docs/networking/dynamic-request-routing/",
    ),
    _intermediary(
        "x-kong-limit*",
        "Kong counts the response against a limit of the caller",
        "https://developer.konghq.com/plugins/response-ratelimiting/",
    ),
    _intermediary(
        "x-appengine-blob*",
        "App Engine answers with a file of the operator",
        "https://cloud.google.com/appengine/docs/legacy/standard/python/blobstore",
    ),
    _intermediary(
        "arr-*",
        "IIS and Azure end the affinity of a session",
        "https://learn.microsoft.com/en-us/azure/app-service/configure-common",
    ),
    _intermediary(
        "pagespeed* modpagespeed* x-pagespeed*",
        "PageSpeed for Apache and nginx rewrites the response",
        "https://www.modpagespeed.com/doc/experiment",
    ),
    _intermediary(
        "x-esi*",
        "Apache Traffic Server includes other URLs in the response",
        "https://docs.trafficserver.apache.org/en/latest/admin-guide/plugins/esi.en.html",
    ),
    _intermediary(
        "surrogate-*",
        "Fastly, Varnish, Squid and Akamai store, include and purge",
        "https://www.w3.org/TR/edge-arch/",
    ),
    _intermediary(
        "edge-*",
        "Akamai stores, includes and purges",
        "https://techdocs.akamai.com/property-mgr/docs/edge-control-hdr",
    ),
    _intermediary(
        "*-cache-control",
        "a content delivery network stores by it before Cache-Control",
        _RFC + "rfc9213#section-2.1",
    ),
    _intermediary(
        "cloudflare-* cf-edge-*",
        "Cloudflare stores the response",
        "https://developers.cloudflare.com/cache/concepts/cdn-cache-control/",
    ),
    _intermediary(
        "vercel-*", "Vercel stores and purges", "https://vercel.com/docs/headers/cache-control-headers"
    ),
    _intermediary(
        "netlify-*",
        "Netlify stores, varies and purges",
        "https://docs.netlify.com/build/caching/caching-overview/",
    ),
    _intermediary(
        "cache-tag* cdn-tag* xkey* x-hashtwo*",
        "Cloudflare, Google, Bunny and Varnish purge together what has one tag",
        "https://developers.cloudflare.com/cache/how-to/purge-cache/purge-by-tags/",
    ),
    _intermediary(
        "cache-group*", "a cache invalidates stored responses of the whole origin", _RFC + "rfc9875#section-3"
    ),
    # ---- What a browser keeps for the whole origin.
    _origin("set-cookie*", "cookies", _RFC + "rfc6265#section-4.1"),
    _origin("strict-transport-security", "https only", _RFC + "rfc6797#section-6.1"),
    _origin("public-key-pins*", "keys of the certificate", _RFC + "rfc7469#section-2.1"),
    _origin("expect-ct", "certificate transparency", _RFC + "rfc9163#section-2.1"),
    _origin(
        "clear-site-data",
        "deletes cookies, storage and caches",
        "https://www.w3.org/TR/clear-site-data/#header",
    ),
    _origin("alt-svc", "another server for the origin", _RFC + "rfc7838#section-3"),
    _origin(
        "nel report-to reporting-endpoints",
        "reports of the browser",
        "https://www.w3.org/TR/network-error-logging/#nel-response-header",
    ),
    _origin(
        "service-worker-*",
        "the scope of a service worker",
        "https://www.w3.org/TR/service-workers/#service-worker-allowed",
    ),
    _origin(
        "origin-agent-cluster",
        "the process of the origin",
        "https://html.spec.whatwg.org/multipage/browsers.html#origin-keyed-agent-clusters",
    ),
    _origin(
        "accept-ch accept-ch-* critical-ch",
        "client hints in each later request",
        _RFC + "rfc8942#section-3.1",
    ),
    _origin(
        "sec-* secure-session-*",
        "sessions bound to a device, tokens of the browser",
        "https://w3c.github.io/webappsec-dbsc/#header-secure-session-registration",
    ),
    _origin(
        "set-login idp-signin-*",
        "the state of a sign-in for federated log-in",
        "https://w3c-fedid.github.io/login-status/#login-status-http",
    ),
    _origin(
        "use-as-dictionary",
        "a dictionary that decodes later responses of the origin",
        _RFC + "rfc9842#section-2.1",
    ),
    _origin(
        "speculation-rules",
        "rules by which a browser fetches other pages",
        "https://html.spec.whatwg.org/multipage/speculative-loading.html#the-speculation-rules-header",
    ),
    _origin(
        "activate-storage-access",
        "access to cookies of the origin inside another site",
        "https://privacycg.github.io/storage-access-headers/#activate-storage-access-header",
    ),
    _origin(
        "origin-trial",
        "experimental features",
        "https://googlechrome.github.io/OriginTrials/developer-guide.html",
    ),
    _origin(
        "attribution-reporting-*",
        "advertisements that the browser remembers",
        "https://wicg.github.io/attribution-reporting-api/#headers",
    ),
    _origin(
        "observe-browsing-topics",
        "topics that the browser remembers",
        "https://patcg-individual-drafts.github.io/topics/#the-observe-browsing-topics-http-response-header-header",
    ),
    _origin(
        "shared-storage-*",
        "storage of the origin across sites",
        "https://wicg.github.io/shared-storage/#response-header",
    ),
    _origin(
        "ad-auction-*",
        "auctions of advertisements that the browser keeps",
        "https://wicg.github.io/turtledove/#ad-auction-signals-http-header",
    ),
    _origin(
        "www-authenticate",
        "a dialog for a password under the name of the gateway",
        _RFC + "rfc9110#section-11.6.1",
        schemes=("Basic", "Digest", "NTLM", "Negotiate"),
    ),
    # ---- What the gateway itself says.
    _gateway(
        "tollway-* x-tollway-*", "state, price and id of the call", "callers.md#what-the-gateway-responds"
    ),
    _gateway(
        "x-payment* payment-* settlement-overrides",
        "terms, proofs and receipts of a payment",
        "https://github.com/coinbase/x402/blob/main/specs/transports-v2/http.md",
    ),
    _gateway(
        "www-authenticate",
        "terms of a payment: an automatic client would pay the recipient that they name",
        "https://datatracker.ietf.org/doc/draft-ryan-httpauth-payment/",
        schemes=("Payment",),
    ),
    _gateway(
        "x-signature* accept-signature sign-in-with-x", "proofs of a wallet", _RFC + "rfc9421#section-5.1"
    ),
    _gateway(
        "proxy-status",
        "the gateway's name, and the status or the failure of the upstream",
        _RFC + "rfc9209#section-2",
    ),
    _gateway(
        "idempotency-replayed", "whether the response is a stored one", "callers.md#the-same-request-twice"
    ),
    _gateway("x-request-id", "the id of the request", "operators.md#monitoring"),
    _gateway("cdn-loop", "the gateways on the way", _RFC + "rfc8586#section-2"),
    _gateway(
        "access-control-*",
        "which sites may read the response: all",
        "https://fetch.spec.whatwg.org/#http-responses",
    ),
    _gateway(
        "content-security-policy*",
        "what content may do in the gateway's origin: nothing",
        "https://www.w3.org/TR/CSP3/#csp-header",
    ),
    _gateway(
        "x-content-type-options",
        "no guesses of types",
        "https://fetch.spec.whatwg.org/#x-content-type-options-header",
    ),
)

UrlForm = Literal["redirect", "reference", "links", "text"]
"""redirect: one URL that clients follow; a value that is none is dropped. reference: one URL. links: `Link` of RFC 8288. text: a URL somewhere in the value; only the
listing's secret is removed from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlHeaders:
    """A row. `names`: lower case. `effect`: what the URL is. `source`: the section that says so."""

    form: UrlForm
    names: tuple[str, ...]
    effect: str
    source: str


def _urls(form: UrlForm, names: str, effect: str, source: str) -> UrlHeaders:
    return UrlHeaders(form=form, names=tuple(names.split()), effect=effect, source=source)


URL_HEADERS = (
    _urls(
        "redirect",
        "location",
        "the target of a redirect, or what was created",
        _RFC + "rfc9110#section-10.2.2",
    ),
    _urls("links", "link", "the next page, and other related resources", _RFC + "rfc8288#section-3"),
    _urls("reference", "content-location", "the address of the content", _RFC + "rfc9110#section-8.7"),
    _urls(
        "reference",
        "operation-location azure-asyncoperation",
        "the state of a long-running operation, which a client polls",
        "https://github.com/microsoft/api-guidelines/blob/vNext/azure/ConsiderationsForServiceDesign.md#long-running-operations",
    ),
    _urls(
        "reference",
        "sourcemap x-sourcemap",
        "the source map of a script",
        "https://tc39.es/ecma426/#sec-linking-through-http-headers",
    ),
    _urls(
        "text",
        "refresh",
        "a page that a browser loads after a time; only the listing's secret is removed from it",
        "https://html.spec.whatwg.org/multipage/document-lifecycle.html#the-refresh-header",
    ),
)

_NAMED = {name: row for row in DROPPED_HEADERS if not row.schemes for name in row.names if "*" not in name}
_PREFIXES = {
    name[:-1]: row for row in DROPPED_HEADERS if not row.schemes for name in row.names if name.endswith("*")
}
_SUFFIXES = {
    name[1:]: row for row in DROPPED_HEADERS if not row.schemes for name in row.names if name.startswith("*")
}
_ALL_PREFIXES, _ALL_SUFFIXES = tuple(_PREFIXES), tuple(_SUFFIXES)

FRAMING_NAMES = frozenset(name.encode() for name, row in _NAMED.items() if row.group == "framing")
"""The names of the connection and of framing, in lower case."""

REFUSED_CHALLENGE = re.compile(
    rb"(?:^|,)\s*(?:"
    + "|".join(scheme for row in DROPPED_HEADERS for scheme in row.schemes).encode()
    + rb")(?![!#$%&'*+.^_`|~0-9A-Za-z-])",
    re.I,
)
"""Finds in `WWW-Authenticate` a challenge (RFC 9110 §11.6.1) that no caller gets. A value with one is dropped whole."""


def find_dropped(name: str) -> DroppedHeaders | None:
    """The row that drops a header of this name in lower case, with any value; None for a header that is returned.

    An underscore counts as a hyphen, because some servers read it so."""
    name = name.replace("_", "-")
    row = _NAMED.get(name)
    if row is not None:
        return row
    if name.startswith(_ALL_PREFIXES):
        return next(row for prefix, row in _PREFIXES.items() if name.startswith(prefix))
    if name.endswith(_ALL_SUFFIXES):
        return next(row for suffix, row in _SUFFIXES.items() if name.endswith(suffix))
    return None


_DIRECTIVE = re.compile(
    rb"[ \t]*(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+)(?P<argument>=(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+|\"(?:[^\"\\]|\\.)*\"))?[ \t]*(?:,|\Z)|[ \t]*(?:,|\Z)"
)
_FOR_SHARED_CACHES = frozenset({b"public", b"s-maxage", b"must-understand"})
"""Directives that let a shared cache store (RFC 9111 §5.2.2). `must-understand` is one: with it a cache ignores `no-store`."""
UNSTORED = b"private, no-store"


def make_private(value: bytes) -> bytes:
    """A value of `Cache-Control` that keeps the response out of shared caches: `private` or `no-store` without an argument stands in it, and nothing that
    takes it back (RFC 9111 §5.2.2). `private="field"` is no such directive: it allows the rest of the response. A value that is no list of directives becomes
    `private, no-store`."""
    kept: list[bytes] = []
    is_private = is_changed = False
    at, end = 0, len(value)
    while at < end:
        found = _DIRECTIVE.match(value, at)
        if found is None:
            return UNSTORED
        at = found.end()
        name, argument = found["name"], found["argument"]
        if name is None:  # an empty element of the list
            continue
        lower = name.lower()
        if lower in _FOR_SHARED_CACHES or (lower == b"private" and argument is not None):
            is_changed = True
            continue
        is_private = is_private or (argument is None and lower in (b"private", b"no-store"))
        kept.append(name + (argument or b""))
    if is_private and not is_changed:
        return value
    return b", ".join(kept if is_private else [b"private", *kept])
