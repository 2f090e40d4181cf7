"""Listings over the control plane: publishing, changing, finding, describing, retiring, owning."""

import json

from tests.transcripts.signing import ORIGIN, Account
from tests.transcripts.stage import API, Stage

PROVIDER, ALICE, OTHER = Account("provider"), Account("alice"), Account("other")
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


def play(stage: Stage) -> None:
    play_publish(stage)
    play_invalid(stage)
    play_changes(stage)
    play_lists(stage)
    play_documents(stage)
    play_ownership(stage)


def draft(stage: Stage, **fields: object) -> dict[str, object]:
    plainly = {
        "name": "Quotes",
        "pricePerRequest": "0.01",
        "currency": "USDC",
        "endpoint": stage.upstream.url,
    }
    return {**plainly, **fields}


def play_publish(stage: Stage) -> None:
    with stage.scene("publishing"):
        made = stage.control("the least", PROVIDER, "POST", "/apis", draft(stage))
        api = made.json["id"]
        stage.ask("read", "GET", f"{API}/apis/{api}")
        stage.ask("HEAD", "HEAD", f"{API}/apis/{api}")
        stage.ask("unchanged", "GET", f"{API}/apis/{api}", [("If-None-Match", made.find("ETag") or "")])
        stage.ask("changed", "GET", f"{API}/apis/{api}", [("If-None-Match", '"other"')])
        stage.ask("unknown", "GET", f"{API}/apis/api_00000000000000000000000000")
        stage.control("a dry run", PROVIDER, "POST", "/apis?dryRun=true", draft(stage, name="Dry"))
        whole = draft(
            stage,
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
        )
        stage.control("everything", PROVIDER, "POST", "/apis", whole)
        again = [("Idempotency-Key", "create-1")]
        stage.control("with a key", PROVIDER, "POST", "/apis", draft(stage, name="Keyed"), again)
        stage.control("with a key again", PROVIDER, "POST", "/apis", draft(stage, name="Keyed"), again)
        stage.control(
            "another body under the key", PROVIDER, "POST", "/apis", draft(stage, name="Else"), again
        )
        stage.control("of another wallet", ALICE, "POST", "/apis", draft(stage, name="Keyed"), again)
        stage.control(
            "a key too long", PROVIDER, "POST", "/apis", draft(stage), [("Idempotency-Key", "k" * 300)]
        )


