"""Who can read a key file: by its mode, and by an access control list as systemd sets it on a credential."""

import errno
import os
import struct
from pathlib import Path

import pytest

from tollway.config.file_access import (
    ACL_NAME,
    GROUP,
    GROUP_OBJ,
    MASK,
    OTHER,
    USER,
    USER_OBJ,
    can_others_use,
    is_systemd_credential,
    parse_acl,
)
from tollway.config.settings import read_key_file
from tollway.errors import SettingsInvalid

KEY = "5e" * 8 + "0123456789abcdef" * 3
NO_ID = 0xFFFFFFFF
USER_ID, STRANGER = 12_345, 54_321


def pack(*entries: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def credential(*, reader: int, rights: int = 4, group: int = 0, mask: int = 4, other: int = 0) -> bytes:
    """The list of a credential: one named reader; everything else without a right."""
    return pack(
        (USER_OBJ, 4, NO_ID),
        (USER, rights, reader),
        (GROUP_OBJ, group, NO_ID),
        (MASK, mask, NO_ID),
        (OTHER, other, NO_ID),
    )


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret.key"
    path.write_text(KEY)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_accepts_a_file_of_its_owner(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    assert not can_others_use(key_file)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602, 0o444])
def test_refuses_a_file_that_others_can_use(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    assert can_others_use(key_file)


TWO_READERS = pack(
    (USER_OBJ, 4, NO_ID), (USER, 4, STRANGER), (USER, 4, STRANGER + 1), (GROUP_OBJ, 0, NO_ID), (MASK, 4, NO_ID), (OTHER, 0, NO_ID)
)  # fmt: skip


@pytest.mark.parametrize(
    ("user", "packed", "is_shared"),
    [
        (USER_ID, credential(reader=USER_ID), False),
        (USER_ID, credential(reader=STRANGER), True),
        (USER_ID, credential(reader=STRANGER, mask=0), False),
        (USER_ID, credential(reader=USER_ID, group=4), True),
        (USER_ID, credential(reader=USER_ID, other=4), True),
        (USER_ID, pack((USER_OBJ, 4, NO_ID), (GROUP_OBJ, 0, NO_ID), (GROUP, 4, 7), (MASK, 4, NO_ID), (OTHER, 0, NO_ID)), True),
        (0, credential(reader=STRANGER), False),
        (0, credential(reader=STRANGER, rights=6, mask=6), True),
        (0, credential(reader=STRANGER, group=4), True),
        (0, TWO_READERS, True),
    ],
    ids=[
        "credential of this user", "of another user", "masked", "owning group", "all others", "a group",
        "root, credential of the service", "root, another user writes", "root, owning group", "root, two other users",
    ],
)  # fmt: skip
def test_reads_the_access_control_list(
    key_file: Path, monkeypatch: pytest.MonkeyPatch, user: int, packed: bytes, is_shared: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(key_file.parent))
    if user == 0 and os.getuid() != 0:
        is_shared = True  # the file of these tests is no file of root
    set_list(key_file, packed)
    assert can_others_use(key_file) == is_shared
    if is_shared:
        with pytest.raises(SettingsInvalid, match="others may read"):
            read_key_file(key_file)
    else:
        assert len(read_key_file(key_file)) == 1


def set_list(path: Path, packed: bytes) -> None:
    try:
        os.setxattr(path, ACL_NAME, packed)
    except OSError as exc:
        if exc.errno == errno.ENOTSUP:
            pytest.skip("the file system of the tests has no access control lists")
        raise


def test_root_refuses_the_list_of_a_credential_elsewhere(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(key_file.parent / "credentials"))
    set_list(key_file, credential(reader=STRANGER))
    with pytest.raises(SettingsInvalid, match="others may read"):
        read_key_file(key_file)


@pytest.mark.parametrize(
    ("path", "owner", "folder", "is_credential"),
    [
        ("/run/credentials/tollway.service/gas.key", 0, None, True),
        ("/run/credentials/tollway.service/gas.key", USER_ID, None, False),
        ("/run/credentials/../gas.key", 0, None, False),
        ("/run/credentials-of-others/gas.key", 0, None, False),
        ("/etc/tollway/gas.key", 0, "", False),
        ("/srv/credentials/gas.key", 0, "/srv/credentials", True),
        ("/srv/gas.key", 0, "/srv/credentials", False),
    ],
)
def test_a_credential_is_a_file_of_root_in_a_folder_of_credentials(
    monkeypatch: pytest.MonkeyPatch, path: str, owner: int, folder: str | None, is_credential: bool
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    if folder is not None:
        monkeypatch.setenv("CREDENTIALS_DIRECTORY", folder)
    assert is_systemd_credential(Path(path), owner=owner) is is_credential


@pytest.mark.parametrize("packed", [b"", b"\x02", struct.pack("<I", 3), pack((USER_OBJ, 4, NO_ID))[:-1]])
def test_a_list_of_another_form_has_no_entries(packed: bytes) -> None:
    assert list(parse_acl(packed)) == []
