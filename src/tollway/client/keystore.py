"""Opens a keystore: a file with a wallet's key that a password encrypts (Web3 Secret Storage, version 3), as geth and most wallets write it.

It makes no keystore. A file can ask for any amount of work, so the work has a maximum. Source: Ethereum wiki, "Web3 Secret Storage Definition".
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from pydantic_core import from_json

from tollway.ids import keccak256

VERSION = 3
SCRYPT_BYTES_MAX = 1024 * 1024 * 1024
"""The memory that scrypt may take. Wallets use 256 MiB (n 262,144, r 8)."""
SCRYPT_PARALLEL_MAX = 16
PBKDF2_ROUNDS_MAX = 10_000_000
_DERIVED_BYTES_MIN, _DERIVED_BYTES_MAX = 32, 64


def open_keystore(text: str, password: str) -> bytes:
    """The private key in the keystore, 32 bytes. Raises ValueError, whose text holds nothing of the file, for another format or password."""
    try:
        keystore = _lower_names(from_json(text))
        crypto = keystore["crypto"]
        if keystore["version"] != VERSION or crypto["cipher"] != "aes-128-ctr":
            raise ValueError("not a keystore of version 3")
        ciphertext = _parse_hex(crypto["ciphertext"])
        derived = _derive_key(crypto["kdf"], crypto["kdfparams"], password.encode())
        is_right = hmac.compare_digest(keccak256(derived[16:32] + ciphertext), _parse_hex(crypto["mac"]))
        counter = _parse_hex(crypto["cipherparams"]["iv"])
        key = Cipher(AES(derived[:16]), CTR(counter)).decryptor().update(ciphertext) if is_right else b""
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, MemoryError):
        raise ValueError("the file is not a keystore of version 3") from None
    if not is_right:
        raise ValueError("the password is wrong")
    return key


def _derive_key(function: str, parameters: Mapping[str, Any], password: bytes) -> bytes:
    length, salt = parameters["dklen"], _parse_hex(parameters["salt"])
    if not _DERIVED_BYTES_MIN <= length <= _DERIVED_BYTES_MAX:
        raise ValueError("the derived key has another length")
    if function == "pbkdf2":
        if parameters["prf"] != "hmac-sha256" or parameters["c"] > PBKDF2_ROUNDS_MAX:
            raise ValueError("the derivation takes too much work")
        return hashlib.pbkdf2_hmac("sha256", password, salt, parameters["c"], length)
    n, r, p = parameters["n"], parameters["r"], parameters["p"]
    work_bytes = 128 * r * (n + p + 2)
    if function != "scrypt" or work_bytes > SCRYPT_BYTES_MAX or p > SCRYPT_PARALLEL_MAX:
        raise ValueError("the derivation takes too much memory")
    return hashlib.scrypt(password, salt=salt, n=n, r=r, p=p, dklen=length, maxmem=work_bytes + 1024 * 1024)


def _lower_names(value: Any) -> Any:
    """Some wallets write `Crypto` with a capital letter."""
    if not isinstance(value, dict):
        return value
    return {name.lower(): _lower_names(member) for name, member in value.items()}


def _parse_hex(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))
