"""Finds in a program's output why it ended: the exception behind tracebacks of Python, Py4J and the JVM. No I/O.

A traceback has several forms: a plain Python traceback, a chain, an exception group, a Python worker's traceback inside
a Spark error, a syntax error (without a heading), or a JVM stack trace with ``Caused by:``.
"""

from __future__ import annotations

import re

MAX_CAUSE_CHARACTERS = 1_000
"""Maximum length of a cause."""

HEADING = "Traceback (most recent call last):"

_CHAINED = (
    "another exception occurred:",
    "the direct cause of the following exception:",
    "from the Python worker:",
    "see the stack trace below.",
)
"""How the text between two tracebacks ends if they belong together."""
_GROUP_MARGIN = re.compile(r"^ *[+|] ")
_MARKERS = re.compile(r"[\s^~]*")
_SYNTAX_ERROR = re.compile(
    r'^  File "[^\n]*", line \d+\n(?:(?:    [^\n]*)?\n)*?(?:SyntaxError|IndentationError|TabError): [^\n]*',
    re.MULTILINE,
)
_PY4J = "py4j.protocol.Py4JJavaError: "
_CAUSED_BY = "Caused by: "
_JAVA_EXCEPTION = re.compile(r"^: ([\w.$]+(?:: .*)?)$", re.MULTILINE)


def last_traceback(output: str) -> str:
    """The last Python traceback or syntax error in ``output``, with the text after it; empty: there is none."""
    start = _last_heading(output, len(output))
    # 1. Include the whole chain, and the Spark error that quotes a worker's traceback.
    while start > 0:
        before = _last_heading(output, start)
        if before < 0 or not output[before:start].rstrip().endswith(_CHAINED):
            break
        start = before
    # 2. A syntax error has no heading. At the end of a traceback it is part of that traceback.
    for found in _SYNTAX_ERROR.finditer(output):
        if start < 0 or not _is_within(output[start : found.start()]):
            start = max(start, found.start())
    return output[start:].rstrip() if start >= 0 else ""


def cause(traceback: str) -> str:
    """The exception that ``traceback`` reports, in one line; empty: it names none."""
    # 1. Use the last traceback: the last exception of a chain, or the Python worker's exception in a Spark error.
    head, heading, rest = traceback.rpartition(HEADING)
    if not heading:
        found = _SYNTAX_ERROR.search(traceback)
        return _bounded(found[0].rpartition("\n")[2]) if found else _java_cause(traceback)
    group = head.endswith("Exception Group ")
    lines = [_GROUP_MARGIN.sub("", line) if group else line for line in rest.splitlines()[1:]]
    for number, line in enumerate(lines):
        # 2. Skip frames, which are indented, and the markers below them.
        if not line or line[0].isspace() or _MARKERS.fullmatch(line):
            continue
        if line.startswith(_PY4J):
            return _java_cause("\n".join(lines[number:])) or _bounded(line)
        # 3. A message may begin on the next line.
        begins = line.rstrip().endswith(":")
        more = next((each.strip() for each in lines[number + 1 :] if each.strip()), "") if begins else ""
        return _bounded(f"{line.removeprefix(_CAUSED_BY).rstrip()} {more}")
    return ""


def last_line(output: str) -> str:
    """The last non-empty line, as a terminal would show it."""
    lines = [line.rpartition("\r")[2].strip() for line in output.splitlines()]
    return _bounded(next((line for line in reversed(lines) if line), ""))


def _java_cause(trace: str) -> str:
    """The innermost exception of a JVM stack trace, or its first one if no other caused it."""
    causes = [line.strip() for line in trace.splitlines() if line.strip().startswith(_CAUSED_BY)]
    if causes:
        return _bounded(causes[-1].removeprefix(_CAUSED_BY))
    first = _JAVA_EXCEPTION.search(trace)
    return _bounded(first[1]) if first else ""


def _last_heading(output: str, end: int) -> int:
    """The position of the last heading before ``end`` that starts a line or follows a progress bar; -1: none."""
    while (found := output.rfind(HEADING, 0, end)) >= 0:
        line = output.rfind("\n", 0, found) + 1
        before = output[line:found]
        if not before.strip() or before.rstrip().endswith((")", "]", "Exception Group")) or "\r" in before:
            return line if "Exception Group" in before else found
        end = found
    return -1


def _is_within(text: str) -> bool:
    """Whether a traceback that starts with ``text`` continues: none of its lines is unindented yet."""
    lines = text.partition(HEADING)[2].splitlines()
    return bool(text) and all(not line or line[0].isspace() or _MARKERS.fullmatch(line) for line in lines)


def _bounded(line: str) -> str:
    return line.strip()[:MAX_CAUSE_CHARACTERS]
