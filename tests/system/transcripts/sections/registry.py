"""Listings over the control plane: publishing, changing, finding, describing, retiring, owning."""

import json

from tests.system.transcripts.harness import API, Harness
from tests.system.transcripts.signing import ORIGIN, Account

PROVIDER, ALICE, OTHER = Account("provider"), Account("alice"), Account("other")
MERGE_PATCH = "application/merge-patch+json"
SPEC = {
    "openapi": "3.1.0",
    "info": {"title": "Weather", "version": "1"},
    "paths": {
        "/v1/cities/{city}": {
            "get": {
                "summary": "The weather of a city",
                "operationId": "getCity",
                "parameters": [
                    {"name": "city", "in": "path", "required": True, "schema": {"type": "string"}},
                    {"name": "days", "in": "query", "required": True, "schema": {"type": "integer"}},
                ],
                "responses": {"200": {"description": "ok"}},
            }
        },
        "/v1/orders": {
            "post": {
                "operationId": "order",
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {
                            "schema": {"type": "object", "properties": {"q": {"type": "string"}}}
                        }
                    },
                },
                "responses": {"200": {"description": "ok"}},
            }
        },
    },
}


def play(harness: Harness) -> None:
    play_publish(harness)
    play_invalid(harness)
    play_changes(harness)
    play_lists(harness)
    play_documents(harness)
    play_ownership(harness)
    play_patches(harness)
    play_trials(harness)


def draft(harness: Harness, **fields: object) -> dict[str, object]:
    plainly = {
        "name": "Quotes",
        "pricePerRequest": "0.01",
        "currency": "USDC",
        "endpoint": harness.upstream.url,
    }
    return {**plainly, **fields}


def play_publish(harness: Harness) -> None:
    with harness.section("publishing"):
        made = harness.control("the least", PROVIDER, "POST", "/apis", draft(harness))
        api = made.json["id"]
        harness.ask("read", "GET", f"{API}/apis/{api}")
        harness.ask("HEAD", "HEAD", f"{API}/apis/{api}")
        harness.ask("unchanged", "GET", f"{API}/apis/{api}", [("If-None-Match", made.find("ETag") or "")])
        harness.ask("changed", "GET", f"{API}/apis/{api}", [("If-None-Match", '"other"')])
        harness.ask("unknown", "GET", f"{API}/apis/api_00000000000000000000000000")
        harness.control("a dry run", PROVIDER, "POST", "/apis?dryRun=true", draft(harness, name="Dry"))
        whole = draft(
            harness,
            name="Everything",
            description="All that can be said.",
            payTo=OTHER.address,
            networks=["eip155:421614"],
            methods=["GET", "POST"],
            tags=["weather", "Test"],
            openapi=SPEC,
            operations=[{"method": "GET", "path": "/v1/cities/{city}", "pricePerRequest": "0.02"}],
            otherPaths="refuse",
            chargeOn="answered",
            timeoutSeconds=5,
            forwardHeaders=["X-Mine"],
            upstreamAuth={"in": "header", "name": "X-Key", "value": "secret"},
            signature="bound",
            rateLimit={"calls": 5, "perSeconds": 60},
            status="paused",
            forwardSignature="none",
        )
        harness.control("everything", PROVIDER, "POST", "/apis", whole)
        again = [("Idempotency-Key", "create-1")]
        harness.control("with a key", PROVIDER, "POST", "/apis", draft(harness, name="Keyed"), again)
        harness.control("with a key again", PROVIDER, "POST", "/apis", draft(harness, name="Keyed"), again)
        harness.control(
            "another body under the key", PROVIDER, "POST", "/apis", draft(harness, name="Else"), again
        )
        harness.control("of another wallet", ALICE, "POST", "/apis", draft(harness, name="Keyed"), again)
        harness.control(
            "a key too long", PROVIDER, "POST", "/apis", draft(harness), [("Idempotency-Key", "k" * 300)]
        )


