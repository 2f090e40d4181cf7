"""A release: two builds are equal byte for byte, the source distribution builds the same wheel, and a commit is released only with its tag and its changelog."""

import os
import re
import shutil
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from sqlalchemy import text

from release.build import ROOT, SOURCES, ZIP_EPOCH_MIN, build, copy_sources, write_sdist, write_wheel
from release.check import (
    Tables,
    find_floor,
    find_problems,
    find_table_problems,
    find_version_before,
    read_sections,
    read_tables,
    write_digests,
)
from tests.kit.databases import open_database, write_newer_migrations
from tollway.storage.engine.migrate import BASELINE, MIGRATIONS, baseline_path, upgrade

EPOCH_S = 1_795_000_000
SECTION = """\
# Changelog

## Unreleased

## 0.2.0 (2026-12-01)

- **Before:** nothing.
- **During:** replace the gateways one after the other.
- **After:** run `tollway gateway migrate`.

## 0.1.0 (2026-11-28)

- **Before:** nothing.
"""


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(ROOT, tmp_path_factory.mktemp("first"), epoch_s=EPOCH_S)


def test_a_second_build_has_the_same_bytes(first: list[Path], tmp_path: Path) -> None:
    """From another checkout: later, with another umask and other rights."""
    checkout = tmp_path / "checkout"
    before = os.umask(0o002)
    try:
        copy_sources(ROOT, checkout)
        for path in checkout.rglob("*.py"):
            path.chmod(0o664)
            os.utime(path, (time.time() - 86_400,) * 2)
        second = build(checkout, tmp_path / "second", epoch_s=EPOCH_S)
    finally:
        os.umask(before)
    assert [path.name for path in second] == [path.name for path in first]
    assert [path.read_bytes() for path in second] == [path.read_bytes() for path in first]


def test_the_source_distribution_builds_the_same_wheel(first: list[Path], tmp_path: Path) -> None:
    wheel, sdist = first
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    again, _ = build(source, tmp_path / "again", epoch_s=EPOCH_S)
    assert again.read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("name", ["runbooks", "guides"])
def test_the_wheel_has_every_page_of_the_documentation_that_a_gateway_shows(
    first: list[Path], name: str
) -> None:
    folder = f"tollway/web/pages/{name}/"
    with zipfile.ZipFile(first[0]) as wheel:
        packed = {one: wheel.read(one) for one in wheel.namelist() if one.startswith(folder)}
    pages = (ROOT / "src" / "tollway" / "web" / "pages" / name).glob("*.md")
    assert packed == {f"{folder}{path.name}": path.read_bytes() for path in pages}


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_the_wheel_has_the_statements_of_a_new_database(first: list[Path], dialect: str) -> None:
    path = baseline_path(MIGRATIONS, dialect)
    with zipfile.ZipFile(first[0]) as wheel:
        assert wheel.read(f"tollway/storage/engine/migrations/{path.name}") == path.read_bytes()


def test_another_moment_gives_other_bytes_and_the_same_files(first: list[Path], tmp_path: Path) -> None:
    """The test above could not fail if the moment were not in the archives."""
    for path, write in zip(first, (write_wheel, write_sdist), strict=True):
        write(path, tmp_path / path.name, epoch_s=EPOCH_S + 86_400)
        assert (tmp_path / path.name).read_bytes() != path.read_bytes()
    with zipfile.ZipFile(first[0]) as one, zipfile.ZipFile(tmp_path / first[0].name) as other:
        assert {name: one.read(name) for name in one.namelist()} == {
            name: other.read(name) for name in other.namelist()
        }


def test_a_moment_before_zip_files_is_that_of_the_first(first: list[Path], tmp_path: Path) -> None:
    write_wheel(first[0], tmp_path / "old.whl", epoch_s=0)
    with zipfile.ZipFile(tmp_path / "old.whl") as wheel:
        assert {entry.date_time for entry in wheel.infolist()} == {time.gmtime(ZIP_EPOCH_MIN)[:6]}


def test_an_archive_names_no_user_and_no_folder_of_the_machine(first: list[Path]) -> None:
    with tarfile.open(first[1]) as sdist:
        entries = sdist.getmembers()
    assert {(entry.uid, entry.gid, entry.uname, entry.gname) for entry in entries} == {(0, 0, "", "")}
    assert {entry.mtime for entry in entries} == {EPOCH_S}
    with zipfile.ZipFile(first[0]) as wheel:
        assert not [name for name in wheel.namelist() if str(ROOT).encode() in wheel.read(name)]


def test_a_build_reads_only_the_named_sources(tmp_path: Path) -> None:
    copy_sources(ROOT, tmp_path / "copy")
    tops = {path.name for path in (tmp_path / "copy").iterdir()}
    assert tops == {name.split("/")[0] for name in SOURCES}
    assert not list((tmp_path / "copy").rglob("__pycache__"))


BASE = "docker.io/library/python:3.13-slim-bookworm"
GOOD = {
    "version": "0.2.0",
    "tags": frozenset({"v0.2.0"}),
    "changelog": SECTION,
    "is_clean": True,
    "base": f"{BASE}@sha256:{'ab' * 32}",
}


def test_the_image_is_of_an_optimised_python_3_13_unless_another_is_named() -> None:
    """The official images are built with profile-guided optimisation."""
    assert f"ARG BASE={BASE}\n" in (ROOT / "deploy" / "Containerfile").read_text()
    assert f"BASE ?= {BASE}\n" in (ROOT / "Makefile").read_text()


