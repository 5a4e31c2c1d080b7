"""What ``sluice submit`` sends besides the pipeline: files, modules for Python's path, archives."""

from __future__ import annotations

from pathlib import Path

from sluice.cli.errors import UsageError


def parts_of(
    files: list[Path] | None, py_files: list[str] | None, archives: list[str] | None
) -> tuple[list[tuple[str, Path]], dict[str, str]]:
    """The parts of the upload (name, file), and the directories of archives that have been given one.

    Raises:
        UsageError: there is no such file.
    """
    parts = [("file", file) for file in files or []]
    parts += [("py_file", Path(text)) for text in _separated(py_files)]
    names: dict[str, str] = {}
    for text in _separated(archives):
        file, _, name = text.partition("#")
        parts.append(("archive", Path(file)))
        if name:
            names[Path(file).name] = name
    for _, path in parts:
        if not path.is_file():
            raise UsageError(f"there is no file {path}", "a directory is packed first: zip or tar.gz")
    return parts, names


def _separated(options: list[str] | None) -> list[str]:
    """As spark-submit has it: separated by commas, or given several times."""
    return [each.strip() for option in options or [] for each in option.split(",") if each.strip()]
