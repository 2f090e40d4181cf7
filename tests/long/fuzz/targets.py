"""The fuzzed functions: each reader of untrusted bytes, as a function of bytes. It parses its input or refuses it in
the promised way; any other error is a finding. Pure, and used by two runners: `run.py` and `test_corpus.py`."""

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType
from urllib.parse import unquote_to_bytes

from pydantic_core import to_json

from tests.kit.listings import sample_listing, show_listing
from tests.kit.payer import USDC
from tollway.chain.responses import UnusableResponse, parse_batch
from tollway.chain.signer import decode_item
from tollway.client.provider import ForwardedRefused, ForwardedVerifier, read_directory
from tollway.client.quote import read_transfer_offers
from tollway.client.x402 import read_receipt, read_x402_offers
from tollway.discovery.agent_document import AGENT_BYTES_MAX, describe_for_agents, json_size
from tollway.discovery.operations import list_operations
from tollway.discovery.safe_text import clean_prose
from tollway.discovery.tools import DESCRIPTION_LENGTH_MAX, api_tool
from tollway.errors import Problem, Refusal
from tollway.gateway.headers import check_control_headers
from tollway.gateway.request_signing import BodyCoverage, UpstreamSigner, cover_body
from tollway.gateway.target import Target, build_upstream_target, split_target
from tollway.identity.http_signatures import SignedRequest, read_http_proofs
from tollway.identity.signatures import parse_signature
from tollway.identity.siwe import SignInProof, format_sign_in, parse_origin, parse_sign_in, read_siwx
from tollway.ids import Address
from tollway.limits import DEFAULT_LIMITS
from tollway.outbound.http1 import ChunkedBody, HeadLimits, ResponseMalformed, parse_head
from tollway.outbound.policy import Allowed, Denied, Endpoint, check_address, parse_endpoint
from tollway.payments.authorization_check import parse_presented
from tollway.payments.mpp import Challenger, ChallengeRoute
from tollway.payments.proof import format_binding, parse_binding, parse_proof
from tollway.registry.draft import Draft, DraftRules, edit_listing, find_document_fault, parse_draft
from tollway.registry.listing import UpstreamAuth
from tollway.registry.listing_patch import parse_patch
from tollway.registry.openapi import ProviderDocument, YamlRefused, parse_yaml_object
from tollway.registry.paths import normal_path
from tollway.registry.search_tokens import query_words
from tollway.registry.text import find_refused_character
from tollway.web.api.listing_edits import make_endpoint_check
from tollway.web.api.listing_routes import parse_listing_query
from tollway.web.http.json import parse_json_object

NOW_S = 1_795_239_000
ORIGIN = parse_origin("https://gw.example.com")
SIGNER = UpstreamSigner.derive([b"\x07" * 32])
CHALLENGER = Challenger(secret=b"\x01" * 32, realm="gw.example.com")
ROUTE = ChallengeRoute(api_id="api_quotes", method="GET", target="/quote")
RULES = DraftRules(
    assets=(USDC,),
    main_networks=frozenset({USDC.chain_id}),
    allow_private_endpoints=False,
    check_endpoint=make_endpoint_check(allow_private=False),
)
HEAD_LIMITS = HeadLimits(head_bytes=65_536, line_bytes=8_192, headers=100)
PROVIDER = Address(b"\xaa" * 20)
TOOL_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}")
BASE = "/base/path"
ENDPOINT = "https://api.example.com" + BASE


class Broken(Exception):
    """A promise that was not kept."""


def check(is_kept: bool, promise: str) -> None:
    if not is_kept:
        raise Broken(promise)


def _headers(raw: bytes) -> list[tuple[bytes, bytes]]:
    """`name: value` lines, as a server would hand them over."""
    pairs = (line.partition(b":") for line in raw.split(b"\n"))
    return [(name.strip().lower(), value.strip()) for name, _, value in pairs if name.strip()]


def proofs(raw: bytes) -> None:
    """Payment proofs: X-Payment-Tx, X-Signature, X-Signature-Params, X-Payment-Network."""
    outcome = parse_proof(_headers(raw))
    if outcome is not None and not isinstance(outcome, Problem):
        check(len(outcome.tx_hash) == 32, "a hash has 32 bytes")


def bindings(raw: bytes) -> None:
    """X-Signature-Params alone: what is read is written again the same way."""
    text = raw.decode("latin-1")
    try:
        binding = parse_binding(text)
    except ValueError:
        return
    check(parse_binding(format_binding(binding)) == binding, "a binding survives being written")


def signatures(raw: bytes) -> None:
    try:
        parse_signature(raw.decode("latin-1"))
    except ValueError:
        return


def credentials(raw: bytes) -> None:
    """x402 of both versions and MPP, in headers; never raises."""
    parse_presented(_headers(raw), challenger=CHALLENGER, find_route=lambda: ROUTE, now_s=NOW_S)


def control_headers(raw: bytes) -> None:
    check_control_headers(_headers(raw), limits=DEFAULT_LIMITS)


