"""Guards of webhooks: no stranger as a target, no message for another receiver, nothing of another wallet (threats O9, O10)."""

from tests.guards.guard import guard

WEBHOOK_GUARDS = (
    guard(
        "O9",
        "an endpoint gets events only after it echoed its challenge",
        "webhooks.sender:WebhookSender._challenge",
        "is_echoed=response.is_success and is_echo(response.body, challenge.challenge)",
        "is_echoed=response.is_success",
        test="webhooks/test_sender.py::test_a_receiver_without_an_echo_is_tried_five_times_and_disabled",
    ),
    guard(
        "O9",
        "a request body that is reflected is no echo",
        "webhooks.messages:is_echo",
        "hmac.compare_digest(text.encode(), challenge.encode())",
        "challenge in text",
        test="webhooks/test_messages.py::test_an_echo_is_the_text_or_the_member_of_an_object",
    ),
    guard(
        "O9",
        "an origin gets one request a second",
        "webhooks.sender:WebhookSender._take",
        "is_early or origin in self._busy",
        "origin in self._busy",
        test="webhooks/test_sender.py::test_an_origin_gets_one_request_a_second",
    ),
    guard(
        "O9",
        "the URL of a webhook begins with https",
        "web.webhook_routes:WebhookRoutes._parse_url",
        'endpoint.scheme != "https" and not self._services.allow_private',
        "False",
        test="web/test_webhook_routes.py::test_a_url_that_no_message_may_go_to_is_refused",
    ),
    guard(
        "O9",
        "a wallet has at most ten webhooks",
        "storage.webhook_store:WebhookStore.register",
        "(connection.scalar(of_wallet) or 0) >= count_max",
        "False",
        test="contracts/test_webhook_outbox.py::test_an_eleventh_endpoint_is_refused_also_at_once",
    ),
    guard(
        "O10",
        "the signature covers the URL",
        "gateway.request_signing:UpstreamSigner.sign_webhook",
        '\\n"@target-uri": {url}\\n',
        '\\n"@target-uri": https://owner.example/hooks\\n',
        test="webhooks/test_receivers.py::test_a_message_for_another_url_is_refused",
    ),
)
