"""A receiver of webhooks that verifies `v1` with the published library: pip install standardwebhooks

SECRET=whsec_… WALLET=0x… PORT=8090 python webhook_v1.py

WALLET is the wallet that registered the URL.
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

WEBHOOK = Webhook(os.environ["SECRET"])
WALLET = os.environ["WALLET"]
LENGTH_MAX = 65_536
SEEN: set[str] = set()  # use a table with a unique column: it must survive a restart


def handle_event(event_id: str, event: dict) -> None:
    """Called once for each event, however often it arrives."""
    if event_id not in SEEN:
        SEEN.add(event_id)
        sys.stdout.write(json.dumps({"id": event_id, **event}) + "\n")
        sys.stdout.flush()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(min(int(self.headers.get("content-length", 0)), LENGTH_MAX))
        try:
            message = WEBHOOK.verify(body, {name.lower(): value for name, value in self.headers.items()})
        except (WebhookVerificationError, ValueError):
            return self.respond(401, {"error": "not signed with this secret"})
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
