"""A sealed secret opens under its key and label, and nowhere else."""

import pytest

from tollway.errors import StorageUnavailable
from tollway.storage.engine.encryption import KeyAge, Sealer

OLD, NEW = b"k" * 32, b"n" * 32


def make_sealer(key: bytes = OLD, *others: bytes) -> Sealer:
    nonces = iter(range(1_000))
    return Sealer(key, entropy=lambda size: next(nonces).to_bytes(size, "big"), others=others)


def test_opens_what_it_sealed() -> None:
    sealer = make_sealer()
    sealed = sealer.seal(b"secret", label=b"a")
    assert b"secret" not in sealed
    assert sealer.open(sealed, label=b"a") == b"secret"


def test_two_seals_of_one_secret_differ() -> None:
    sealer = make_sealer()
    assert sealer.seal(b"secret", label=b"a") != sealer.seal(b"secret", label=b"a")


@pytest.mark.parametrize(("key", "label"), [(OLD, b"b"), (b"o" * 32, b"a")], ids=["label", "key"])
def test_refuses_another_label_and_another_key(key: bytes, label: bytes) -> None:
    sealed = make_sealer().seal(b"secret", label=b"a")
    with pytest.raises(StorageUnavailable):
        make_sealer(key).open(sealed, label=label)


@pytest.mark.parametrize("keys", [(OLD,), (NEW, OLD)], ids=["plain", "named"])
@pytest.mark.parametrize("position", [0, 1, 8, 9, 12, 13, 20, 21, -1])
def test_refuses_what_was_altered(position: int, keys: tuple[bytes, ...]) -> None:
    sealer = make_sealer(*keys)
    sealed = bytearray(sealer.seal(b"secret", label=b"a"))
    sealed[position] ^= 1
    with pytest.raises(StorageUnavailable):
        sealer.open(bytes(sealed), label=b"a")


@pytest.mark.parametrize(
    "sealed", [b"", b"\x01", b"\x01" * 12, b"\x01" * 20, b"\x02", b"\x02" * 9, b"\x02" * 40]
)
def test_refuses_rubbish(sealed: bytes) -> None:
    with pytest.raises(StorageUnavailable):
        make_sealer().open(sealed, label=b"a")


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_takes_only_a_key_of_32_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        make_sealer(bytes(size))


def test_shows_nothing() -> None:
    assert "k" * 4 not in repr(make_sealer(NEW, OLD))


PHASES = (make_sealer(OLD), make_sealer(OLD, NEW), make_sealer(NEW, OLD), make_sealer(NEW))
"""Of a change of the key, over several gateways: two that stand side by side serve at once."""


@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)])
def test_what_gateways_seal_while_the_key_changes_opens_at_the_others(one: int, other: int) -> None:
    sealed = PHASES[one].seal(b"secret", label=b"a")
    assert PHASES[other].open(sealed, label=b"a") == b"secret"


def test_the_first_key_seals_and_every_key_opens() -> None:
    sealed = make_sealer(NEW, OLD).seal(b"secret", label=b"a")
    assert make_sealer(NEW).open(sealed, label=b"a") == b"secret"
    with pytest.raises(StorageUnavailable):
        make_sealer(OLD).open(sealed, label=b"a")


def test_a_lone_key_seals_as_the_release_before_can_read() -> None:
    sealed = make_sealer().seal(b"secret", label=b"a")
    assert sealed[:1] == b"\x01"
    assert make_sealer(NEW, OLD).seal(b"secret", label=b"a")[:1] == b"\x02"
    assert make_sealer(NEW, OLD).open(sealed, label=b"a") == b"secret"


@pytest.mark.parametrize(
    ("sealed_by", "looked_at_by", "age"),
    [
        (make_sealer(OLD), make_sealer(OLD), KeyAge.CURRENT),
        (make_sealer(OLD), make_sealer(OLD, NEW), KeyAge.CURRENT),
        (make_sealer(OLD), make_sealer(NEW, OLD), KeyAge.OLDER),
        (make_sealer(OLD), make_sealer(NEW), KeyAge.LOST),
        (make_sealer(OLD, NEW), make_sealer(NEW, OLD), KeyAge.OLDER),
        (make_sealer(OLD, NEW), make_sealer(NEW), KeyAge.LOST),
        (make_sealer(NEW, OLD), make_sealer(NEW, OLD), KeyAge.CURRENT),
        (make_sealer(NEW, OLD), make_sealer(NEW), KeyAge.CURRENT),
        (make_sealer(NEW, OLD), make_sealer(OLD, NEW), KeyAge.OLDER),
    ],
)
def test_finds_the_key_of_a_sealed_value(sealed_by: Sealer, looked_at_by: Sealer, age: KeyAge) -> None:
    sealed = sealed_by.seal(b"secret", label=b"a")
    assert looked_at_by.find_key_age(sealed, label=b"a") is age
    assert looked_at_by.find_key_age(sealed, label=b"b") is KeyAge.LOST


def test_the_name_of_a_key_cannot_be_taken_off_a_seal() -> None:
    sealer = make_sealer(NEW, OLD)
    sealed = sealer.seal(b"secret", label=b"a")
    assert sealer.find_key_age(b"\x01" + sealed[9:], label=b"a") is KeyAge.LOST
