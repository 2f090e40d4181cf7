"""Keystores that eth-account writes are opened; other formats, passwords and amounts of work are refused."""

import copy
import json
from typing import Any

import pytest
from eth_account import Account

from tollway.client.keystore import open_keystore

KEY = b"\x11" * 32
PASSWORD = "pass wörd"
PBKDF2: dict[str, Any] = Account.encrypt(KEY, PASSWORD, kdf="pbkdf2", iterations=10)
SCRYPT: dict[str, Any] = Account.encrypt(KEY, PASSWORD, kdf="scrypt", iterations=2)


def changed(keystore: dict[str, Any], path: str, value: object) -> str:
    """The keystore as text, with one member replaced."""
    copied = copy.deepcopy(keystore)
    *parents, last = path.split(".")
    inner = copied
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return json.dumps(copied)


@pytest.mark.parametrize("keystore", [PBKDF2, SCRYPT], ids=["pbkdf2", "scrypt"])
def test_opens_what_other_wallets_write(keystore: dict[str, Any]) -> None:
    assert open_keystore(json.dumps(keystore), PASSWORD) == KEY


def test_opens_a_keystore_whose_names_have_capitals() -> None:
    assert open_keystore(json.dumps({"Crypto": PBKDF2["crypto"], "Version": 3}), PASSWORD) == KEY


@pytest.mark.parametrize("keystore", [PBKDF2, SCRYPT], ids=["pbkdf2", "scrypt"])
def test_refuses_another_password(keystore: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="password is wrong"):
        open_keystore(json.dumps(keystore), PASSWORD + " ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        changed(PBKDF2, "version", 4),
        changed(PBKDF2, "crypto.cipher", "aes-128-cbc"),
        changed(PBKDF2, "crypto.ciphertext", "zz"),
        changed(PBKDF2, "crypto.kdf", "argon2"),
        changed(PBKDF2, "crypto.kdfparams.prf", "hmac-md5"),
        changed(PBKDF2, "crypto.kdfparams.c", 10_000_001),
        changed(PBKDF2, "crypto.kdfparams.dklen", 16),
        changed(PBKDF2, "crypto.cipherparams.iv", "00"),
        changed(SCRYPT, "crypto.kdfparams.n", 2**40),
        changed(SCRYPT, "crypto.kdfparams.n", 3),
        changed(SCRYPT, "crypto.kdfparams.r", 2**30),
        changed(SCRYPT, "crypto.kdfparams.p", 17),
    ],
    ids=[
        "empty", "a list", "an object", "nested", "another version", "another cipher", "no hex", "another function", "another hash",
        "too many rounds", "a short key", "a short counter", "too much memory", "no power of two", "too wide", "too parallel",
    ],
)  # fmt: skip
def test_refuses_another_format_without_a_word_of_the_file(text: str) -> None:
    with pytest.raises(ValueError, match="not a keystore of version 3") as refused:
        open_keystore(text, PASSWORD)
    assert refused.value.__cause__ is None