def sign_in(raw: bytes) -> None:
    """SIWE: a message that is read is the message that was signed, byte for byte."""
    try:
        text = raw.decode()
        message = parse_sign_in(text)
    except ValueError:
        return
    check(format_sign_in(message) == text, "what is read is what was signed")


def siwx(raw: bytes) -> None:
    outcome = read_siwx(raw.decode("latin-1"))
    check(isinstance(outcome, SignInProof | Problem), "a header is read or refused")


def signed_requests(raw: bytes) -> None:
    """ERC-8128 over structured fields (RFC 9421, RFC 8941)."""
    head, _, body = raw.partition(b"\n\n")
    first, _, lines = head.partition(b"\n")
    path, _, query = first.partition(b"?")
    request = SignedRequest(
        method="POST", raw_path=path or b"/", query=query, headers=_headers(lines), body=body
    )
    read_http_proofs(request, origin=ORIGIN, limits=DEFAULT_LIMITS, now_ms=NOW_S * 1000)


def listings(raw: bytes) -> None:
    """The body of a create, from bytes to a draft."""
    try:
        body = parse_json_object(raw)
    except Refusal:
        return
    draft = parse_draft(body, RULES, previous=None)
    if isinstance(draft, Draft):
        check(find_refused_character(draft.name, is_multiline=False) is None, "a name hides nothing")
        check(bool(draft.name.strip()), "a name is not blank")
        check(isinstance(parse_endpoint(draft.endpoint, allow_private=False), Endpoint), "it may be dialled")


PATCHED = sample_listing(
    provider=PROVIDER,
    networks=(USDC.chain_id,),
    tags=("a",),
    upstream_auth=UpstreamAuth(location="header", name="X-Key", value="s3cret"),
)


def patches(raw: bytes) -> None:
    """A merge patch, from bytes to the edited listing: sent twice it changes nothing more, and a kept secret stays at its origin."""
    try:
        patch = parse_json_object(raw)
    except Refusal:
        return
    draft = parse_patch(patch, RULES, previous=PATCHED)
    if not isinstance(draft, Draft):
        return
    once = edit_listing(draft, PATCHED, now_ms=1)
    again = parse_patch(patch, RULES, previous=once)
    check(isinstance(again, Draft), "a patch that was valid is valid again")
    assert isinstance(again, Draft)
    check(edit_listing(again, PATCHED, now_ms=1) == once, "a patch twice is the patch once")
    keeps_secret = once.upstream_auth == PATCHED.upstream_auth and "upstreamAuth" not in patch
    before, after = (parse_endpoint(one.endpoint, allow_private=False) for one in (PATCHED, once))
    assert isinstance(before, Endpoint)
    is_same_origin = isinstance(after, Endpoint) and after.origin == before.origin
    check(not keeps_secret or is_same_origin, "a kept secret stays at its origin")


def queries(raw: bytes) -> None:
    """The query of a search, and the words of it."""
    try:
        query = parse_listing_query(raw)
    except Refusal:
        return
    check(all(query_words(word) for word in query_words(query.words or "")), "a word is a word")


def documents(raw: bytes) -> None:
    """A provider's document, from JSON to the operations that are sold."""
    try:
        content = parse_json_object(raw)
    except Refusal:
        return
    if find_document_fault(content) is not None:
        return
    document = ProviderDocument(content)
    for operation in document.operations:
        list(document.list_parameters(operation))
    listing = sample_listing(provider=PROVIDER, openapi=content)
    operations = list_operations(listing)
    check(len({sold.tool for sold in operations}) == len(operations), "names of tools are unique")
    for number, page in enumerate(describe_for_agents(show_listing(openapi=content), DEFAULT_LIMITS)):
        is_single = number > 0 and len(page["operations"]) == 1
        check(is_single or json_size(page) <= AGENT_BYTES_MAX, "a page of the agent document is small")
    for sold in operations:
        check(find_refused_character(sold.summary, is_multiline=True) is None, "a summary hides nothing")
        json.dumps(sold.input_schema).encode()
        check(TOOL_NAME.fullmatch(sold.tool) is not None, "a name of a tool is plain")
        description = api_tool(listing, sold).description
        check(len(description) <= DESCRIPTION_LENGTH_MAX, "a description is cut")
        check(description.count('"') == 2, "the provider's words stay within their quotation marks")


def yaml_documents(raw: bytes) -> None:
    try:
        content = parse_yaml_object(raw)
    except YamlRefused:
        return
    json.dumps(content)


def words(raw: bytes) -> None:
    shown = clean_prose(raw.decode("utf-8", "replace"), 500)
    check(len(shown) <= 500, "prose is cut")
    check("](" not in shown and "javascript:" not in shown.lower(), "no link of theirs is left")
    check(find_refused_character(shown, is_multiline=True) is None, "prose hides nothing")


def answer_heads(raw: bytes) -> None:
    """The head of an upstream's answer."""
    try:
        head = parse_head(raw, method="GET", limits=HEAD_LIMITS)
    except ResponseMalformed:
        return
    for name, value in head.headers:
        check(not set(b"\r\n\0") & set(name + value), "a field is one line")
    check(not (head.is_chunked and head.length is not None), "one framing")


