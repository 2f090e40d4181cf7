"""Builds the image of a gateway: `make image`.

The image is built without a network. This program asks the base image for its Python, fetches the locked wheels for exactly that Python with their hashes, puts
our own wheel beside them, and runs the builder. The lock file has markers such as `python_full_version < "3.11.3"`; pip evaluates them for the Python that
runs it, so they are evaluated here, for the base's.
"""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.markers import Marker

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements"
LOCK = REQUIREMENTS / "image.txt"
"""The lock of `tollway[gateway,redis,otel]`: a gateway that may share its rates and send traces."""
EXTRA_LOCKS = {"search": REQUIREMENTS / "search.txt"}
"""The locks of the extras that an image has when its builder names them."""
CONTAINERFILE = ROOT / "deploy" / "Containerfile"
GLIBC_MINORS = range(5, 37)
"""glibc of Debian 12: the wheels of every older one run on it."""
DPKG_STATUS, OS_RELEASE = "/var/lib/dpkg/status", "/etc/os-release"
ASK = "import json, platform, sys; print(json.dumps([platform.python_version(), platform.machine()]))"
PIN = re.compile(r"^(?P<pin>[A-Za-z0-9._-]+(?:\[[^]]*\])?==\S+)(?: ; (?P<marker>[^\\]+?))? \\$")


@dataclass(frozen=True, slots=True, kw_only=True)
class BasePython:
    """The Python of a base image: `version` such as 3.13.5, `machine` such as x86_64."""

    version: str
    machine: str

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])

    @property
    def markers(self) -> Mapping[str, str]:
        """The environment of markers (PEP 508)."""
        return {
            "implementation_name": "cpython",
            "implementation_version": self.version,
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "platform_release": "",
            "platform_version": "",
            "python_full_version": self.version,
            "python_version": self.minor,
            "sys_platform": "linux",
        }

    @property
    def platforms(self) -> list[str]:
        """The platform tags of wheels, newest first."""
        tags = [f"manylinux_2_{minor}_{self.machine}" for minor in reversed(GLIBC_MINORS)]
        old = {"x86_64": ("manylinux2014", "manylinux2010", "manylinux1"), "aarch64": ("manylinux2014",)}
        return [*tags, *(f"{name}_{self.machine}" for name in old.get(self.machine, ())), f"linux_{self.machine}"]  # fmt: skip


def choose_requirements(lock: str, python: BasePython) -> str:
    """The pins of lock files that hold for this Python, each once, with their hashes and without markers. Raises ValueError for a line that is no pin."""
    pins = dict(_read_pins(lock, python))
    return "".join(f"{pin} \\\n{hashes}" for pin, hashes in pins.items())


def _read_pins(lock: str, python: BasePython) -> Iterator[tuple[str, str]]:
    for block in re.split(r"\n(?=[^\s#])", re.sub(r"^\s*#.*\n?", "", lock, flags=re.MULTILINE)):
        if not block.strip():
            continue
        first, *hashes = block.splitlines()
        match = PIN.match(first)
        if match is None or not hashes or not all(line.lstrip().startswith("--hash=") for line in hashes):
            raise ValueError(f"no pin with hashes: {first}")
        if match["marker"] is None or Marker(match["marker"]).evaluate(dict(python.markers)):
            yield match["pin"], "\n".join(hashes) + "\n"


def fetch_wheels(requirements: Path, python: BasePython, target: Path) -> None:
    """Downloads the wheels of the requirements, and compares their hashes. Raises CalledProcessError."""
    platforms = [word for tag in python.platforms for word in ("--platform", tag)]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--require-hashes", "--only-binary", ":all:", "--implementation", "cp"),
            *("--python-version", python.minor, *platforms, "--dest", str(target), "-r", str(requirements)),
        ],
        check=True,
    )


def read_lock(extras: Sequence[str]) -> str:
    return "\n".join(lock.read_text() for lock in (LOCK, *(EXTRA_LOCKS[extra] for extra in extras)))


def write_context(folder: Path, *, python: BasePython, wheel: Path, extras: Sequence[str]) -> None:
    """What the image file copies: `runtime.txt`, and `wheels` with our own among them."""
    (folder / "wheels").mkdir()
    requirements = folder / "runtime.txt"
    requirements.write_text(choose_requirements(read_lock(extras), python))
    fetch_wheels(requirements, python, folder / "wheels")
    shutil.copy(wheel, folder / "wheels")


