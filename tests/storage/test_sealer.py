"""A sealed secret opens under its key and label, and nowhere else."""

import pytest

from tollway.errors import StorageUnavailable
from tollway.storage.sealer import Sealer


def make_sealer(key: bytes = b"k" * 32) -> Sealer:
    nonces = iter(range(1_000))
    return Sealer(key, entropy=lambda size: next(nonces).to_bytes(size, "big"))


def test_opens_what_it_sealed() -> None:
    sealer = make_sealer()
    sealed = sealer.seal(b"secret", label=b"a")
    assert b"secret" not in sealed
    assert sealer.open(sealed, label=b"a") == b"secret"


def test_two_seals_of_one_secret_differ() -> None:
    sealer = make_sealer()
    assert sealer.seal(b"secret", label=b"a") != sealer.seal(b"secret", label=b"a")


def test_refuses_another_label() -> None:
    sealer = make_sealer()
    with pytest.raises(StorageUnavailable):
        sealer.open(sealer.seal(b"secret", label=b"a"), label=b"b")


def test_refuses_another_key() -> None:
    sealed = make_sealer().seal(b"secret", label=b"a")
    with pytest.raises(StorageUnavailable):
        make_sealer(b"o" * 32).open(sealed, label=b"a")


@pytest.mark.parametrize("position", [0, 1, 12, 13, -1])
def test_refuses_what_was_altered(position: int) -> None:
    sealer = make_sealer()
    sealed = bytearray(sealer.seal(b"secret", label=b"a"))
    sealed[position] ^= 1
    with pytest.raises(StorageUnavailable):
        sealer.open(bytes(sealed), label=b"a")


@pytest.mark.parametrize("sealed", [b"", b"\x01", b"\x01" * 12, b"\x01" * 20])
def test_refuses_rubbish(sealed: bytes) -> None:
    with pytest.raises(StorageUnavailable):
        make_sealer().open(sealed, label=b"a")


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_takes_only_a_key_of_32_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        make_sealer(bytes(size))


def test_shows_nothing() -> None:
    assert "k" * 4 not in repr(make_sealer())
