"""What an image is built from: the pins that hold for the base's own Python, each with its hashes."""

import re

import pytest

from deploy.image import BasePython, choose_requirements, list_system_packages, read_lock, read_system

LINES = """\
alpha==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:ab
    # via beta
beta[extra]==2.0 ; python_full_version < '3.11.3' \\
    --hash=sha256:ba
    # via
    #   -r requirements/gateway.in
gamma==3.0 ; sys_platform == 'linux' and platform_machine == 'aarch64' \\
    --hash=sha256:ca
"""


def choose(lock: str, version: str, machine: str = "x86_64") -> list[str]:
    return re.findall(
        r"^\S+==\S+", choose_requirements(lock, BasePython(version=version, machine=machine)), re.M
    )


@pytest.mark.parametrize(
    ("version", "machine", "chosen"),
    [
        ("3.11.2", "x86_64", ["alpha==1.0", "beta[extra]==2.0"]),
        ("3.11.3", "x86_64", ["alpha==1.0"]),
        ("3.13.5", "aarch64", ["alpha==1.0", "gamma==3.0"]),
    ],
)
def test_a_marker_is_evaluated_for_the_python_of_the_base(
    version: str, machine: str, chosen: list[str]
) -> None:
    assert choose(LINES, version, machine) == chosen


def test_a_chosen_pin_keeps_its_hashes_and_loses_its_marker() -> None:
    text = choose_requirements(LINES, BasePython(version="3.11.2", machine="x86_64"))
    assert text == (
        "alpha==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:ab\n"
        "beta[extra]==2.0 \\\n    --hash=sha256:ba\n"
    )  # fmt: skip


@pytest.mark.parametrize("lock", ["alpha==1.0\n", "alpha>=1.0 \\\n    --hash=sha256:aa\n", "-e .\n"])
def test_a_line_without_pin_or_hash_is_refused(lock: str) -> None:
    with pytest.raises(ValueError, match="no pin with hashes"):
        choose_requirements(lock, BasePython(version="3.13.5", machine="x86_64"))


@pytest.mark.parametrize("version", ["3.11.2", "3.12.9", "3.13.5"])
@pytest.mark.parametrize("extras", [[], ["search"]], ids=["alone", "with search"])
def test_the_lock_files_are_chosen_whole(version: str, extras: list[str]) -> None:
    """Every package once: two pins of one package have markers that exclude each other, and the lock of an extra has equal pins."""
    names = [pin.partition("==")[0] for pin in choose(read_lock(extras), version)]
    assert len(names) == len(set(names)) > 40
    assert {"numpy", "wordllama"} & set(names) == ({"numpy", "wordllama"} if extras else set())
    assert {
        "granian",
        "opentelemetry-sdk",
        "opentelemetry-exporter-otlp-proto-http",
        "redis",
        "sqlalchemy",
    } <= set(names)


STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u13
Description: GNU C Library
 Contains: the standard libraries

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0

Package: adduser
Status: install ok installed
Architecture: all
Version: 1:3.134
"""
RELEASE = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n'


@pytest.mark.parametrize(("release", "distribution"), [(RELEASE, "debian-12"), ("ID=debian\n", "debian")])
def test_the_packages_of_the_system_are_listed_with_their_urls(release: str, distribution: str) -> None:
    """Package URLs of type `deb`: the version is percent-encoded. Debian sid has no number."""
    document = list_system_packages(STATUS, release)
    assert [component["purl"] for component in document["components"]] == [
        f"pkg:deb/debian/adduser@1%3A3.134?arch=all&distro={distribution}",
        f"pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64&distro={distribution}",
    ]
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")


def test_a_base_that_is_not_debian_is_named() -> None:
    with pytest.raises(SystemExit, match=r"registry/alpine has no /var/lib/dpkg/status .* Debian image"):
        read_system(("false",), "registry/alpine")


def test_wheels_of_every_older_system_fit() -> None:
    platforms = BasePython(version="3.13.5", machine="x86_64").platforms
    assert platforms[0] == "manylinux_2_36_x86_64"
    assert {"manylinux_2_17_x86_64", "manylinux2014_x86_64", "linux_x86_64"} <= set(platforms)
