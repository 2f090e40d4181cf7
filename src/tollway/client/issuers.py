"""The certificate issuers that a client's connections trust.

Those of the package `certifi`, or the ones of `SSL_CERT_FILE` (a file) or `SSL_CERT_DIR` (a folder in OpenSSL's form) in their place, as OpenSSL and curl have it. No other variable of
the environment changes a connection: `SSLKEYLOGFILE`, by which Python writes the keys of sessions into a file, counts for none.
"""

import os
import ssl

import httpx

from tollway.client.errors import IssuersUnusable

VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def open_tls() -> ssl.SSLContext:
    """A context for connections of a client. Raises IssuersUnusable."""
    try:
        context = httpx.create_ssl_context(trust_env=True)
    except OSError as exc:  # SSLError is one
        raise IssuersUnusable(f"{_name_source()}: no certificates can be read from it: {exc}") from exc
    folder = os.environ.get("SSL_CERT_DIR")
    # OpenSSL reads nothing from a folder that does not exist, without an error.
    if folder and not os.environ.get("SSL_CERT_FILE") and not os.path.isdir(folder):
        raise IssuersUnusable(f"{_name_source()}: there is no such folder")
    context.keylog_filename = None  # type: ignore[assignment]  # typeshed has no None, which switches it off
    return context


def _name_source() -> str:
    name = next((name for name in VARIABLES if os.environ.get(name)), "certifi")
    return f"{name}={os.environ[name]}" if name in os.environ else name
