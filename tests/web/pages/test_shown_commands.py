"""The commands that pages show: each parses as it stands, with every option that it needs."""

import re
import shlex
from html import unescape

import pytest
from typer.main import get_command

from tests.kit.listings import show_listing
from tests.kit.signed_in import open_signed_in
from tollway.cli.main import make_app
from tollway.web.operator.findings import CHECK_TEXTS
from tollway.web.pages.renderer import TEMPLATES
from tollway.web.pages.snippets import write_snippets

SHOWN = re.compile(r"<code>(tollway [^<]+)</code>")
LITERAL = sorted(
    {
        (path.name, command)
        for path in TEMPLATES.glob("*.j2")
        for command in SHOWN.findall(path.read_text())
        if "{{" not in command
    }
)


def parse(command: str) -> None:
    """Reads a command as the command line does, without running it. Raises for an unknown command, and for a missing or unknown option."""
    name, *words = shlex.split(command)
    assert name == "tollway"
    found = get_command(make_app())
    while hasattr(found, "resolve_command"):
        context = found.make_context(name, words)
        name, inner, words = found.resolve_command(context, [*context._protected_args, *context.args])
        assert inner is not None
        found = inner
    found.make_context(name or "", words)


@pytest.mark.parametrize(("template", "command"), LITERAL)
def test_a_command_in_a_template_parses(template: str, command: str) -> None:
    parse(command)


@pytest.mark.parametrize("command", [command for _, _, command in CHECK_TEXTS.values()])
def test_the_command_of_a_finding_parses(command: str) -> None:
    parse(command)


def test_the_command_of_an_operation_parses() -> None:
    view = show_listing()
    (text,) = [one.text for one in write_snippets(view, view.operations[0]) if one.name == "tollway"]
    parse(text.splitlines()[-1])


async def test_the_command_that_an_agent_runs_for_its_owner_parses() -> None:
    async with open_signed_in() as harness:
        await harness.sign_in()
        text = (await harness.browser.get("/my/wallets")).text
    (command,) = SHOWN.findall(text)
    assert "show-to" in command
    parse(unescape(command))


@pytest.mark.parametrize("command", ["tollway wallet show-to", "tollway walet", "tollway call --colour red"])
def test_a_wrong_command_does_not_parse(command: str) -> None:
    with pytest.raises(Exception, match=r"(?i)missing|no such|no command"):
        parse(command)