def play_invalid(stage: Stage) -> None:
    rows: dict[str, object] = {
        "no body": b"",
        "no JSON": b"{",
        "a list": [],
        "nothing in it": {},
        "a member twice": b'{"name":"a","name":"b"}',
        "too deep": ("[" * 300 + "]" * 300).encode(),
        "not UTF-8": b'{"name":"\xff"}',
        "an unknown field": draft(stage, colour="red"),
        "a name too long": draft(stage, name="n" * 121),
        "a name with controls": draft(stage, name="a\u202eb"),
        "no price": draft(stage, pricePerRequest="free"),
        "a price as a number": draft(stage, pricePerRequest=0.01),
        "a negative price": draft(stage, pricePerRequest="-1"),
        "too many decimals": draft(stage, pricePerRequest="0.0000001"),
        "a currency that nobody takes": draft(stage, currency="DOGE"),
        "an endpoint that is none": draft(stage, endpoint="ftp://files.example/"),
        "an endpoint with a user": draft(stage, endpoint="https://me:pw@provider.example/"),
        "an endpoint with a query": draft(stage, endpoint="https://provider.example/?a=b"),
        "an endpoint that is this gateway": draft(stage, endpoint=ORIGIN + "/api"),
        "an endpoint at a port below": draft(stage, endpoint="http://127.0.0.1:25/"),
        "an endpoint of a cloud": draft(stage, endpoint="http://169.254.169.254/latest"),
        "a wrong checksum": draft(stage, payTo=OTHER.address.swapcase().replace("0X", "0x")),
        "a network that is not there": draft(stage, networks=["eip155:1"]),
        "a network that is none": draft(stage, networks=["base"]),
        "no networks": draft(stage, networks=[]),
        "methods": draft(stage, methods=["get", "TRACE"]),
        "tags": draft(stage, tags=["a", "b", "c", "d", "e", "f"]),
        "a time": draft(stage, timeoutSeconds=0),
        "headers": draft(stage, forwardHeaders=["Cookie", "X-Payment-Tx"]),
        "a secret in a control header": draft(
            stage, upstreamAuth={"in": "header", "name": "Host", "value": "x"}
        ),
        "a secret without a value": draft(stage, upstreamAuth={"in": "header", "name": "X-Key"}),
        "a charge": draft(stage, chargeOn="never"),
        "a status": draft(stage, status="retired"),
        "a signature": draft(stage, signature="none"),
        "a rate": draft(stage, rateLimit={"calls": 0, "perSeconds": 1}),
        "operations": draft(stage, operations=[{"method": "GET", "path": "v1", "pricePerRequest": "1"}]),
        "one operation twice": draft(
            stage,
            operations=[
                {"method": "GET", "path": "/a/{b}", "pricePerRequest": "1"},
                {"method": "GET", "path": "/a/{c}", "pricePerRequest": "2"},
            ],
        ),
        "a document that is none": draft(stage, openapi={"swagger": "2.0"}),
        "a document by URL that is not there": draft(stage, openapiUrl=stage.upstream.url + "/nothing"),
        "a document twice": draft(stage, openapi=SPEC, openapiUrl=stage.upstream.url + "/spec.json"),
        "several things at once": draft(stage, name="", pricePerRequest="x", currency="", tags="a"),
    }
    with stage.scene("drafts that are refused"):
        for title, content in rows.items():
            stage.control(title, PROVIDER, "POST", "/apis", content)
        stage.control("another media type", PROVIDER, "POST", "/apis", draft(stage), kind="text/plain")
        stage.ask("unsigned", "POST", f"{API}/apis", [("Content-Type", "text/plain")], b"{}")
        stage.ask("too large", "POST", f"{API}/apis", [("Content-Length", "3000000")], b"")
        stage.control("an unknown parameter", PROVIDER, "POST", "/apis?dry=yes", draft(stage))


def play_changes(stage: Stage) -> None:
    with stage.scene("changing and retiring"):
        made = stage.control("made", PROVIDER, "POST", "/apis", draft(stage, name="Changing"))
        api, etag = made.json["id"], made.find("ETag") or ""
        path = f"/apis/{api}"
        stage.control("by somebody else", ALICE, "PUT", path, draft(stage, name="Stolen"))
        stage.ask(
            "by nobody",
            "PUT",
            API + path,
            [("Content-Type", "application/json")],
            json.dumps(draft(stage)).encode(),
        )
        stage.control("under an old tag", PROVIDER, "PUT", path, draft(stage), [("If-Match", '"old"')])
        secret = {"in": "query", "name": "key", "value": "secret"}
        stage.control(
            "under its tag",
            PROVIDER,
            "PUT",
            path,
            draft(stage, name="Changed", upstreamAuth=secret),
            [("If-Match", etag)],
        )
        stage.control("under the same tag", PROVIDER, "PUT", path, draft(stage), [("If-Match", etag)])
        stage.control("any tag", PROVIDER, "PUT", path, draft(stage, name="Any"), [("If-Match", "*")])
        stage.control("the secret goes", PROVIDER, "PUT", path, draft(stage, name="Any", upstreamAuth=None))
        stage.control("invalid", PROVIDER, "PUT", path, draft(stage, pricePerRequest="x"))
        stage.control("PATCH", PROVIDER, "PATCH", path, {"name": "Patched"})
        stage.control("POST", PROVIDER, "POST", path, {})
        stage.control("retired by somebody else", ALICE, "DELETE", path)
        stage.control("retired", PROVIDER, "DELETE", path)
        stage.control("retired twice", PROVIDER, "DELETE", path)
        stage.control("changed", PROVIDER, "PUT", path, draft(stage))
        stage.ask("read", "GET", API + path)
        stage.control("of nothing", PROVIDER, "DELETE", "/apis/api_00000000000000000000000000")


