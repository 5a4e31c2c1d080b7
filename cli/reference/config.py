"""Every setting with its default and what it means, as a ``sluice.toml`` in which every setting is commented out
(``# words``, ``#setting = default``, as in sshd_config).

The text comes from the code: class docstrings, and the docstring under each field. So the reference is complete and has
nothing that does not exist.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from sluice.cli.config import SECTIONS

WIDTH = 110
_ROLE = re.compile(r":[a-z]+:(?=`)")
_INTRODUCTION = (
    "Every setting of Sluice, with its default. The file is the one of --config or SLUICE_CONFIG, else sluice.toml in "
    "the home, else ./sluice.toml. SLUICE__SECTION__KEY in the environment overrides the file, and a flag overrides "
    "both; sluice config show prints the values in effect and where they come from. To change a setting, remove the # "
    "before it, and the one before its section."
)


def configuration_reference() -> str:
    """All sections, in the order in which they are defined."""
    blocks = [_comment(_INTRODUCTION), *(_section(f"[{name}]", struct) for name, struct in SECTIONS.items())]
    return "\n\n".join(blocks) + "\n"


def _section(header: str, struct: type[msgspec.Struct]) -> str:
    words = _field_docstrings(struct)
    lines = [_comment(_plain(inspect.getdoc(struct) or "")), header]
    tables = []
    for field in msgspec.structs.fields(struct):
        table = next(_tables(field.type), None)
        if table is not None:
            name = f"{header.strip('[]')}.{field.name}"
            many = typing.get_origin(field.type) is tuple
            tables.append(_comment(_section(f"[[{name}]]" if many else f"[{name}]", table), wrap=False))
            continue
        if field.name in words:
            lines.append(_comment(_plain(words[field.name])))
        choices = _choices(field.type)
        if choices:
            lines.append(_comment("One of: " + ", ".join(map(_toml, choices)) + "."))
        lines.append(f"#{field.name} = {'…' if field.required else _toml(_default(field))}")
    return "\n\n".join(["\n".join(lines), *tables])


def _tables(annotation: Any) -> Iterator[type[msgspec.Struct]]:  # noqa: ANN401  any annotation there is
    for part in (annotation, *typing.get_args(annotation)):
        if isinstance(part, type) and not isinstance(part, types.GenericAlias) and issubclass(part, msgspec.Struct):
            yield part


def _choices(annotation: Any) -> tuple[object, ...]:  # noqa: ANN401  any annotation there is
    return typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    factory: Any = field.default_factory
    return factory()


def _toml(value: object) -> str:
    """``value`` in TOML; strings as in JSON, which are valid basic strings in TOML."""
    if isinstance(value, dict):
        inside = ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)


def _plain(text: str) -> str:
    return _ROLE.sub("", " ".join(text.split())).replace("`", "")


def _comment(text: str, *, wrap: bool = True) -> str:
    lines = textwrap.wrap(text, WIDTH) if wrap else text.splitlines()
    return "\n".join(line if line.startswith("#") or not line else f"# {line}" for line in lines)


def _field_docstrings(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The docstring below each field, read from the source because Python discards it."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(struct))).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    found = {}
    for statement, following in itertools.pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[statement.target.id] = following.value.value
    return found
