"""An `http.server` in a thread of its own."""

import contextlib
import threading
from collections.abc import Iterator
from socketserver import BaseServer

STOP_DEADLINE_S = 30.0


@contextlib.contextmanager
def serve_in_thread(server: BaseServer) -> Iterator[None]:
    """Serves until the end, and closes the server. AssertionError when a request of it does not end."""
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    serving.start()
    try:
        yield
    finally:
        threading.Thread(
            target=server.shutdown, daemon=True
        ).start()  # it waits for the request that is served
        serving.join(STOP_DEADLINE_S)
        assert not serving.is_alive(), "a request to a server of this test does not end"
        server.server_close()
