"""Secret keys: one text, one key or several, the one in use first; a wrong one is refused and never repeated."""

import stat
from pathlib import Path

import pytest

from tollway.config.settings import (
    SECRET_KEY_BYTES,
    SECRET_KEYS_MAX,
    make_key_file,
    parse_secret_keys,
    read_key_file,
)
from tollway.config.values import Secret
from tollway.errors import SettingsInvalid

ONE = "00112233445566778899aabbccddeeff" * 2
TWO = "ffeeddccbbaa99887766554433221100" * 2


def numbered(count: int) -> list[str]:
    return [f"{number:02x}" + ONE[2:] for number in range(count)]


@pytest.mark.parametrize(
    "text", [f"{ONE} {TWO}", f"{ONE}\n{TWO}\n", f"\n\t{ONE}\r\n\r\n{TWO}  ", f"{ONE.upper()} {TWO}"]
)
def test_keys_stand_apart_by_any_white_space_and_keep_their_order(text: str) -> None:
    assert parse_secret_keys(text) == (Secret(bytes.fromhex(ONE)), Secret(bytes.fromhex(TWO)))


def test_one_key_is_enough_and_there_is_a_maximum() -> None:
    assert parse_secret_keys(ONE) == (Secret(bytes.fromhex(ONE)),)
    assert len(parse_secret_keys(" ".join(numbered(SECRET_KEYS_MAX)))) == SECRET_KEYS_MAX


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ("", "64 hex digits"),
        (" \n", "64 hex digits"),
        (7, "64 hex digits"),
        ([ONE], "64 hex digits"),
        (ONE[:-1], "the secret key must be 64 hex digits"),
        (ONE + TWO, "the secret key must be 64 hex digits"),
        ("0x" + ONE, "the secret key must be 64 hex digits"),
        (f"{ONE},{TWO}", "the secret key must be 64 hex digits"),
        (f"{ONE} {TWO[:-1]}", "secret key 2 must be 64 hex digits"),
        (f"{ONE} {'0' * 64}", "secret key 2 is no random number"),
        (f"{ONE} {ONE}", "stands twice"),
        (f"{ONE} {TWO} {ONE.upper()}", "stands twice"),
        (" ".join(numbered(SECRET_KEYS_MAX + 1)), f"{SECRET_KEYS_MAX} secret keys at most"),
    ],
)
def test_refuses_what_is_no_list_of_keys_without_repeating_any(raw: object, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        parse_secret_keys(raw)
    assert ONE[:-1] not in str(refused.value)
    assert TWO[:-1] not in str(refused.value)


def test_a_made_file_holds_one_key_for_its_owner_alone_and_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "key"
    make_key_file(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (made,) = read_key_file(path)
    assert len(made.get_secret_value()) == SECRET_KEY_BYTES
    with pytest.raises(SettingsInvalid) as refused:
        make_key_file(path)
    assert "cannot be made" in refused.value.problems[0]
    assert read_key_file(path) == (made,)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o602])
def test_a_file_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    path.write_text(f"{ONE}\n{TWO}\n")
    path.chmod(mode)
    with pytest.raises(SettingsInvalid) as refused:
        read_key_file(path)
    assert "chmod 600" in refused.value.problems[0]


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, ONE.encode() + b"\nnope"])
def test_a_file_without_keys_is_refused_by_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(SettingsInvalid) as refused:
        read_key_file(path)
    (problem,) = refused.value.problems
    assert f"{path} cannot be used" in problem
    assert ONE not in problem