def play_invalid(harness: Harness) -> None:
    rows: dict[str, object] = {
        "no body": b"",
        "no JSON": b"{",
        "a list": [],
        "nothing in it": {},
        "a member twice": b'{"name":"a","name":"b"}',
        "too deep": ("[" * 300 + "]" * 300).encode(),
        "not UTF-8": b'{"name":"\xff"}',
        "an unknown field": draft(harness, colour="red"),
        "a name too long": draft(harness, name="n" * 121),
        "a name with controls": draft(harness, name="a\u202eb"),
        "no price": draft(harness, pricePerRequest="free"),
        "a price as a number": draft(harness, pricePerRequest=0.01),
        "a negative price": draft(harness, pricePerRequest="-1"),
        "too many decimals": draft(harness, pricePerRequest="0.0000001"),
        "a currency that nobody takes": draft(harness, currency="DOGE"),
        "an endpoint that is none": draft(harness, endpoint="ftp://files.example/"),
        "an endpoint with a user": draft(harness, endpoint="https://me:pw@provider.example/"),
        "an endpoint with a query": draft(harness, endpoint="https://provider.example/?a=b"),
        "an endpoint that is this gateway": draft(harness, endpoint=ORIGIN + "/api"),
        "an endpoint at a port below": draft(harness, endpoint="http://127.0.0.1:25/"),
        "an endpoint of a cloud": draft(harness, endpoint="http://169.254.169.254/latest"),
        "a wrong checksum": draft(harness, payTo=OTHER.address.swapcase().replace("0X", "0x")),
        "a network that is not there": draft(harness, networks=["eip155:1"]),
        "a network that is none": draft(harness, networks=["base"]),
        "no networks": draft(harness, networks=[]),
        "methods": draft(harness, methods=["get", "TRACE"]),
        "tags": draft(harness, tags=["a", "b", "c", "d", "e", "f"]),
        "a time": draft(harness, timeoutSeconds=0),
        "headers": draft(harness, forwardHeaders=["Cookie", "X-Payment-Tx"]),
        "a secret in a control header": draft(
            harness, upstreamAuth={"in": "header", "name": "Host", "value": "x"}
        ),
        "a secret without a value": draft(harness, upstreamAuth={"in": "header", "name": "X-Key"}),
        "a charge": draft(harness, chargeOn="never"),
        "a status": draft(harness, status="retired"),
        "a signature": draft(harness, signature="none"),
        "a rate": draft(harness, rateLimit={"calls": 0, "perSeconds": 1}),
        "operations": draft(harness, operations=[{"method": "GET", "path": "v1", "pricePerRequest": "1"}]),
        "one operation twice": draft(
            harness,
            operations=[
                {"method": "GET", "path": "/a/{b}", "pricePerRequest": "1"},
                {"method": "GET", "path": "/a/{c}", "pricePerRequest": "2"},
            ],
        ),
        "a document that is none": draft(harness, openapi={"swagger": "2.0"}),
        "a document by URL that is not there": draft(harness, openapiUrl=harness.upstream.url + "/nothing"),
        "a document twice": draft(harness, openapi=SPEC, openapiUrl=harness.upstream.url + "/spec.json"),
        "several things at once": draft(harness, name="", pricePerRequest="x", currency="", tags="a"),
    }
    with harness.section("drafts that are refused"):
        for title, content in rows.items():
            harness.control(title, PROVIDER, "POST", "/apis", content)
        harness.control("another media type", PROVIDER, "POST", "/apis", draft(harness), kind="text/plain")
        harness.ask("unsigned", "POST", f"{API}/apis", [("Content-Type", "text/plain")], b"{}")
        harness.ask("too large", "POST", f"{API}/apis", [("Content-Length", "3000000")], b"")
        harness.control("an unknown parameter", PROVIDER, "POST", "/apis?dry=yes", draft(harness))


def play_changes(harness: Harness) -> None:
    with harness.section("changing and retiring"):
        made = harness.control("made", PROVIDER, "POST", "/apis", draft(harness, name="Changing"))
        api, etag = made.json["id"], made.find("ETag") or ""
        path = f"/apis/{api}"
        harness.control("by somebody else", ALICE, "PUT", path, draft(harness, name="Stolen"))
        harness.ask(
            "by nobody",
            "PUT",
            API + path,
            [("Content-Type", "application/json")],
            json.dumps(draft(harness)).encode(),
        )
        harness.control("under an old tag", PROVIDER, "PUT", path, draft(harness), [("If-Match", '"old"')])
        secret = {"in": "query", "name": "key", "value": "secret"}
        harness.control(
            "under its tag",
            PROVIDER,
            "PUT",
            path,
            draft(harness, name="Changed", upstreamAuth=secret),
            [("If-Match", etag)],
        )
        harness.control("under the same tag", PROVIDER, "PUT", path, draft(harness), [("If-Match", etag)])
        harness.control("any tag", PROVIDER, "PUT", path, draft(harness, name="Any"), [("If-Match", "*")])
        harness.control(
            "the secret goes", PROVIDER, "PUT", path, draft(harness, name="Any", upstreamAuth=None)
        )
        harness.control("invalid", PROVIDER, "PUT", path, draft(harness, pricePerRequest="x"))
        harness.control("PATCH", PROVIDER, "PATCH", path, {"name": "Patched"})
        harness.control("POST", PROVIDER, "POST", path, {})
        harness.control("retired by somebody else", ALICE, "DELETE", path)
        harness.control("retired", PROVIDER, "DELETE", path)
        harness.control("retired twice", PROVIDER, "DELETE", path)
        harness.control("changed", PROVIDER, "PUT", path, draft(harness))
        harness.ask("read", "GET", API + path)
        harness.control("of nothing", PROVIDER, "DELETE", "/apis/api_00000000000000000000000000")


