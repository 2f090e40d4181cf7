"""The address of a PostgreSQL database: parsed from a URL, printed without its password."""

import pytest

from tollway.storage.engine.postgres_address import HOSTS_MAX, PostgresAddress

ONE = (("db.example", 5432),)
TWO = (("h1", 5432), ("h2", 6432))


@pytest.mark.parametrize(
    ("url", "hosts", "session"),
    [
        ("postgresql://db.example/books", ONE, "any"),
        ("postgresql+asyncpg://db.example/books", ONE, "any"),
        ("postgresql:///books", (("localhost", 5432),), "any"),
        ("postgresql://postgres:@/books?host=/run/pg", (("/run/pg", 5432),), "any"),
        ("postgresql:///books?host=/run/pg&port=6432", (("/run/pg", 6432),), "any"),
        ("postgresql://h1,h2:6432/books", TWO, "read-write"),
        ("postgresql:///books?host=h1:5432&host=h2:6432", TWO, "read-write"),
        ("postgresql:///books?host=h1,h2&port=5432,6432", TWO, "read-write"),
        ("postgresql://h1,h2:6432/books?target_session_attrs=primary", TWO, "primary"),
        ("postgresql://h1,h2/books?port=7000", (("h1", 7000), ("h2", 7000)), "read-write"),
        ("postgresql://[::1]:6432,[fd00::2]/books", (("::1", 6432), ("fd00::2", 5432)), "read-write"),
        ("postgresql://h1/books?target_session_attrs=read-write", (("h1", 5432),), "read-write"),
    ],
)
def test_parses_hosts_in_order_and_the_session_attributes(
    url: str, hosts: tuple[tuple[str, int], ...], session: str
) -> None:
    address = PostgresAddress.parse(url)
    assert tuple((host.name, host.port) for host in address.hosts) == hosts
    assert (address.database, address.session) == ("books", session)


def test_parses_user_password_database_and_options() -> None:
    address = PostgresAddress.parse(
        "postgresql://me%40x:p%3A%2Fw@h1:1,h2:2/my%20books?ssl=require&sslrootcert=/ca.pem"
    )
    assert (address.user, address.password, address.database) == ("me@x", "p:/w", "my books")
    assert address.options == (("sslmode", "require"), ("sslrootcert", "/ca.pem"))
    assert address.dsn == "postgresql:///?sslmode=require&sslrootcert=%2Fca.pem"


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("mysql://h1/books", "must begin with"),
        ("postgresql:books", "must begin with"),
        ("postgresql://h1/books?target_session_attrs=standby", "a gateway writes"),
        ("postgresql://h1/books?targetsession=any", "no such parameter"),
        ("postgresql://h1:x/books", "a port is"),
        ("postgresql://h1:0/books", "a port is"),
        ("postgresql://h1:70000/books", "a port is"),
        ("postgresql://::1/books", "a host is"),
        ("postgresql://h1/books?host=h2", "not both"),
        ("postgresql:///books?host=h1,h2,h3&port=1,2", "as many ports"),
        (f"postgresql://{','.join(['h'] * (HOSTS_MAX + 1))}/books", "at most"),
    ],
)
def test_refuses_an_unusable_url_without_its_secret(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        PostgresAddress.parse(url.replace("://", "://me:secret@", 1))
    assert "secret" not in str(caught.value)


def test_is_printed_without_its_password() -> None:
    address = PostgresAddress.parse("postgresql://me:secret@h1,h2:6432/books")
    assert str(address) == "h1:5432,h2:6432/books"
    assert "secret" not in repr(address)
