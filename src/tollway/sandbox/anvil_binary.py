"""Finds the anvil binary, the chain node of the sandbox; and fetches it from the npm registry where the caller agrees.

The digests of the package and of its binary are in `anvil_package.json`, which a test compares with `package-lock.json`. A tarball with another digest is never
unpacked, and only the one binary is. A binary of node_modules or of the cache is compared with its SHA-256 at every start, and another one never runs. Nothing of npm or Node
runs. The registry is npm's own setting, because some machines reach only a mirror.
"""

import base64
import binascii
import hashlib
import os
import platform
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import IO, Self

import httpx
from pydantic_core import from_json

DEFAULT_REGISTRY = "https://registry.npmjs.org/"
BINARY_MEMBER = "package/bin/anvil"
BINARY_BYTES_MAX = 512 * 1024 * 1024
FETCH_TIMEOUT_S = 60.0
"""Without a byte from the registry."""
_SETTING = re.compile(r"\s*(@foundry-rs:)?registry\s*=\s*\"?([^\s\"]+)\"?\s*")


class AnvilUnavailable(Exception):
    """The test chain cannot be started."""


class AnvilMissing(AnvilUnavailable):
    """There is no binary, and `package` has one for this platform."""

    def __init__(self, package: "AnvilPackage") -> None:
        self.package = package
        super().__init__(
            "the chain node anvil is missing: `tollway demo --yes` fetches it, and TOLLWAY_ANVIL names a binary that you have"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnvilPackage:
    """The npm package with the binary of one platform. `sha512`: of its tarball. `binary_sha256`: of `BINARY_MEMBER`."""

    name: str
    version: str
    tarball_bytes: int
    sha512: bytes
    binary_sha256: bytes

    @classmethod
    def load(cls, *, platform_name: str) -> Self | None:
        """None for a platform whose package is not in the table."""
        table = from_json((files("tollway.sandbox") / "anvil_package.json").read_bytes())
        entry = table["platforms"].get(platform_name)
        if entry is None:
            return None
        return cls(
            name=f"{table['name']}-{platform_name}",
            version=table["version"],
            tarball_bytes=entry["tarballBytes"],
            sha512=parse_integrity(entry["integrity"]),
            binary_sha256=bytes.fromhex(entry["binarySha256"]),
        )

    def url(self, registry: str) -> str:
        _, _, short_name = self.name.partition("/")
        return f"{registry.rstrip('/')}/{self.name}/-/{short_name}-{self.version}.tgz"

    def describe(self) -> str:
        return f"anvil {self.version}, {self.tarball_bytes / 1e6:.0f} MB"


def parse_integrity(text: str) -> bytes:
    """The digest of `sha512-` and base64 (Subresource Integrity). Raises ValueError."""
    kind, _, encoded = text.partition("-")
    try:
        digest = base64.b64decode(encoded, validate=True)
    except binascii.Error as exc:
        raise ValueError("the digest is not base64") from exc
    if kind != "sha512" or len(digest) != hashlib.sha512().digest_size:
        raise ValueError("not a SHA-512 digest")
    return digest


def name_platform() -> str:
    """This machine in the names of the npm packages, such as `linux-amd64`."""
    machine = platform.machine().lower()
    return f"{sys.platform}-{ {'x86_64': 'amd64', 'aarch64': 'arm64'}.get(machine, machine) }"


def find_anvil(
    *,
    checkout: Path | None = None,
    package: AnvilPackage | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Path:
    """The binary, not its Node launcher: the one that `TOLLWAY_ANVIL` names; else of node_modules in the checkout of this package, of the cache, of PATH.

    The first that exists is taken; in node_modules and in the cache it must be the binary of `package`, by default that of this platform. Raises
    `AnvilMissing` where `fetch_anvil` can help, else `AnvilUnavailable`.
    """
    if named := environment.get("TOLLWAY_ANVIL"):
        path = Path(named).expanduser()
        if not (path.is_file() and os.access(path, os.X_OK)):
            raise AnvilUnavailable(f"TOLLWAY_ANVIL names {path}, which is no program; name the anvil binary")
        return path
    package = package or AnvilPackage.load(platform_name=name_platform())
    if package is not None:
        own = checkout or find_checkout()
        places = [] if own is None else [own / "node_modules" / package.name / "bin" / "anvil"]
        for place in (*places, cached_binary(package, environment)):
            if place.is_file():
                return check_binary(place, package)
    on_path = shutil.which("anvil", path=environment.get("PATH"))
    if on_path is not None:
        return Path(on_path)
    if package is not None:
        raise AnvilMissing(package)
    raise AnvilUnavailable(
        f"the chain node anvil is missing, and Tollway fetches none for {name_platform()}: install Foundry, "
        "and put anvil on PATH or name it with TOLLWAY_ANVIL"
    )


def find_checkout(module: Path = Path(__file__)) -> Path | None:
    """The folder of the checkout that this package runs from; None for an installed one. The current folder and its parents may be those of other users."""
    *_, sources, checkout = module.resolve().parents[:4]
    return checkout if sources.name == "src" and (checkout / "package-lock.json").is_file() else None


def check_binary(binary: Path, package: AnvilPackage) -> Path:
    """The path, of a file with the SHA-256 of the package's binary. Raises `AnvilUnavailable` for another file, which must not run."""
    try:
        with binary.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").digest()
    except OSError as exc:
        raise AnvilUnavailable(
            f"{binary} cannot be read: {exc.strerror}. Delete it, and start again"
        ) from exc
    if digest != package.binary_sha256:
        raise AnvilUnavailable(
            f"{binary} is not the anvil {package.version} that Tollway was released with: its SHA-256 differs. It was not run. "
            "Delete it and start again, or name a binary of your own with TOLLWAY_ANVIL"
        )
    return binary


def cached_binary(package: AnvilPackage, environment: Mapping[str, str] = os.environ) -> Path:
    root = environment.get("XDG_CACHE_HOME") or str(
        Path(environment.get("HOME", "~")).expanduser() / ".cache"
    )
    return Path(root) / "tollway" / f"{package.name.rpartition('/')[2]}-{package.version}" / "anvil"


def read_registry(environment: Mapping[str, str] = os.environ) -> str:
    """npm's registry: the variable `npm_config_registry` in any case, else the `.npmrc` of the user, else the public one."""
    for name, value in environment.items():
        if name.lower() == "npm_config_registry" and value:
            return value
    file = environment.get("NPM_CONFIG_USERCONFIG") or environment.get("npm_config_userconfig")
    path = Path(file) if file else Path(environment.get("HOME", "~")).expanduser() / ".npmrc"
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    found = [match for line in lines if (match := _SETTING.fullmatch(line))]
    scoped = [match[2] for match in found if match[1]]
    return [DEFAULT_REGISTRY, *(match[2] for match in found if not match[1]), *scoped][-1]


def fetch_anvil(package: AnvilPackage, *, registry: str, target: Path) -> Path:
    """Fetches the tarball, compares its size and digest, and puts the binary at `target`, which is whole or absent.

    Raises `AnvilUnavailable`: the registry does not answer, or the tarball is another one.
    """
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=target.parent) as folder:
        tarball, binary = Path(folder) / "tarball.tgz", Path(folder) / "anvil"
        _download(package, registry, tarball)
        try:
            with tarfile.open(tarball) as archive, binary.open("xb") as output:
                _copy_binary(archive, output)
        except (tarfile.TarError, KeyError, EOFError) as exc:
            raise AnvilUnavailable(f"the package {package.name} holds no {BINARY_MEMBER}") from exc
        check_binary(binary, package)
        binary.chmod(0o755)
        binary.replace(target)
    return target


def _download(package: AnvilPackage, registry: str, file: Path) -> None:
    digest, size = hashlib.sha512(), 0
    url = package.url(registry)
    try:
        with (
            file.open("xb") as output,
            httpx.Client(timeout=FETCH_TIMEOUT_S, follow_redirects=True) as client,
            client.stream("GET", url) as response,
        ):
            response.raise_for_status()
            for part in response.iter_raw():
                size += len(part)
                if size > package.tarball_bytes:
                    break
                digest.update(part)
                output.write(part)
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise AnvilUnavailable(
            f"the npm registry did not send {url}: {exc}. Try again, or name a binary with TOLLWAY_ANVIL"
        ) from exc
    if size != package.tarball_bytes or digest.digest() != package.sha512:
        raise AnvilUnavailable(
            f"{url} is not the package that Tollway was released with: its size or SHA-512 differs. Nothing of it was kept"
        )


def _copy_binary(archive: tarfile.TarFile, output: IO[bytes]) -> None:
    member = archive.getmember(BINARY_MEMBER)
    content = archive.extractfile(member) if member.isfile() and member.size <= BINARY_BYTES_MAX else None
    if content is None:
        raise KeyError(BINARY_MEMBER)
    shutil.copyfileobj(content, output)