def play_patches(harness: Harness) -> None:
    with harness.section("patches"):
        operations = [{"method": "GET", "path": "/echo", "pricePerRequest": "0.5"}]
        secret = {"in": "query", "name": "key", "value": "secret"}
        whole = draft(harness, name="Patched", tags=["a"], operations=operations, upstreamAuth=secret)
        made = harness.control("made", PROVIDER, "POST", "/apis", whole)
        path, etag = f"/apis/{made.json['id']}", made.find("ETag") or ""
        harness.ask("OPTIONS", "OPTIONS", API + path)
        rows: dict[str, object] = {
            "a price": {"pricePerRequest": "0.02"},
            "nothing": {},
            "the same price": {"pricePerRequest": "0.02"},
            "the value of the secret": {"upstreamAuth": {"value": "other"}},
            "operations go": {"operations": None},
            "a default": {"tags": None},
            "a name that is required": {"name": None},
            "an unknown member": {"colour": None},
            "an endpoint, and the secret stays": {"endpoint": "http://127.0.0.2:1"},
            "a document": {"openapi": SPEC},
            "an array": [],
            "no JSON": b"{",
        }
        for title, patch in rows.items():
            harness.control(title, PROVIDER, "PATCH", path, patch, kind=MERGE_PATCH)
        harness.control(
            "a dry run", PROVIDER, "PATCH", path + "?dryRun=true", {"name": "Dry"}, kind=MERGE_PATCH
        )
        harness.control(
            "under an old tag", PROVIDER, "PATCH", path, {"name": "x"}, [("If-Match", etag)], kind=MERGE_PATCH
        )
        harness.control("by somebody else", ALICE, "PATCH", path, {"name": "x"}, kind=MERGE_PATCH)
        body = draft(harness, operations=operations)
        harness.control("operations again", PROVIDER, "PUT", path, body)
        harness.control("PUT without operations", PROVIDER, "PUT", path, draft(harness))
        harness.control("retired", PROVIDER, "DELETE", path)
        harness.control("of a retired one", PROVIDER, "PATCH", path, {"name": "x"}, kind=MERGE_PATCH)


def play_trials(harness: Harness) -> None:
    """Nothing of a trial is in the ledger: no exchange of this section shows a row."""
    with harness.section("trial calls"):
        api = harness.publish(PROVIDER, name="Tried", status="paused")
        path = f"/apis/{api}/trial"
        harness.control("of a paused one", PROVIDER, "POST", path, {"path": "/echo?x=1"})
        sent = {"method": "POST", "path": "/echo", "headers": {"Content-Type": "text/plain"}, "body": "hello"}
        harness.control("with a body", PROVIDER, "POST", path, sent)
        harness.control("without a body of its own", PROVIDER, "POST", path)
        harness.control(
            "invalid", PROVIDER, "POST", path, {"method": "get", "path": "x", "headers": {"Host": "x"}}
        )
        harness.control("out of the endpoint", PROVIDER, "POST", path, {"path": "/../x"})
        harness.control("by somebody else", ALICE, "POST", path, {})
        harness.ask("by nobody", "POST", API + path)
        harness.control("of nothing", PROVIDER, "POST", "/apis/api_00000000000000000000000000/trial", {})


