"""The structure of the code: no import circles, one installed name, folders that can be taken in at a glance."""

from __future__ import annotations

from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
MAX_MODULES_IN_A_FOLDER = 25


def test_no_module_takes_part_in_an_import_circle() -> None:
    graph = grimp.build_graph("sluice", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imported).prepare()


def test_every_part_of_the_package_is_a_folder_of_the_repository() -> None:
    links = {path.name: path.readlink() for path in (ROOT / "sluice").iterdir() if path.is_symlink()}
    assert links == {name: Path("..") / name for name in links}
    assert all((ROOT / name / "__init__.py").is_file() for name in links)
    assert not (ROOT / "envoy" / "__init__.py").exists(), "the package name envoy belongs to the Envoy protobufs"


def test_no_folder_has_more_modules_than_a_reader_takes_in() -> None:
    parts = [path.name for path in (ROOT / "sluice").iterdir() if path.is_symlink()]
    modules = Counter(module.parent for part in parts for module in (ROOT / part).rglob("*.py"))
    assert not {str(folder): count for folder, count in modules.items() if count > MAX_MODULES_IN_A_FOLDER + 1}