def play_lists(stage: Stage) -> None:
    with stage.scene("lists"):
        for name, price, tags in (
            ("Weather of Wien", "0.3", ["weather"]),
            ("Weather of Graz", "0.1", ["weather", "graz"]),
            ("Trains", "0.2", []),
        ):
            stage.publish(OTHER, name=name, pricePerRequest=price, tags=tags, description=f"About {name}.")
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
            stage.ask(f"list {query}", "GET", f"{API}/apis{query}")
        stage.ask("HEAD", "HEAD", f"{API}/apis")
        stage.ask("DELETE", "DELETE", f"{API}/apis")


def play_documents(stage: Stage) -> None:
    with stage.scene("documents of one API"):
        operations = [{"method": "GET", "path": "/v1/cities/{city}", "pricePerRequest": "0.02"}]
        api = stage.publish(
            PROVIDER, name="Weather", openapi=SPEC, operations=operations, description="Weather of cities."
        )
        for name in ("discovery", "agent", "openapi.json", "llms.txt"):
            answer = stage.ask(name, "GET", f"{API}/apis/{api}/{name}")
            stage.ask(
                f"{name}, unchanged",
                "GET",
                f"{API}/apis/{api}/{name}",
                [("If-None-Match", answer.find("ETag") or '"none"')],
            )
        stage.ask("unknown", "GET", f"{API}/apis/{api}/colour")
        stage.ask("of an unknown API", "GET", f"{API}/apis/api_00000000000000000000000000/agent")
        stage.call("a required parameter is missing, unpaid", api, "/v1/cities/Wien")
        bare = stage.publish(PROVIDER, name="Bare")
        stage.ask("agent document without a description", "GET", f"{API}/apis/{bare}/agent")
        stage.upstream.files["/spec.json"] = ("application/json", json.dumps(SPEC).encode())
        fetched = stage.publish(PROVIDER, name="Fetched", openapiUrl=stage.upstream.url + "/spec.json")
        stage.ask("a description that was fetched", "GET", f"{API}/apis/{fetched}/openapi.json")
        proof = _proof(stage)
        stage.call("a required parameter is missing, paid", fetched, "/v1/cities/Wien", proof)
        stage.call("a parameter of another type", fetched, "/v1/cities/Wien?days=x", proof)
        stage.call("a required body is missing", fetched, "/v1/orders", proof, method="POST")
        stage.call(
            "a body of another type",
            fetched,
            "/v1/orders",
            [*proof, ("Content-Type", "text/plain")],
            method="POST",
            body=b"x",
        )


def _proof(stage: Stage) -> list[tuple[str, str]]:
    from tests.transcripts.signing import plain

    return plain(ALICE, stage.node.pay(ALICE.address, PROVIDER.address, 100_000))


def play_ownership(stage: Stage) -> None:
    with stage.scene("ownership of an origin"):
        api = stage.publish(PROVIDER, name="Owned", endpoint=stage.upstream.url + "/echo")
        asked = stage.ask("what to do", "GET", f"{API}/apis/{api}/ownership")
        stage.control("not yet", PROVIDER, "POST", f"/apis/{api}/ownership")
        stage.control("by somebody else", ALICE, "POST", f"/apis/{api}/ownership")
        line = (
            asked.json["challenge"]["wellKnown"]["content"] if "wellKnown" in asked.json["challenge"] else ""
        )
        stage.recorder.learn("ownership", line.partition("=")[2])
        stage.upstream.files["/.well-known/tollway-verification"] = ("text/plain", line.encode())
        stage.control("proved", PROVIDER, "POST", f"/apis/{api}/ownership")
        stage.ask("the state", "GET", f"{API}/apis/{api}/ownership")
        stage.ask("verified ones", "GET", f"{API}/apis?verified=true")
        stage.ask("of an unknown API", "GET", f"{API}/apis/api_00000000000000000000000000/ownership")
