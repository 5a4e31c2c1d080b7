"""The structure of the code: no import cycles, one installed name, folders small enough to survey."""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
MAX_MODULES_IN_A_FOLDER = 21


def test_no_module_takes_part_in_an_import_cycle() -> None:
    graph = grimp.build_graph("sluice", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imported).prepare()


def test_no_room_takes_part_in_an_import_cycle() -> None:
    """Rooms load each other's exports lazily, so that a graph of modules alone would not show a cycle."""
    graph = grimp.build_graph("sluice", cache_dir=None)
    rooms = {module if graph.find_children(module) else module.rpartition(".")[0] for module in graph.modules}
    uses: dict[str, set[str]] = {room: set() for room in rooms}
    for module in graph.modules:
        room = module if module in rooms else module.rpartition(".")[0]
        for imported in graph.find_modules_directly_imported_by(module):
            other = imported if imported in rooms else imported.rpartition(".")[0]
            if not (room + ".").startswith(other + ".") and not (other + ".").startswith(room + "."):
                uses[room].add(other)
    TopologicalSorter(uses).prepare()


def test_imports_from_another_room_name_the_room_and_not_its_modules() -> None:
    """Except where a function has the name of its module: then the module is named (ADR 0097)."""
    wrong = []
    for path, room in ((path, ".".join(path.parent.relative_to(ROOT).parts)) for path in _modules()):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or node.level or not (node.module or "").startswith("sluice."):
                continue
            package, _, module = str(node.module).removeprefix("sluice.").rpartition(".")
            folder = ROOT / package.replace(".", "/")
            if not (folder / f"{module}.py").is_file() or (room + ".").startswith(package + "."):
                continue
            wrong += [
                f"{path.relative_to(ROOT)}: {node.module}.{alias.name}"
                for alias in node.names
                if not (folder / f"{alias.name}.py").exists() and not (folder / alias.name).is_dir()
            ]
    assert not wrong


def test_a_room_exports_names_that_exist() -> None:
    for path in _modules():
        if path.with_suffix(".pyi").is_file():
            name = "sluice." + ".".join(path.parent.relative_to(ROOT).parts)
            room = importlib.import_module(name)
            missing = [exported for exported in room.__all__ if not hasattr(room, exported)]
            assert not missing, name


def test_no_exported_name_equals_the_name_of_another_module_of_the_room() -> None:
    """Otherwise the one loaded first is found: lazy_loader prevents this only for a name's own module."""
    wrong = []
    for stub in (path.with_suffix(".pyi") for path in _modules() if path.with_suffix(".pyi").is_file()):
        for node in ast.walk(ast.parse(stub.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = [each.asname or each.name for each in node.names]
                wrong += [f"{stub}: {name}" for name in names if name != node.module and _is_module(stub.parent / name)]
    assert not wrong


def _is_module(path: Path) -> bool:
    return path.is_dir() or path.with_suffix(".py").is_file()


def _modules() -> list[Path]:
    parts = [path.name for path in (ROOT / "sluice").iterdir() if path.is_symlink()]
    return [module for part in parts for module in (ROOT / part).rglob("*.py")]


def test_every_part_of_the_package_is_a_folder_of_the_repository() -> None:
    links = {path.name: path.readlink() for path in (ROOT / "sluice").iterdir() if path.is_symlink()}
    assert links == {name: Path("..") / name for name in links}
    assert all((ROOT / name / "__init__.py").is_file() for name in links)
    assert not (ROOT / "envoy" / "__init__.py").exists(), "the package name envoy belongs to the Envoy protobufs"


def test_no_folder_has_more_modules_than_the_limit() -> None:
    parts = [path.name for path in (ROOT / "sluice").iterdir() if path.is_symlink()]
    modules = Counter(module.parent for part in parts for module in (ROOT / part).rglob("*.py"))
    assert not {str(folder): count for folder, count in modules.items() if count > MAX_MODULES_IN_A_FOLDER + 1}


def test_unit_tests_are_in_folders_named_like_the_packages() -> None:
    """So that the tests of a package are found without a search."""
    unit = Path(__file__).parent
    folders = {path.parent.relative_to(unit) for path in unit.rglob("test_*.py")} - {Path(), Path("chaos")}
    assert not {str(folder) for folder in folders if not (ROOT / folder).is_dir()}
