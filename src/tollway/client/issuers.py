"""The certificate issuers that a client's connections trust.

Those of the package `certifi`, or the ones of `SSL_CERT_FILE` (a file) or `SSL_CERT_DIR` (a folder in OpenSSL's form) in their place, as OpenSSL and curl have it. No other variable of
the environment changes a connection: `SSLKEYLOGFILE`, by which Python writes the keys of sessions into a file, has no effect.
"""

import os
import ssl
from functools import cache

import certifi

from tollway.client.errors import IssuersUnusable

_CORRECT = "Correct SSL_CERT_FILE or SSL_CERT_DIR, or unset it."
_INSTALL = "Install the package certifi again, or name a file of certificates with SSL_CERT_FILE."


def open_tls() -> ssl.SSLContext:
    """A context for connections of a client. Raises IssuersUnusable."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file:
        return _trust(f"SSL_CERT_FILE={file}", cafile=file)
    if not folder:
        return _trust_certifi()
    # OpenSSL reads nothing from a folder that does not exist, without an error.
    if not os.path.isdir(folder):
        raise IssuersUnusable(f"SSL_CERT_DIR={folder}: there is no such folder. {_CORRECT}")
    return _trust(f"SSL_CERT_DIR={folder}", capath=folder)


@cache
def _trust_certifi() -> ssl.SSLContext:
    """One context for all clients of a process: the certificates of the package take 12 ms to read."""
    return _trust("certifi", cafile=certifi.where(), then=_INSTALL)


def _trust(
    name: str, *, cafile: str | None = None, capath: str | None = None, then: str = _CORRECT
) -> ssl.SSLContext:
    # Not `create_default_context`, which opens the file of SSLKEYLOGFILE.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile, capath)
    except OSError as exc:  # SSLError is one
        raise IssuersUnusable(f"{name}: no certificates can be read from it: {exc}. {then}") from exc
    return context
