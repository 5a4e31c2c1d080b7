"""Manual pages of the command, generated from its parser: ``python -m sluice.cli.reference.man MODULE DIRECTORY``.

``sluice(1)`` lists the verbs; each of them has a page, ``sluice-VERB(1)``, with all of its own verbs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import typer

SECTION = "1"
Command = Any
"""A command and its context from typer, whose parser has no public types."""


def manual_pages(app: typer.Typer) -> dict[str, str]:
    """Every page of the command ``app`` by the name of its file."""
    root = _context(typer.main.get_command(app), None, "sluice")
    verbs = list(_verbs(root))
    pages = {"sluice": _page(root, _synopses(verbs), [_name(each) for each in verbs])}
    for verb in verbs:
        below = list(_verbs_below(verb))
        sections = [line for each in below for line in (f'.SS "{_text(each.command_path)}"', *_body(each))]
        pages[_name(verb)] = _page(verb, [".SH COMMANDS", *sections] if below else [], ["sluice"])
    return {f"{name}.{SECTION}": text for name, text in pages.items()}


def _context(command: Command, parent: Command | None, name: str) -> Command:
    return command.make_context(name, [], parent=parent, resilient_parsing=True)


def _verbs(context: Command) -> Iterator[Command]:
    names = context.command.list_commands(context) if hasattr(context.command, "list_commands") else ()
    for name in names:
        verb = context.command.get_command(context, name)
        if not verb.hidden:
            yield _context(verb, context, name)


def _verbs_below(context: Command) -> Iterator[Command]:
    for verb in _verbs(context):
        yield verb
        yield from _verbs_below(verb)


def _name(context: Command) -> str:
    return str(context.command_path).replace(" ", "-")


def _page(context: Command, more: list[str], others: list[str]) -> str:
    name, first = _name(context), _paragraphs(context.command.help)[0]
    lines = [
        f'.TH "{_text(name.upper())}" "{SECTION}" "" "Sluice {_text(version("sluice"))}" ""',
        ".SH NAME",
        rf"{_text(name)} \- {_text(first.rstrip('.'))}",
        ".SH SYNOPSIS",
        *_body(context, ".SH DESCRIPTION"),
        *more,
        ".SH SEE ALSO",
        ",\n".join(rf"\fB{_text(other)}\fR({SECTION})" for other in others),
    ]
    return "\n".join(lines) + "\n"


def _body(context: Command, heading: str = ".PP") -> list[str]:
    """Usage, description, arguments and options, examples."""
    usage = " ".join(context.command.collect_usage_pieces(context))
    lines = [rf"\fB{_text(context.command_path)}\fR {_text(usage)}", heading]
    lines += [".PP\n" + _line(each) for each in _paragraphs(context.command.help)]
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            lines += [".TP", rf"\fB{_text(record[0])}\fR", _line(record[1])]
    return lines + [".PP\n" + _line(each) for each in _paragraphs(context.command.epilog)]


def _synopses(verbs: list[Command]) -> list[str]:
    lines = [".SH COMMANDS"]
    for verb in verbs:
        lines += [".TP", rf"\fB{_text(_name(verb))}\fR({SECTION})", _line(_paragraphs(verb.command.help)[0])]
    return lines


def _paragraphs(text: str | None) -> list[str]:
    return [" ".join(each.split()) for each in (text or "").split("\n\n") if each.strip()]


def _line(text: str) -> str:
    """Escape a line of text that looks like a roff request."""
    escaped = _text(text)
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _text(text: str) -> str:
    """Escape text for roff, which reads ASCII."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq").replace("`", r"\(ga")
    return "".join(each if each.isascii() else rf"\[u{ord(each):04X}]" for each in escaped)


def main(module: str, directory: Path) -> None:
    """Write the pages of the command ``app`` of a module."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in manual_pages(import_module(module).app).items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
