"""What must hold before a tag is a release: `make release`.

The version, its tag and its section of the changelog agree, the section says what an operator does before, during and after, the working tree is the commit, the base of the
image is named by its digest, and gateways of the release before can serve from the tables of this one. Then it writes the digests of the files in `dist/`.
"""

import argparse
import hashlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")
"""SemVer without suffixes: a release that is not finished has no tag."""
SECTION = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)
MIGRATIONS = "src/tollway/storage/engine/migrations"
BASELINES = ("baseline.sqlite.sql", "baseline.postgresql.sql")
FLOOR = re.compile(
    r"INSERT INTO schema_floor \(id, revision\) VALUES \(1, '(\w+)'\)|UPDATE schema_floor SET revision = '(\w+)'"
)
"""The statement of the baseline, and that of a migration which raises the floor."""
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
STEPS = ("Before", "During", "After")
"""The three lines of "Upgrading" in a section."""


def read_sections(changelog: str) -> dict[str, str]:
    """Title of a section -> its text, in the order of the file."""
    found = list(SECTION.finditer(changelog))
    ends = [match.start() for match in found[1:]] + [len(changelog)]
    return {match["title"]: changelog[match.end() : end].strip() for match, end in zip(found, ends, strict=True)}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The tables of a release: its migrations, the oldest first, the oldest one whose code may serve from the tables (`schema_floor`), and the files of the
    baseline, which is the first of them."""

    version: str
    revisions: Sequence[str]
    floor: str
    baseline: Sequence[str]


def find_problems(
    *, version: str, tags: frozenset[str], changelog: str, is_clean: bool, base: str
) -> Iterator[str]:
    """Each reason why this commit is no release. `tags`: those that point to it. `base`: the base of its image."""
    if not DIGEST.search(base):
        yield f"BASE: {base or 'the base image'} is not named by its digest: make release BASE=registry/python@sha256:…"
    if not VERSION.fullmatch(version):
        yield f"pyproject.toml: the version {version} is not MAJOR.MINOR.PATCH"
    if f"v{version}" not in tags:
        yield f"git: no tag v{version} points to this commit: git tag --annotate v{version}"
    if not is_clean:
        yield "git: the working tree differs from the commit"
    sections = read_sections(changelog)
    if sections.get("Unreleased"):
        yield "CHANGELOG.md: lines under Unreleased belong into the section of the release"
    titles = [title for title in sections if title.startswith(f"{version} ")]
    if len(titles) != 1 or not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", titles[0]):
        yield f"CHANGELOG.md: there must be one section: ## {version} (YYYY-MM-DD)"
        return
    steps = [step for step in STEPS if f"- **{step}:** " not in sections[titles[0]]]
    if steps:
        yield f"CHANGELOG.md: the section of {version} has no line for: {', '.join(steps)}"


def find_table_problems(now: Tables, before: Tables | None) -> Iterator[str]:
    """What keeps gateways of the release before from serving beside those of this one. `before` is None for the first release."""
    if before is None:
        return
    if now.floor > before.revisions[-1]:
        yield (
            f"schema_floor: {now.floor} is newer than {before.revisions[-1]}, the last migration of {before.version}: its gateways could not "
            "serve during the upgrade. Raise the floor one release later"
        )
    if now.baseline != before.baseline:
        yield (
            f"baseline: its files differ from those of {before.version}, and databases have been made from them. Restore the files, and add a migration"
        )
    new = [revision for revision in now.revisions if revision not in before.revisions]
    if new and now.version.split(".")[:2] == before.version.split(".")[:2]:
        yield f"version: {now.version} is a patch of {before.version}, and a patch changes no table: {', '.join(new)}"


def find_version_before(version: str, tags: Iterable[str]) -> str | None:
    """The latest release before a version, by the tags of the repository."""
    released = [tag.removeprefix("v") for tag in tags if VERSION.fullmatch(tag.removeprefix("v"))]
    return max((one for one in released if _order(one) < _order(version)), key=_order, default=None)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def read_tables(version: str, *, commit: str) -> Tables:
    """The tables as a commit has them."""
    names = _git("ls-tree", "--name-only", f"{commit}:{MIGRATIONS}/versions").split()
    migrations = sorted(name for name in names if re.match(r"\d{4}_", name))
    baseline = [_git("show", f"{commit}:{MIGRATIONS}/{name}") for name in BASELINES]
    changes = [_git("show", f"{commit}:{MIGRATIONS}/versions/{name}") for name in migrations]
    return Tables(
        version=version,
        revisions=[name.removesuffix(".py") for name in migrations],
        floor=find_floor([baseline[0], *changes]),
        baseline=baseline,
    )


def find_floor(texts: Iterable[str]) -> str:
    """The floor after the baseline and its migrations, which are given in their order."""
    floors = [match[1] or match[2] for text in texts for match in FLOOR.finditer(text)]
    return floors[-1]


def write_digests(folder: Path) -> Path:
    """`SHA256SUMS` of the files of a release, as `sha256sum --check` reads it."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".whl", ".gz", ".json"))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    target = folder / "SHA256SUMS"
    target.write_text("".join(lines))
    return target


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    parser = argparse.ArgumentParser(description="Checks that this commit can be released.")
    parser.add_argument("--digests", action="store_true", help="write dist/SHA256SUMS instead")
    parser.add_argument("--base", default="", help="the base of the image, named by its digest")
    options = parser.parse_args()
    if options.digests:
        print(f"wrote {write_digests(ROOT / 'dist')}")
        return
    problems = list(
        find_problems(
            version=version,
            tags=frozenset(_git("tag", "--points-at", "HEAD").split()),
            changelog=(ROOT / "CHANGELOG.md").read_text(),
            is_clean=not _git("status", "--porcelain").strip(),
            base=options.base,
        )
    )
    if VERSION.fullmatch(version):
        before = find_version_before(version, _git("tag", "--list", "v*").split())
        tables = None if before is None else read_tables(before, commit=f"v{before}")
        problems += find_table_problems(read_tables(version, commit="HEAD"), tables)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        sys.exit(1)
    print(f"{version} can be released from this commit")


if __name__ == "__main__":
    main()