def chunks(raw: bytes) -> None:
    """A chunked body: whole, in two pieces and byte by byte, it is the same body or none at all."""
    whole = _read_chunks(raw, len(raw) or 1)
    check(whole == _read_chunks(raw, 1), "how it is cut does not matter")
    check(whole == _read_chunks(raw, max(1, len(raw) // 2)), "how it is cut does not matter")


def _read_chunks(raw: bytes, step: int) -> bytes | None:
    body, found = ChunkedBody(), b""
    for start in range(0, len(raw), step):
        if body.is_whole:
            break
        try:
            found += b"".join(body.feed(raw[start : start + step]))
        except ResponseMalformed:
            return None
    return found if body.is_whole else None


def targets(raw: bytes) -> None:
    """A path below a listing stays below its base, however a server decodes it."""
    path, _, query = raw.partition(b"?")
    split = split_target(b"/api/v2/gateway/api_quotes" + path, query)
    if not isinstance(split, Target):
        return
    normal_path(split.rest)
    endpoint = parse_endpoint(ENDPOINT, allow_private=False)
    check(isinstance(endpoint, Endpoint), "the endpoint is one")
    if not isinstance(endpoint, Endpoint):
        return
    target = build_upstream_target(endpoint, split.rest, split.query)
    if isinstance(target, Problem):
        return
    check(not set(target) & set("\r\n\0 #"), "a target is one word")
    reading = target.partition("?")[0].encode()
    for _ in range(3):
        check(_resolve(reading).startswith(BASE.encode()), "the path stays below the base")
        reading = unquote_to_bytes(reading)


def _resolve(path: bytes) -> bytes:
    kept: list[bytes] = []
    for segment in path.replace(b"\\", b"/").split(b"/"):
        if segment == b"..":
            kept = kept[:-1]
        elif segment not in (b"", b"."):
            kept.append(segment)
    return b"/" + b"/".join(kept)


def endpoints(raw: bytes) -> None:
    """URLs of providers: what is let through is a public host, written in one way."""
    outcome = parse_endpoint(raw.decode("utf-8", "replace"), allow_private=False)
    if isinstance(outcome, Endpoint):
        again = parse_endpoint(outcome.href, allow_private=False)
        check(isinstance(again, Endpoint) and again.origin == outcome.origin, "its normal form is itself")
        check(outcome.host.isascii() and outcome.host == outcome.host.lower(), "a host is plain")


def addresses(raw: bytes) -> None:
    outcome = check_address(raw.decode("latin-1"), allow_private=False)
    check(isinstance(outcome, Allowed | Denied), "an address is judged")
    if isinstance(outcome, Allowed):
        check(outcome.address.is_global, "only global addresses are dialled")


def node_answers(raw: bytes) -> None:
    try:
        parse_batch(raw, [1, 2])
    except UnusableResponse:
        return


def rlp(raw: bytes) -> None:
    try:
        decode_item(raw)
    except ValueError:
        return


def offers(raw: bytes) -> None:
    """What our client reads of a 402 of a gateway that may not be ours."""
    text = raw.decode("latin-1")
    read_receipt({"payment-response": text})
    try:
        problem = json.loads(raw)
    except ValueError:
        problem = {}
    told = problem if isinstance(problem, dict) else {}
    read_transfer_offers(told)
    read_x402_offers({"payment-required": text}, told)


def forwarded(raw: bytes) -> None:
    """The input of a provider's verifier, with its known keys: refused, because no test can sign."""
    verifier = ForwardedVerifier(
        "https://gw.example.com",
        endpoint=ENDPOINT,
        api_ids=["api_1"],
        fetch=lambda url: to_json(SIGNER.describe()),
        now_s=lambda: NOW_S,
    )
    target, _, head = raw.partition(b"\n")
    try:
        told = verifier.verify("GET", target, _headers(head))
    except ForwardedRefused:
        return
    check(told.call_id == "call_1", "only what was signed is taken")


def key_directories(raw: bytes) -> None:
    try:
        keys = read_directory(raw)
    except ValueError:
        return
    check(all(len(name) == 43 for name in keys), "a key is named by its thumbprint")


def given_digests(raw: bytes) -> None:
    """A caller's Content-Digest: signed as it stands, or not at all."""
    cover = cover_body(_pieces(), length=7, declared=raw)
    check(
        cover == BodyCoverage(length=7) or cover.digest == raw.decode("latin-1").strip(" \t"),
        "as it was given",
    )
    check("\n" not in (cover.digest or "") and "\r" not in (cover.digest or ""), "one line")


async def _pieces() -> AsyncIterator[bytes]:
    yield b""


TARGETS: Mapping[str, Callable[[bytes], None]] = MappingProxyType(
    {
        one.__name__: one
        for one in (
            *(proofs, bindings, signatures, credentials, control_headers, sign_in, siwx, signed_requests),
            *(listings, patches, queries, documents, yaml_documents, words),
            *(answer_heads, chunks, targets, endpoints, addresses, node_answers, rlp, offers),
            *(forwarded, key_directories, given_digests),
        )
    }
)