def ask_python(builder: Sequence[str], base: str) -> BasePython:
    version, machine = json.loads(run_in(builder, base, "python3", "-c", ASK))
    return BasePython(version=version, machine=machine)


def run_in(builder: Sequence[str], image: str, program: str, *arguments: str) -> str:
    """What one program of an image prints, run by buildah, podman or docker. Raises CalledProcessError."""
    if not is_buildah(builder):
        return _run(*builder, "run", "--rm", "--entrypoint", program, image, *arguments)
    container = _run(*builder, "from", image).strip()
    try:
        return _run(*builder, "run", "--isolation", "chroot", container, program, *arguments)
    finally:
        _run(*builder, "rm", container)


def read_system(builder: Sequence[str], base: str) -> tuple[str, str]:
    """The files of a base image that `list_system_packages` reads."""
    try:
        return run_in(builder, base, "cat", DPKG_STATUS), run_in(builder, base, "cat", OS_RELEASE)
    except subprocess.CalledProcessError:
        raise SystemExit(
            f"error: {base} has no {DPKG_STATUS} and {OS_RELEASE}: BASE must be a Debian image"
        ) from None


def list_system_packages(status: str, release: str) -> dict[str, Any]:
    """A CycloneDX document of the installed Debian packages. `status`: the content of dpkg's file; `release`: of os-release. The virtualenv has a document of its own (`make sbom`)."""
    system = dict(shlex.split(line)[0].split("=", 1) for line in release.splitlines() if "=" in line)
    # Debian sid has no number.
    distribution = f"{system['ID']}-{system.get('VERSION_ID', '')}".rstrip("-")
    components = []
    for block in status.strip().split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in block.splitlines() if line[:1].isalpha() and ": " in line
        )
        if fields.get("Status") != "install ok installed":
            continue
        name, version, machine = fields["Package"], fields["Version"], fields["Architecture"]
        place = f"{quote(name, safe='')}@{quote(version, safe='')}?arch={machine}&distro={distribution}"
        purl = f"pkg:deb/{system['ID']}/{place}"
        components.append(
            {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        )
    components.sort(key=lambda component: component["purl"])
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}


def is_buildah(builder: Sequence[str]) -> bool:
    """`builder` may begin with `env` and variables."""
    return any(Path(word).name == "buildah" for word in builder)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def find_wheel() -> Path:
    """The one wheel in `dist/`, which `make package` has built."""
    found = sorted((ROOT / "dist").glob("tollway-*.whl"))
    if len(found) != 1:
        raise SystemExit("error: dist/ must hold one wheel of Tollway: run `make package`")
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds the image of a gateway.")
    parser.add_argument("--builder", default="buildah", help="buildah, podman or docker, with its options")
    parser.add_argument("--base", required=True, help="the base image, best by its digest")
    parser.add_argument("--tag", default="localhost/tollway:edge")
    parser.add_argument(
        "--extra",
        action="append",
        choices=EXTRA_LOCKS,
        default=[],
        help="an extra of tollway that the image has too",
    )
    parser.add_argument("--sbom", type=Path, default=ROOT / "dist" / "image-system.cdx.json")
    options = parser.parse_args()
    builder, wheel = shlex.split(options.builder), find_wheel()
    python = ask_python(builder, options.base)
    print(f"{options.base} has Python {python.version} on {python.machine}", flush=True)
    status, release = read_system(builder, options.base)  # the image adds no Debian package
    with tempfile.TemporaryDirectory(prefix="tollway-image-") as name:
        folder = Path(name)
        write_context(folder, python=python, wheel=wheel, extras=options.extra)
        build = ["bud", "--isolation", "chroot"] if is_buildah(builder) else ["build", "--network", "none"]
        version = wheel.name.split("-")[1]
        arguments = ("--build-arg", f"BASE={options.base}", "--build-arg", f"VERSION={version}")
        command = [*builder, *build, *arguments, "--tag", options.tag, "--file", str(CONTAINERFILE), name]
        subprocess.run(command, check=True)
    print(f"built {options.tag}")
    options.sbom.parent.mkdir(parents=True, exist_ok=True)
    options.sbom.write_text(json.dumps(list_system_packages(status, release), indent=2) + "\n")
    print(f"wrote {options.sbom}")


if __name__ == "__main__":
    main()
