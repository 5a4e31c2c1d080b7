"""Runs the ``sluice`` command in the test process. This saves the second that a new process spends on imports."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from sluice.cli.main import main


def sluice(
    *arguments: str | Path, stdin: str = "", environment: Mapping[str, str | None] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``sluice ARGUMENTS`` from its entry point; returns its exit code and output.

    Args:
        arguments: the command line after ``sluice``.
        stdin: its standard input.
        environment: variables that are set for the command; None unsets a variable.

    In a test that is a coroutine, call it in a thread: ``await asyncio.to_thread(sluice, …)``.
    """
    out, err, typed = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(3))
    typed.write(stdin)
    typed.seek(0)
    code: object = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ))
        for name, value in (environment or {}).items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        stack.enter_context(mock.patch.object(sys, "argv", ["sluice", *map(str, arguments)]))
        stack.enter_context(mock.patch.object(sys, "stdin", typed))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    assert code is None or isinstance(code, int)
    return subprocess.CompletedProcess(arguments, code or 0, _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()
