"""Turns a documentation page into a script: its ``sh`` blocks in order, and the files to write.

Commands that a test cannot run (they need another machine, root, or an outside service) are in ``console``
blocks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(?P<language>\w*)$")
_FILE = re.compile(r"^<!-- file: (?P<name>[\w./-]+) -->$")

RUN_ELSEWHERE = {"make test": "make --dry-run test > /dev/null"}
"""Lines that would take longer than the rest together, and what stands for them: CI runs ``make test`` itself."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its first line, language, text, and the file to write it to (or empty)."""

    line: int
    language: str
    text: str
    file: str = ""


def blocks_of(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a Markdown page; raises ValueError for a block that does not end."""
    lines = iter(enumerate(page.splitlines(), start=1))
    file = ""
    for number, line in lines:
        named, fence = _FILE.match(line), _FENCE.match(line)
        if named is not None:
            file = named["name"]
        elif fence is not None:
            inside = []
            for _, each in lines:
                if each == "```":
                    break
                inside.append(each)
            else:
                raise ValueError(f"the block in line {number} does not end")
            yield Block(number, fence["language"], "\n".join(inside) + "\n", file)
            file = ""


def has_commands(page: str) -> bool:
    """Whether the page has a block that a test runs."""
    return any(block.language == "sh" for block in blocks_of(page))


def script_of(page: str) -> str:
    """Return a Bash script that runs the page and stops at the first command that fails.

    It prints the line number of each block before it runs the block.
    """
    parts = ["set -euo pipefail"]
    for block in blocks_of(page):
        if block.file:
            parts.append(f"mkdir -p {shlex.quote(str(Path(block.file).parent))}")
            parts.append(f"printf %s {shlex.quote(block.text)} > {shlex.quote(block.file)}")
        elif block.language == "sh":
            parts.append(f"printf '\\n### line %s\\n' {block.line}")
            parts.extend(_runnable(line) for line in block.text.splitlines())
    return "\n".join(parts) + "\n"


def _runnable(line: str) -> str:
    command = line.partition("  #")[0].rstrip()
    return RUN_ELSEWHERE.get(command, line)
