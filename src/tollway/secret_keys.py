"""The operator's secret keys: one text with one key or several, given outright or in a file of the operator's own.

The first key is the one in use: it seals and signs. All of them open, verify and are published, so that a key can be
changed while several gateways run. Nothing of a key is ever repeated in an error.
"""

import os
import re
import stat
from pathlib import Path
from typing import Any

from tollway.errors import SettingsInvalid
from tollway.setting_values import Secret

KEY_BYTES = 32

KEYS_MAX = 8
"""More than one old key is a rotation that was never finished; each costs a try where a value names no key."""

SecretKeys = tuple[Secret[bytes], ...]


def parse_secret_keys(raw: Any) -> SecretKeys:
    """At least one key, the one in use first; between keys stands any white space. Raises ValueError."""
    words = raw.split() if isinstance(raw, str) else []
    if not words:
        raise ValueError("the secret key must be 64 hex digits (32 bytes)")
    if len(words) > KEYS_MAX:
        raise ValueError(f"there may be {KEYS_MAX} secret keys at most; take out those that nothing is under")
    keys = tuple(_parse_key(word, position) for position, word in enumerate(words, 1))
    if len(set(keys)) < len(keys):
        raise ValueError("a secret key stands twice; write each once, the one in use first")
    return keys


def _parse_key(word: str, position: int) -> Secret[bytes]:
    which = "the secret key" if position == 1 else f"secret key {position}"
    if not re.fullmatch(r"[0-9a-fA-F]{64}", word):
        raise ValueError(f"{which} must be 64 hex digits (32 bytes)")
    key = bytes.fromhex(word)
    if len(set(key)) < 8:
        raise ValueError(f"{which} is no random number; make one with: openssl rand -hex 32")
    return Secret(key)


def read_key_file(path: Path) -> SecretKeys:
    """Raises `SettingsInvalid`, also where others may read the file."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise SettingsInvalid([f"secret_key_file: others may read {path}: chmod 600 {path}"])
        return parse_secret_keys(path.read_text())
    except (OSError, UnicodeDecodeError, ValueError) as exc:
        raise SettingsInvalid([f"secret_key_file: {path} cannot be used: {_reason(exc)}"]) from exc


def make_key_file(path: Path) -> None:
    """One new key, for its owner's eyes alone. Raises `SettingsInvalid`, also where there is a file already."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as exc:
        raise SettingsInvalid([f"secret_key_file: {path} cannot be made: {_reason(exc)}"]) from exc
    with os.fdopen(descriptor, "w") as file:
        file.write(os.urandom(KEY_BYTES).hex() + "\n")


def _reason(exc: Exception) -> str:
    return exc.strerror or str(exc) if isinstance(exc, OSError) else str(exc)
