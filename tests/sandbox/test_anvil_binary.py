"""The chain node: which binary is found, which registry is asked, and that a tarball with another digest is refused."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.kit.threaded_server import serve_in_thread
from tollway.sandbox.anvil_binary import (
    DEFAULT_REGISTRY,
    AnvilMissing,
    AnvilPackage,
    AnvilUnavailable,
    cached_binary,
    fetch_anvil,
    find_anvil,
    find_checkout,
    parse_integrity,
    read_registry,
)

ROOT = Path(__file__).parents[2]
PROGRAM = b"#!/bin/sh\necho a chain\n"


def pack(**members: bytes) -> bytes:
    """A tarball as npm packs it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(f"package/{name.replace('__', '/')}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


TARBALL = pack(**{"package.json": b"{}", "bin__anvil": PROGRAM, "..__..__escape": b"x"})


def package_of(tarball: bytes) -> AnvilPackage:
    return AnvilPackage(
        name="@foundry-rs/anvil-linux-amd64",
        version="1.7.1",
        tarball_bytes=len(tarball),
        sha512=hashlib.sha512(tarball).digest(),
        binary_sha256=hashlib.sha256(PROGRAM).digest(),
    )


class Registry(ThreadingHTTPServer):
    """A registry on loopback that sends `content` for every path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), RegistryHandler)
        self.content, self.status = TARBALL, 200
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/mirror/"


class RegistryHandler(BaseHTTPRequestHandler):
    server: Registry

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(self.server.content)))
        self.end_headers()
        self.wfile.write(self.server.content)


@pytest.fixture
def registry() -> Iterator[Registry]:
    server = Registry()
    with serve_in_thread(server):
        yield server


def test_the_table_has_the_digests_of_the_lock_file() -> None:
    locked = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    table = json.loads((ROOT / "src" / "tollway" / "sandbox" / "anvil_package.json").read_text())
    assert locked["node_modules/@foundry-rs/anvil"]["version"] == table["version"]
    prefix = "node_modules/@foundry-rs/anvil-"
    assert {name: entry["integrity"] for name, entry in table["platforms"].items()} == {
        path.removeprefix(prefix): entry["integrity"]
        for path, entry in locked.items()
        if path.startswith(prefix) and path != f"{prefix}win32-amd64"  # Tollway does not run there
    }


def test_the_package_of_this_platform_is_that_of_the_lock_file() -> None:
    package = AnvilPackage.load(platform_name="linux-amd64")
    assert package is not None
    assert package.url(DEFAULT_REGISTRY) == (
        f"https://registry.npmjs.org/@foundry-rs/anvil-linux-amd64/-/anvil-linux-amd64-{package.version}.tgz"
    )
    assert AnvilPackage.load(platform_name="plan9-mips") is None


@pytest.mark.parametrize("text", ["", "sha1-AAAA", "sha512-AAAA", "sha512-?", "sha512"])
def test_another_digest_than_sha512_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"digest|base64"):
        parse_integrity(text)


def test_the_binary_is_fetched_whole_and_nothing_else_is_unpacked(registry: Registry, tmp_path: Path) -> None:
    target = tmp_path / "cache" / "anvil-1" / "anvil"
    assert fetch_anvil(package_of(TARBALL), registry=registry.url, target=target) == target
    assert registry.paths == ["/mirror/@foundry-rs/anvil-linux-amd64/-/anvil-linux-amd64-1.7.1.tgz"]
    assert target.read_bytes() == PROGRAM
    assert target.stat().st_mode & 0o777 == 0o755
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()] == [
        target.relative_to(tmp_path)
    ]


def flip_a_bit(tarball: bytes) -> bytes:
    middle = len(tarball) // 2
    return tarball[:middle] + bytes((tarball[middle] ^ 1,)) + tarball[middle + 1 :]


EMPTY = pack(readme=b"no binary")


@pytest.mark.parametrize(
    ("content", "status", "expected", "reason"),
    [
        (flip_a_bit(TARBALL), 200, TARBALL, "SHA-512 differs"),
        (TARBALL + b"x", 200, TARBALL, "SHA-512 differs"),
        (TARBALL[:-1], 200, TARBALL, "SHA-512 differs"),
        (b"", 200, TARBALL, "SHA-512 differs"),
        (TARBALL, 404, TARBALL, "404"),
        (EMPTY, 200, EMPTY, "holds no package/bin/anvil"),
        (b"no archive", 200, b"no archive", "holds no package/bin/anvil"),
    ],
    ids=["a flipped bit", "longer", "shorter", "empty", "not found", "without the binary", "no tarball"],
)
def test_another_tarball_is_refused_and_nothing_of_it_is_kept(
    registry: Registry, tmp_path: Path, content: bytes, status: int, expected: bytes, reason: str
) -> None:
    registry.content, registry.status = content, status
    with pytest.raises(AnvilUnavailable, match=reason):
        fetch_anvil(package_of(expected), registry=registry.url, target=tmp_path / "cache" / "anvil")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_registry_that_does_not_answer_is_a_sentence(tmp_path: Path) -> None:
    with Registry() as server:
        url = server.url
    with pytest.raises(AnvilUnavailable, match=r"did not send .* TOLLWAY_ANVIL"):
        fetch_anvil(package_of(TARBALL), registry=url, target=tmp_path / "anvil")


NPMRC = "registry = https://mirror.example/npm/\nfund=false\n"


@pytest.mark.parametrize(
    ("npmrc", "variables", "expected"),
    [
        (None, {}, DEFAULT_REGISTRY),
        ("fund=false\n", {}, DEFAULT_REGISTRY),
        (NPMRC, {}, "https://mirror.example/npm/"),
        (NPMRC + '@foundry-rs:registry="https://own.example"\n', {}, "https://own.example"),
        ("@other:registry=https://other.example\n", {}, DEFAULT_REGISTRY),
        ("; registry=https://comment.example\n", {}, DEFAULT_REGISTRY),
        (NPMRC, {"npm_config_registry": "https://set.example/"}, "https://set.example/"),
        (None, {"NPM_CONFIG_REGISTRY": "https://set.example/"}, "https://set.example/"),
    ],
    ids=[
        "nothing",
        "no setting",
        "npmrc",
        "of the scope",
        "of another scope",
        "a comment",
        "variable",
        "in capitals",
    ],
)
def test_the_registry_is_npms_own_setting(
    npmrc: str | None, variables: dict[str, str], expected: str, tmp_path: Path
) -> None:
    if npmrc is not None:
        (tmp_path / ".npmrc").write_text(npmrc)
    assert read_registry({"HOME": str(tmp_path), **variables}) == expected


def make_program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PROGRAM)
    path.chmod(0o755)
    return path


def test_the_binary_is_the_first_of_name_checkout_cache_and_path(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "PATH": str(tmp_path / "bin")}
    package = package_of(TARBALL)
    modules = tmp_path / "node_modules" / "@foundry-rs" / "anvil-linux-amd64" / "bin" / "anvil"
    named = make_program(tmp_path / "own" / "node")
    places = [tmp_path / "bin" / "anvil", cached_binary(package, environment), modules]
    with pytest.raises(AnvilMissing, match="tollway demo --yes"):
        find_anvil(checkout=tmp_path, package=package, environment=environment)
    for place in places:
        make_program(place)
        assert find_anvil(checkout=tmp_path, package=package, environment=environment) == place
    environment["TOLLWAY_ANVIL"] = str(named)
    assert find_anvil(checkout=tmp_path, package=package, environment=environment) == named


@pytest.mark.parametrize("place", ["node_modules", "cache"])
def test_another_binary_is_refused_and_no_other_place_is_tried(tmp_path: Path, place: str) -> None:
    environment = {"HOME": str(tmp_path), "PATH": str(tmp_path / "bin")}
    package = package_of(TARBALL)
    modules = tmp_path / "node_modules" / "@foundry-rs" / "anvil-linux-amd64" / "bin" / "anvil"
    binary = make_program(modules if place == "node_modules" else cached_binary(package, environment))
    make_program(tmp_path / "bin" / "anvil")
    binary.write_bytes(PROGRAM + b"# planted")
    with pytest.raises(AnvilUnavailable, match=r"SHA-256 differs. It was not run."):
        find_anvil(checkout=tmp_path, package=package, environment=environment)


def test_the_checkout_is_that_of_the_package_and_of_no_folder_around_it(tmp_path: Path) -> None:
    (tmp_path / "package-lock.json").write_text("{}")
    module = tmp_path / "src" / "tollway" / "sandbox" / "anvil_binary.py"
    assert find_checkout(module) == tmp_path
    assert find_checkout(tmp_path / "lib" / "tollway" / "sandbox" / "anvil_binary.py") is None
    (tmp_path / "package-lock.json").unlink()
    assert find_checkout(module) is None


def test_a_tarball_with_another_binary_is_refused(registry: Registry, tmp_path: Path) -> None:
    registry.content = pack(bin__anvil=b"another")
    with pytest.raises(AnvilUnavailable, match="SHA-256 differs"):
        fetch_anvil(package_of(registry.content), registry=registry.url, target=tmp_path / "anvil")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_name_that_is_no_program_is_refused_although_another_binary_is_there(tmp_path: Path) -> None:
    make_program(tmp_path / "anvil")
    environment = {"PATH": str(tmp_path), "TOLLWAY_ANVIL": str(tmp_path / "nothing")}
    with pytest.raises(AnvilUnavailable, match="is no program"):
        find_anvil(environment=environment)


def test_the_cache_is_the_users_own_setting(tmp_path: Path) -> None:
    package = package_of(TARBALL)
    own = {"HOME": "/home/user", "XDG_CACHE_HOME": str(tmp_path)}
    assert cached_binary(package, own) == tmp_path / "tollway" / "anvil-linux-amd64-1.7.1" / "anvil"
    assert str(cached_binary(package, {"HOME": "/home/user"})).startswith("/home/user/.cache/tollway/")
