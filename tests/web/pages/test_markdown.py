"""The pages of the documentation that a gateway shows: guides, and the runbooks of the operator's pages."""

from pathlib import Path

import pytest

from tests.kit.pages import PageHarness, PageReader
from tollway.discovery.gateway_operator import GatewayOperator
from tollway.web.pages import markdown as package
from tollway.web.pages.markdown import (
    GUIDE_NAMES,
    GUIDE_PATH,
    GUIDES,
    MarkdownBlock,
    MarkdownPart,
    parse_line,
    parse_page,
    read_guides,
    read_runbooks,
)

DOCS = Path(__file__).parents[3] / "docs"
RUNBOOKS = DOCS / "runbooks"
SITE = "https://docs.example.com/tollway"


def link(target: str) -> str:
    return f"/runbooks/{target.removesuffix('.md')}" if target.endswith(".md") else ""


def test_every_runbook_of_the_docs_is_read_and_each_link_leads_to_one() -> None:
    found = read_runbooks()
    assert set(found) == {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    assert package.RUNBOOKS.resolve() == RUNBOOKS.resolve()
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
        assert {part.href for part in parts if part.href} <= {f"/runbooks/{name}" for name in found}
        assert not [
            part.text for part in parts if not part.is_code and ("`" in part.text or "](" in part.text)
        ]


def test_blocks_of_a_runbook() -> None:
    markdown = "# A\n\n## What\n\nOne\ntwo.\n\n```sh\na\n\n# b\n```\n\n1. First\n   goes on.\n2. Second."
    assert parse_page("A", markdown, link).blocks == (
        MarkdownBlock(kind="heading", lines=(_text("What"),)),
        MarkdownBlock(kind="text", lines=(_text("One two."),)),
        MarkdownBlock(kind="commands", lines=((MarkdownPart(text="a\n\n# b", is_code=True),),)),
        MarkdownBlock(kind="steps", lines=(_text("First goes on."), _text("Second."))),
    )


def test_parts_of_a_line() -> None:
    assert parse_line("See `up`, **all** and [Chain](ChainAway.md).", link) == (
        MarkdownPart(text="See "),
        MarkdownPart(text="up", is_code=True),
        MarkdownPart(text=", "),
        MarkdownPart(text="all", is_strong=True),
        MarkdownPart(text=" and "),
        MarkdownPart(text="Chain", href="/runbooks/ChainAway"),
        MarkdownPart(text="."),
    )


def test_other_links_and_html_stay_text() -> None:
    for line in ("[x](javascript:alert.md)", "[x](../books.md)", "<script>alert(1)</script>", "[x](//a.md)"):
        assert parse_line(line, link) == _text(line)


# ---- The guides.


@pytest.mark.parametrize("docs_url", [None, SITE, f"{SITE}/"])
def test_every_link_of_a_guide_leads_to_a_page_of_the_gateway_or_of_the_site(docs_url: str | None) -> None:
    guides = read_guides(docs_url)
    assert tuple(guides) == GUIDE_NAMES
    for name, guide in guides.items():
        assert (GUIDES / f"{name}.md").resolve() == (DOCS / f"{name}.md").resolve()
        parts = [part for block in guide.blocks for line in block.lines for part in line]
        assert [part.text for part in parts if "](" in part.text or "**" in part.text] == []
        shown = " ".join(part.text for part in parts)
        assert ("Limit what you spend" in shown) == (docs_url is not None and name == "questions")
        for part in parts:
            page, _, _ = part.href.removeprefix(f"{SITE}/").partition(".html")
            assert part.href[:1] in ("", "/") or (docs_url is not None and (DOCS / f"{page}.md").exists())
    assert (docs_url is not None) == any(
        part.href.startswith(SITE)
        for block in guides["calling"].blocks
        for line in block.lines
        for part in line
    )


@pytest.mark.parametrize("docs_url", [None, SITE])
async def test_the_page_of_documents_leads_to_guides_for_people(docs_url: str | None) -> None:
    harness = PageHarness(operator=GatewayOperator(docs_url=docs_url))
    async with harness.open_pages() as client:
        documents = PageReader((await client.get("/docs")).text)
        assert "Questions" in documents.words
        assert (SITE in documents.addresses) == (docs_url is not None)
        for name in GUIDE_NAMES:
            assert GUIDE_PATH + name in documents.addresses
            answer = await client.get(GUIDE_PATH + name)
            assert answer.status_code == 200
            for place in PageReader(answer.text).addresses:
                if place == "/status" or place.startswith("/docs"):
                    assert (await client.get(place)).status_code == 200, place
        assert (await client.get(GUIDE_PATH + "threat-model")).status_code == 404


def _text(text: str) -> tuple[MarkdownPart, ...]:
    return (MarkdownPart(text=text),)
