"""The runbooks that the operator's pages show."""

from pathlib import Path

from tollway.web.operator.runbook import (
    FOLDER,
    RunbookBlock,
    RunbookPart,
    parse_line,
    parse_runbook,
    read_runbooks,
)

RUNBOOKS = Path(__file__).parents[3] / "docs" / "runbooks"


def test_every_runbook_of_the_docs_is_read_and_each_link_leads_to_one() -> None:
    found = read_runbooks()
    assert set(found) == {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    assert FOLDER.resolve() == RUNBOOKS.resolve()
    for runbook in found.values():
        headings = [block.lines[0][0].text for block in runbook.blocks if block.kind == "heading"]
        assert headings == [
            "What it means",
            "What callers see",
            "Is money at risk",
            "Look",
            "Do",
            "It is over when",
        ]
        assert runbook.meaning
        parts = [part for block in runbook.blocks for line in block.lines for part in line]
        assert {part.name for part in parts if part.name} <= set(found)
        assert not [
            part.text for part in parts if not part.is_code and ("`" in part.text or "](" in part.text)
        ]


def test_blocks_of_a_runbook() -> None:
    markdown = "# A\n\n## What\n\nOne\ntwo.\n\n```sh\na\n\n# b\n```\n\n1. First\n   goes on.\n2. Second."
    assert parse_runbook("A", markdown).blocks == (
        RunbookBlock(kind="heading", lines=(_text("What"),)),
        RunbookBlock(kind="text", lines=(_text("One two."),)),
        RunbookBlock(kind="commands", lines=((RunbookPart(text="a\n\n# b", is_code=True),),)),
        RunbookBlock(kind="steps", lines=(_text("First goes on."), _text("Second."))),
    )


def test_parts_of_a_line() -> None:
    assert parse_line("See `up` and [Chain](ChainAway.md).") == (
        RunbookPart(text="See "),
        RunbookPart(text="up", is_code=True),
        RunbookPart(text=" and "),
        RunbookPart(text="Chain", name="ChainAway"),
        RunbookPart(text="."),
    )


def test_other_links_and_html_stay_text() -> None:
    for line in ("[x](javascript:alert.md)", "[x](../books.md)", "<script>alert(1)</script>", "**x**"):
        assert parse_line(line) == _text(line)


def _text(text: str) -> tuple[RunbookPart, ...]:
    return (RunbookPart(text=text),)
