"""The certificate issuers that a client's connections trust.

Those of the package `certifi`, or the ones of `SSL_CERT_FILE` (a file) or `SSL_CERT_DIR` (a folder in OpenSSL's form) in their place, as OpenSSL and curl have it. No other variable of
the environment changes a connection: `SSLKEYLOGFILE`, by which Python writes the keys of sessions into a file, has no effect.
"""

import os
import ssl
from functools import cache

import certifi

from tollway.client.errors import IssuersUnusable

_NEXT = "Correct SSL_CERT_FILE or SSL_CERT_DIR, or unset it."


def open_tls() -> ssl.SSLContext:
    """A context for connections of a client. Raises IssuersUnusable."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if not file and not folder:
        return _trust_certifi()
    # Not `create_default_context`, which opens the file of SSLKEYLOGFILE.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if folder and not file:
        # OpenSSL reads nothing from a folder that does not exist, without an error.
        if not os.path.isdir(folder):
            raise IssuersUnusable(f"SSL_CERT_DIR={folder}: there is no such folder. {_NEXT}")
        context.load_verify_locations(capath=folder)
        return context
    try:
        context.load_verify_locations(cafile=file)
    except OSError as exc:  # SSLError is one
        raise IssuersUnusable(
            f"SSL_CERT_FILE={file}: no certificates can be read from it: {exc}. {_NEXT}"
        ) from exc
    return context


@cache
def _trust_certifi() -> ssl.SSLContext:
    """One context for all clients of a process: the certificates of the package take 12 ms to read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=certifi.where())
    return context
