"""A receiver of webhooks that verifies RFC 9421: pip install http-message-signatures httpx

GATEWAY=https://gateway.example.com URL=https://owner.example/hooks WALLET=0x… PORT=8090 python webhook_signed.py

URL is the URL that you registered: the signature covers it, whatever a proxy in front of this server has made of the request. WALLET is the wallet that
registered it: any other wallet can register this URL too, and the gateway signs that wallet's messages as well.
"""

import base64
import hashlib
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from http_message_signatures import (
    HTTPMessageVerifier,
    HTTPSignatureKeyResolver,
    InvalidSignature,
    algorithms,
)

DIRECTORY = os.environ["GATEWAY"] + "/.well-known/http-message-signatures-directory"
COVERED = {"@method", "@target-uri", "content-digest", "content-type", "webhook-id", "webhook-timestamp"}
WALLET = os.environ["WALLET"]
LENGTH_MAX = 65_536
SEEN: set[str] = set()  # use a table with a unique column: it must survive a restart


class Keys(HTTPSignatureKeyResolver):
    """The keys that the gateway publishes. A key that is not known is looked up once more: keys change."""

    def __init__(self) -> None:
        self.known: dict[str, Ed25519PublicKey] = {}

    def resolve_public_key(self, key_id: str) -> Ed25519PublicKey:
        if key_id not in self.known:
            keys = httpx.get(DIRECTORY, timeout=5).raise_for_status().json()["keys"]
            self.known = {
                key["kid"]: Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(key["x"] + "="))
                for key in keys
            }
        return self.known[key_id]


VERIFIER = HTTPMessageVerifier(signature_algorithm=algorithms.ED25519, key_resolver=Keys())


def is_from_gateway(headers: dict[str, str], body: bytes) -> bool:
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    if headers.get("content-digest") != f"sha-256=:{digest}:":
        return False
    message = SimpleNamespace(method="POST", url=os.environ["URL"], headers=headers, body=body)
    try:
        results = VERIFIER.verify(message)
    except (InvalidSignature, KeyError, ValueError):
        return False
    return any(
        result.parameters.get("tag") == "tollway-webhook"
        and {name.strip('"') for name in result.covered_components} >= COVERED
        for result in results
    )


def handle_event(event_id: str, event: dict) -> None:
    """Called once for each event, however often it arrives."""
    if event_id not in SEEN:
        SEEN.add(event_id)
        sys.stdout.write(json.dumps({"id": event_id, **event}) + "\n")
        sys.stdout.flush()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(min(int(self.headers.get("content-length", 0)), LENGTH_MAX))
        if not is_from_gateway({name.lower(): value for name, value in self.headers.items()}, body):
            return self.respond(401, {"error": "not signed by the gateway"})
        message = json.loads(body)
        if message["data"]["wallet"].lower() != WALLET.lower():
            return self.respond(404, {"error": "not a webhook of this receiver's wallet"})
        if message["type"] == "webhook.challenge":
            return self.respond(200, {"challenge": message["data"]["challenge"], "wallet": WALLET})
        if message["type"] == "batch":
            for event in message["data"]["events"]:
                handle_event(event.pop("id"), event)
        else:
            handle_event(self.headers["webhook-id"], message)
        return self.respond(200, {})

    def respond(self, status: int, content: dict) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Receiver).serve_forever()
