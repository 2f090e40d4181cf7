"""Builds the command line from the table of commands (`cli/commands.py`), without an import of a command before it runs.

The help is plain text: it fits a terminal, a pipe and a screen reader, and loads no library for pictures of boxes.
"""

import gc
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo

import tollway
from tollway.cli.commands import ALIASES, COMMANDS, EXTRA_PACKAGES, GROUPS, NAMED_ELSEWHERE, ROLES

EXTRA_MISSING = 1
"""The exit code of a command whose extra is not installed."""

_SUMMARY = "Pays for HTTP APIs by the request, sells them, and runs the gateway between caller and provider."


def build_app() -> typer.Typer:
    """The command line with every command of the table."""
    app = typer.Typer(
        name="tollway",
        cls=CommandGroup,
        help=_SUMMARY,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_read_root_options)
    return app


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"tollway {tollway.__version__}")
        raise typer.Exit


def _read_root_options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """The options of `tollway` itself."""


class CommandGroup(TyperGroup):
    """`tollway`, or a group of its commands such as `tollway wallet`."""

    def __init__(self, *, path: str = "", **attributes: Any) -> None:
        """`path` is what follows `tollway`; empty for `tollway` itself."""
        attributes["commands"] = dict(_build_commands(path))
        super().__init__(**attributes)
        self.path = path

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Imports the function of the group itself, where it has one."""
        group = GROUPS.get(self.path)
        if group is not None and group.target:
            alone = load_command(self.path)
            self.params, self.callback = alone.params, alone.callback
            self.invoke_without_command, self.no_args_is_help = True, False
        return super().make_context(info_name, args, parent=parent, **extra)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Refuses an unknown command with the nearest ones, also of other groups."""
        word = args[0]
        if word not in self.commands and not word.startswith("-") and not ctx.resilient_parsing:
            near = find_near_commands(self.path, word, *args[1:2])
            hint = f" Did you mean: {' or '.join(f'tollway {name}' for name in near)}?" if near else ""
            ctx.fail(f"There is no command {word!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the commands by role with an example of each role; a group writes its commands alone."""
        if self.path:
            with formatter.section("Commands"):
                formatter.write_dl(_list_help(self.path))
            return
        for role in ROLES:
            with formatter.section(role.title):
                formatter.write_dl([row for row in _list_help(self.path) if row[0] in role.words])
                formatter.write(f"\n{'':{formatter.current_indent}}Example: {role.example}\n")


class _TableCommand(TyperCommand):
    """A command of the table. Its module is imported when its arguments are parsed."""

    def __init__(self, path: str, *, name: str, hidden: bool = False) -> None:
        super().__init__(name=name, help=COMMANDS[path].help, hidden=hidden, rich_markup_mode=None)
        self._path = path

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        for word in args:
            if elsewhere := NAMED_ELSEWHERE.get(f"{self._path} {word}"):
                raise typer.BadParameter(f"There is no {word} here. Did you mean: tollway {elsewhere}?")
        return load_command(self._path).make_context(info_name, args, parent=parent, **extra)


def load_command(path: str) -> TyperCommand:
    """Imports the command, or the function of the group. Ends the process with the line that installs its extra when that is not installed."""
    _require_extra(path)
    row = COMMANDS.get(path)
    module_name, _, name = (row or GROUPS[path]).target.partition(":")
    function = getattr(importlib.import_module(module_name), name)
    if not gc.isenabled():  # as `main` leaves it
        gc.freeze()  # what is loaded lives as long as the process: collections need not look at it
        gc.enable()
    texts = (row.help if row else None, inspect.getdoc(function))
    command = get_command_from_info(
        CommandInfo(
            name=path.split()[-1],
            callback=function,
            help="\n\n".join(text for text in texts if text),
            epilog=f"\b\nExample:\n  {row.example}" if row else None,
        ),
        pretty_exceptions_short=True,
        rich_markup_mode=None,
    )
    assert isinstance(command, TyperCommand)
    return command


def _require_extra(path: str) -> None:
    extra = path.split()[0]
    if all(importlib.util.find_spec(package) for package in EXTRA_PACKAGES.get(extra, ())):
        return
    print(
        f"error: `tollway {path}` needs packages that are not installed. Run: pip install 'tollway[{extra}]'",
        file=sys.stderr,
    )
    raise typer.Exit(EXTRA_MISSING)


def find_near_commands(path: str, word: str, *more: str) -> list[str]:
    """The names of the commands whose last word is nearest to an unknown `word` below `path`; also a group below `path`. First what is named elsewhere,
    also with the words after it (`more`)."""
    for typed in (" ".join((path, word, *more)), f"{path} {word}"):
        if elsewhere := NAMED_ELSEWHERE.get(typed):
            return [elsewhere]
    names: dict[str, list[str]] = {}
    for name in COMMANDS:
        names.setdefault(name.split()[-1], []).append(name)
    names |= {child: [below] for child, below in _children(path).items() if child not in names}
    return [name for near in get_close_matches(word, names, n=1) for name in names[near]]


def _build_commands(path: str) -> Iterator[tuple[str, TyperCommand | CommandGroup]]:
    """The commands and groups directly below `path`, then its hidden aliases."""
    for name, below in _children(path).items():
        yield name, _build_command(below, name=name)
    if not path:
        for alias, words in ALIASES.items():
            yield alias, _build_command(words, name=alias, hidden=True)


def _build_command(path: str, *, name: str, hidden: bool = False) -> TyperCommand | CommandGroup:
    if path in COMMANDS:
        return _TableCommand(path, name=name, hidden=hidden)
    return CommandGroup(
        path=path,
        name=name,
        help=_describe_group(path),
        hidden=hidden,
        no_args_is_help=True,
        rich_markup_mode=None,
    )


def _children(path: str) -> dict[str, str]:
    """The next word of each command below `path` -> the path of the command or group that it names."""
    start = f"{path} ".lstrip()
    words = dict.fromkeys(name.removeprefix(start).split()[0] for name in COMMANDS if name.startswith(start))
    return {word: start + word for word in words}


def _list_help(path: str) -> list[tuple[str, str]]:
    return [
        (name, COMMANDS[below].help if below in COMMANDS else _describe_group(below))
        for name, below in _children(path).items()
    ]


def _describe_group(path: str) -> str:
    return f"{GROUPS[path].help}: {', '.join(_children(path))}."
