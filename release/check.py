"""What must hold before a tag is a release: `make release`.

The version, its tag and its section of the changelog agree, the section says what an operator does before, during and after, and the working tree is the commit.
Then it writes the digests of the files in `dist/`.
"""

import hashlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")
"""SemVer without suffixes: a release that is not finished has no tag."""
SECTION = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)
STEPS = ("Before", "During", "After")
"""The three lines of "Upgrading" in a section."""


def read_sections(changelog: str) -> dict[str, str]:
    """Title of a section -> its text, in the order of the file."""
    found = list(SECTION.finditer(changelog))
    ends = [match.start() for match in found[1:]] + [len(changelog)]
    return {match["title"]: changelog[match.end() : end].strip() for match, end in zip(found, ends, strict=True)}  # fmt: skip


def find_problems(*, version: str, tags: frozenset[str], changelog: str, is_clean: bool) -> Iterator[str]:
    """Each reason why this commit is no release. `tags`: those that point to it."""
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
    problems = list(
        find_problems(
            version=version,
            tags=frozenset(_git("tag", "--points-at", "HEAD").split()),
            changelog=(ROOT / "CHANGELOG.md").read_text(),
            is_clean=not _git("status", "--porcelain").strip(),
        )
    )
    if "--digests" in sys.argv:
        print(f"wrote {write_digests(ROOT / 'dist')}")
        return
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        sys.exit(1)
    print(f"{version} can be released from this commit")


if __name__ == "__main__":
    main()