def play_lists(harness: Harness) -> None:
    with harness.section("lists"):
        for name, price, tags in (
            ("Weather of Wien", "0.3", ["weather"]),
            ("Weather of Graz", "0.1", ["weather", "graz"]),
            ("Trains", "0.2", []),
        ):
            harness.publish(OTHER, name=name, pricePerRequest=price, tags=tags, description=f"About {name}.")
        queries = (
            "",
            "?limit=2",
            "?limit=2&page=2",
            "?page=99",
            "?q=weather",
            "?q=weather+graz&sort=relevance",
            "?tag=weather",
            f"?provider={OTHER.address}",
            f"?provider={OTHER.address.lower()}&sort=name",
            "?currency=USDC&sort=price",
            "?currency=USDC&sort=-price&limit=3",
            "?currency=USDC&maxPrice=0.1",
            "?network=eip155:421614",
            "?minSuccessRate=0.5",
            "?verified=true",
            "?limit=0",
            "?limit=101",
            "?page=0",
            "?page=x",
            "?sort=price",
            "?sort=colour",
            "?maxPrice=1",
            "?colour=red",
            "?limit=1&limit=2",
            "?provider=0x12",
            "?q=",
        )
        for query in queries:
            harness.ask(f"list {query}", "GET", f"{API}/apis{query}")
        harness.ask("HEAD", "HEAD", f"{API}/apis")
        harness.ask("DELETE", "DELETE", f"{API}/apis")


def play_documents(harness: Harness) -> None:
    with harness.section("documents of one API"):
        operations = [{"method": "GET", "path": "/v1/cities/{city}", "pricePerRequest": "0.02"}]
        api = harness.publish(
            PROVIDER, name="Weather", openapi=SPEC, operations=operations, description="Weather of cities."
        )
        for name in ("discovery", "agent", "openapi.json", "llms.txt"):
            answer = harness.ask(name, "GET", f"{API}/apis/{api}/{name}")
            harness.ask(
                f"{name}, unchanged",
                "GET",
                f"{API}/apis/{api}/{name}",
                [("If-None-Match", answer.find("ETag") or '"none"')],
            )
        harness.ask("unknown", "GET", f"{API}/apis/{api}/colour")
        harness.ask("of an unknown API", "GET", f"{API}/apis/api_00000000000000000000000000/agent")
        harness.call("a required parameter is missing, unpaid", api, "/v1/cities/Wien")
        bare = harness.publish(PROVIDER, name="Bare")
        harness.ask("agent document without a description", "GET", f"{API}/apis/{bare}/agent")
        harness.upstream.files["/spec.json"] = ("application/json", json.dumps(SPEC).encode())
        fetched = harness.publish(PROVIDER, name="Fetched", openapiUrl=harness.upstream.url + "/spec.json")
        harness.ask("a description that was fetched", "GET", f"{API}/apis/{fetched}/openapi.json")
        proof = _proof(harness)
        harness.call("a required parameter is missing, paid", fetched, "/v1/cities/Wien", proof)
        harness.call("a parameter of another type", fetched, "/v1/cities/Wien?days=x", proof)
        harness.call("a required body is missing", fetched, "/v1/orders", proof, method="POST")
        harness.call(
            "a body of another type",
            fetched,
            "/v1/orders",
            [*proof, ("Content-Type", "text/plain")],
            method="POST",
            body=b"x",
        )


def _proof(harness: Harness) -> list[tuple[str, str]]:
    from tests.system.transcripts.signing import plain

    return plain(ALICE, harness.node.pay(ALICE.address, PROVIDER.address, 100_000))


def play_ownership(harness: Harness) -> None:
    with harness.section("ownership of an origin"):
        api = harness.publish(PROVIDER, name="Owned", endpoint=harness.upstream.url + "/echo")
        asked = harness.ask("what to do", "GET", f"{API}/apis/{api}/ownership")
        harness.control("not yet", PROVIDER, "POST", f"/apis/{api}/ownership")
        harness.control("by somebody else", ALICE, "POST", f"/apis/{api}/ownership")
        line = (
            asked.json["challenge"]["wellKnown"]["content"] if "wellKnown" in asked.json["challenge"] else ""
        )
        harness.recorder.learn("ownership", line.partition("=")[2])
        harness.upstream.files["/.well-known/tollway-verification"] = ("text/plain", line.encode())
        harness.control("proved", PROVIDER, "POST", f"/apis/{api}/ownership")
        harness.ask("the state", "GET", f"{API}/apis/{api}/ownership")
        harness.ask("verified ones", "GET", f"{API}/apis?verified=true")
        harness.ask("of an unknown API", "GET", f"{API}/apis/api_00000000000000000000000000/ownership")