def test_a_commit_with_tag_and_section_can_be_released() -> None:
    assert list(find_problems(**GOOD)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "0.2.0rc1", "tags": frozenset({"v0.2.0rc1"})}, "is not MAJOR.MINOR.PATCH"),
        ({"tags": frozenset({"v0.1.0"})}, "no tag v0.2.0 points to this commit"),
        ({"is_clean": False}, "the working tree differs"),
        ({"base": BASE}, "is not named by its digest"),
        ({"base": f"{BASE}@sha256:abcd"}, "is not named by its digest"),
        ({"base": ""}, "is not named by its digest"),
        ({"changelog": SECTION.replace("Unreleased\n", "Unreleased\n\n- **New.**\n")}, "under Unreleased"),
        ({"changelog": SECTION.replace("0.2.0 (2026-12-01)", "0.2.0")}, "there must be one section"),
        ({"changelog": SECTION.replace("## 0.1.0", "## 0.2.0")}, "there must be one section"),
        ({"changelog": SECTION.replace("**During:**", "**Then:**")}, "no line for: During"),
    ],
)
def test_what_is_missing_is_named(change: dict[str, object], words: str) -> None:
    problems = list(find_problems(**(GOOD | change)))  # type: ignore[arg-type]
    assert any(words in problem for problem in problems), problems


def tables(version: str, *revisions: str, floor: str, baseline: str = "CREATE TABLE call") -> Tables:
    return Tables(version=version, revisions=revisions, floor=floor, baseline=(baseline,))


BEFORE = tables("0.1.0", "0016_a", "0017_b", floor="0016_a")


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (tables("0.2.0", "0016_a", "0017_b", "0018_c", floor="0016_a"), []),
        (tables("0.2.0", "0016_a", "0017_b", "0018_c", floor="0017_b"), []),
        (
            tables("0.2.0", "0016_a", "0017_b", "0018_c", floor="0018_c"),
            ["newer than 0017_b, the last migration of 0.1.0"],
        ),
        (tables("0.1.1", "0016_a", "0017_b", floor="0016_a"), []),
        (tables("0.1.1", "0016_a", "0017_b", "0018_c", floor="0016_a"), ["a patch changes no table: 0018_c"]),
        (
            tables("0.2.0", "0016_a", "0017_b", floor="0016_a", baseline="CREATE TABLE calls"),
            ["differ from those of 0.1.0"],
        ),
    ],
    ids=["adds", "raises by one", "raises too far", "patch", "patch with a table", "another baseline"],
)
def test_gateways_of_the_release_before_can_serve_from_the_tables(now: Tables, words: list[str]) -> None:
    problems = list(find_table_problems(now, BEFORE))
    assert len(problems) == len(words)
    assert all(word in problem for word, problem in zip(words, problems, strict=True)), problems
    assert list(find_table_problems(now, None)) == []


@pytest.mark.parametrize(
    ("version", "before"),
    [("0.10.0", "0.9.1"), ("0.9.1", "0.9.0"), ("0.9.0", None), ("1.0.0", "0.10.0")],
)
def test_the_release_before_is_the_latest_older_tag(version: str, before: str | None) -> None:
    assert find_version_before(version, ["v0.9.0", "v0.10.0", "v0.9.1", "vnext", "v1.0.0"]) == before


def test_the_tables_of_a_commit_are_read() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    found = read_tables("0.1.0", commit="HEAD")
    assert found.revisions[0] == BASELINE
    assert found.floor in found.revisions
    assert all("CREATE TABLE" in text for text in found.baseline)


@pytest.mark.parametrize("floor", ["", "9001_newer"])
async def test_the_floor_that_is_read_is_that_of_the_tables(tmp_path: Path, floor: str) -> None:
    folder = write_newer_migrations(tmp_path, floor=floor)
    texts = [baseline_path(folder, "sqlite").read_text()]
    texts += [path.read_text() for path in sorted((folder / "versions").glob("[0-9]*.py"))]
    async with open_database(f"sqlite:///{tmp_path}/tollway.sqlite3") as database:
        await upgrade(database, migrations=folder)
        query = text("SELECT revision FROM schema_floor")
        assert await database.read(lambda connection: connection.scalar(query)) == find_floor(texts)
    assert find_floor(texts) == (floor or BASELINE)


def test_the_changelog_has_sections_of_releases_alone() -> None:
    titles = list(read_sections((ROOT / "CHANGELOG.md").read_text()))
    assert titles[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", title) for title in titles[1:])


def test_digests_are_what_sha256sum_reads(tmp_path: Path) -> None:
    (tmp_path / "tollway-0.2.0.tar.gz").write_bytes(b"sdist")
    (tmp_path / "tollway.cdx.json").write_bytes(b"{}")
    (tmp_path / "notes.txt").write_bytes(b"")
    text = write_digests(tmp_path).read_text()
    assert [line.split("  ")[1] for line in text.splitlines()] == ["tollway-0.2.0.tar.gz", "tollway.cdx.json"]
    if shutil.which("sha256sum"):
        from tests.kit.deploy_programs import run_check

        run_check("sha256sum", "--check", "--strict", "SHA256SUMS", folder=tmp_path)
