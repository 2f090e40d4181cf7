"""Guards of the middleware that a provider puts before its API (threat I9): each of its checks is taken away once, under ASGI and under WSGI."""

from tests.guards.guard import Guard, guard

ASGI, WSGI = "client.asgi:AsgiForwardedMiddleware", "client.wsgi:WsgiForwardedMiddleware"
TESTS = {"ASGI": "client/test_asgi.py", "WSGI": "client/test_wsgi.py"}


def _row(kind: str, name: str, place: str, before: str, after: str, test: str) -> Guard:
    return guard("I9", f"{kind}: {name}", place, before, after, test=f"{TESTS[kind]}::{test}")


MIDDLEWARE_GUARDS = (
    _row(
        "ASGI",
        "the body is the signed one",
        f"{ASGI}._serve",
        "            forwarded.check_body(body)\n",
        "",
        "test_another_request_is_refused",
    ),
    _row(
        "WSGI",
        "the body is the signed one",
        f"{WSGI}.__call__",
        "            forwarded.check_body(body)\n",
        "",
        "test_another_request_is_refused",
    ),
    _row(
        "ASGI",
        "a call counts once",
        f"{ASGI}._serve",
        "            await asyncio.to_thread(self._verifier.accept, forwarded)\n",
        "",
        "test_a_call_counts_once",
    ),
    _row(
        "WSGI",
        "a call counts once",
        f"{WSGI}.__call__",
        "            self._verifier.accept(forwarded)\n",
        "",
        "test_a_call_counts_once",
    ),
    _row(
        "ASGI",
        "the nonce is used after the body was checked",
        f"{ASGI}._serve",
        "self._verifier.verify_head, scope",
        "lambda *head: self._verifier.verify(*head, None), scope",
        "test_a_refused_copy_of_the_head_does_not_keep_the_call_out",
    ),
    _row(
        "WSGI",
        "the nonce is used after the body was checked",
        f"{WSGI}.__call__",
        "            body = self._read_body(environ)\n",
        "            self._verifier.accept(forwarded)\n            body = self._read_body(environ)\n",
        "test_a_refused_copy_of_the_head_does_not_keep_the_call_out",
    ),
    _row(
        "ASGI",
        "a body has a maximum",
        f"{ASGI}._read_body",
        "if len(body) > self._body_bytes_max:",
        "if False:",
        "test_a_large_body_is_refused_before_it_is_kept",
    ),
    _row(
        "WSGI",
        "a body has a maximum",
        f"{WSGI}._read_body",
        "if len(body) > self._body_bytes_max:",
        "if False:",
        "test_a_large_body_is_refused_before_it_is_kept",
    ),
    _row(
        "WSGI",
        "no more is read than the maximum",
        f"{WSGI}._read_body",
        "left = min(int(text), self._body_bytes_max + 1)",
        "left = int(text)",
        "test_a_large_body_is_refused_before_it_is_kept",
    ),
    _row(
        "WSGI",
        "a length is a number",
        f"{WSGI}._read_body",
        "elif text.isascii() and text.isdigit():",
        "elif text.isdigit():",
        "test_a_length_that_is_no_number_is_refused",
    ),
    _row(
        "WSGI",
        "the application reads the checked body",
        f"{WSGI}.__call__",
        '            "wsgi.input": io.BytesIO(body),\n',
        "",
        "test_a_forwarded_call_reaches_the_application",
    ),
    _row(
        "ASGI",
        "the application reads the checked body",
        f"{ASGI}._pass_on",
        "return unread.pop() if unread else await receive()",
        "return await receive()",
        "test_a_body_whose_length_is_signed_is_counted",
    ),
    _row(
        "ASGI",
        "an open path is that path alone",
        f"{ASGI}.__call__",
        'case "http" if scope["path"] in self._open_paths:',
        'case "http" if any(one in scope["path"] for one in self._open_paths):',
        "test_only_the_very_path_is_open",
    ),
    _row(
        "WSGI",
        "an open path is that path alone",
        f"{WSGI}.__call__",
        "if _read_path(environ) in self._open_paths:",
        "if any(one in _read_path(environ) for one in self._open_paths):",
        "test_only_the_very_path_is_open",
    ),
    _row(
        "ASGI",
        "an unsigned request names no call",
        f"{ASGI}.__call__",
        "self._app(_remove_identity(scope), receive, send)",
        "self._app(scope, receive, send)",
        "test_an_open_path_needs_no_signature_and_names_no_call",
    ),
    _row(
        "WSGI",
        "an unsigned request names no call",
        f"{WSGI}.__call__",
        "self._app(_remove_identity(environ), start_response)",
        "self._app(environ, start_response)",
        "test_an_open_path_needs_no_signature_and_names_no_call",
    ),
    _row(
        "ASGI",
        "a web socket does not pass",
        f"{ASGI}.__call__",
        '                await send({"type": "websocket.close", "code": POLICY_VIOLATION})\n',
        "                await self._app(scope, receive, send)\n",
        "test_a_web_socket_is_closed_and_the_lifespan_passes",
    ),
    _row(
        "ASGI",
        "a request that cannot be checked is refused",
        "client.provider:KeyDirectory.find",
        "if key is None and (self._is_failed or self._read_s is None):",
        "if False:",
        "test_without_the_keys_every_call_is_refused_for_a_while",
    ),
)
