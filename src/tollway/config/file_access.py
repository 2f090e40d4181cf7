"""Which users can read a file of a key: its mode, and its access control list where it has one (acl(5)).

systemd hands a credential (`LoadCredential`) to a service as a file of root, with an access control list that names the service's user. Its group bits are then
the mask of that list, not the rights of a group: the mode is 0440, although no other user can read the file. A command of root reads such a file too: there the
list names the service's user beside root, who may read every file anyway.
"""

import errno
import os
import stat
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ACL_NAME = "system.posix_acl_access"
ACL_VERSION = 2
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
"""Tags of entries: the owner, a named user, the owning group, a named group, the mask, all others."""
READ = 4
CREDENTIALS = "/run/credentials"
NO_LIST = frozenset({errno.ENODATA, errno.ENOTSUP, errno.ENOSYS})
_HEADER, _ENTRY = struct.Struct("<I"), struct.Struct("<HHI")


@dataclass(frozen=True, slots=True, kw_only=True)
class AclEntry:
    """One entry of an access control list. `rights`: 4 read, 2 write, 1 execute. `number`: the id of a named user or group."""

    tag: int
    rights: int
    number: int


def can_others_use(path: Path) -> bool:
    """True if a user beside the owner and the user of this process has a right on the file; for root, also if a credential names one user who reads it. Raises OSError."""
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & stat.S_IRWXO or not mode & stat.S_IRWXG:
        return bool(mode & stat.S_IRWXO)
    entries = list(read_acl(path))
    if not entries:
        return True
    mask = next((entry.rights for entry in entries if entry.tag == MASK), 0o7)
    named = [entry for entry in entries if entry.tag == USER and entry.rights & mask]
    is_credential = (
        os.geteuid() == 0
        and is_systemd_credential(path, owner=found.st_uid)
        and [entry.rights & mask for entry in named] == [READ]
    )
    return any(
        entry.rights & mask and not (_is_ours(entry) or (is_credential and entry in named))
        for entry in entries
    )


def is_systemd_credential(path: Path, *, owner: int) -> bool:
    """True for a file of root in a folder of credentials (systemd.exec(5)): elsewhere such a list is a mistake of an administrator, also for root."""
    folders = [CREDENTIALS, *filter(None, [os.environ.get("CREDENTIALS_DIRECTORY")])]
    real = path.resolve()
    return owner == 0 and any(real.is_relative_to(Path(folder).resolve()) for folder in folders)


def _is_ours(entry: AclEntry) -> bool:
    return entry.tag in (USER_OBJ, MASK) or (entry.tag == USER and entry.number == os.geteuid())


def read_acl(path: Path) -> Iterator[AclEntry]:
    """The entries of the access control list; none where the file or the system has no such list. Raises OSError."""
    if sys.platform != "linux":
        return
    try:
        packed = os.getxattr(path, ACL_NAME)
    except OSError as exc:
        if exc.errno in NO_LIST:
            return
        raise
    yield from parse_acl(packed)


def parse_acl(packed: bytes) -> Iterator[AclEntry]:
    """The entries of the attribute as Linux writes it. A list of another version has none, so its file counts as readable by others."""
    if len(packed) % _ENTRY.size != _HEADER.size or _HEADER.unpack_from(packed) != (ACL_VERSION,):
        return
    for tag, rights, number in _ENTRY.iter_unpack(packed[_HEADER.size :]):
        yield AclEntry(tag=tag, rights=rights, number=number)
