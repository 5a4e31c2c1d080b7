"""Sample values of types as sent or stored: every field is set, every collection has one member."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from msgspec import inspect as types

_SOME_DEPTH = 20
_PATTERNS = {r"^([0-9a-f]{2}){0,64}$": "aa", r"^([0-9a-f]{2}){1,64}$": "aa"}


def sample(declared: object) -> object:
    """Return a value of builtin types that the decoder of ``declared`` accepts."""
    return _sample(types.type_info(declared), 0)


def _sample(info: types.Type, depth: int) -> object:
    make = next((make for kind, make in _SAMPLES.items() if isinstance(info, kind)), None)
    assert make is not None, f"no sample for {info}"
    return make(info, depth + 1)


def _struct(info: types.StructType, depth: int) -> object:
    values = {each.encode_name: _sample(each.type, depth) for each in info.fields}
    tag = {} if info.tag_field is None else {info.tag_field: info.tag}
    return [*tag.values(), *values.values()] if info.array_like else tag | values


def _union(info: types.UnionType, depth: int) -> object:
    assert depth < 2 * _SOME_DEPTH, "a type that always holds itself"
    members = [each for each in info.types if not isinstance(each, types.NoneType)]
    return _sample(members[0], depth) if depth < _SOME_DEPTH else None


def _number(info: types.IntType | types.FloatType, _depth: int) -> float | int:
    least = info.ge if info.ge is not None else info.gt + 1 if info.gt is not None else 1
    return max(least, 1) if info.le is None or info.le >= 1 else info.le


def _text(info: types.StrType, _depth: int) -> str:
    pattern = info.pattern or ""
    if pattern in _PATTERNS:
        return _PATTERNS[pattern]
    digits = re.fullmatch(r"\^\[0-9a-f\]\{(\d+)\}\$", pattern)
    return "a" * (int(digits[1]) if digits else max(1, info.min_length or 0))


_SAMPLES: dict[type[types.Type], Callable[[Any, int], object]] = {
    types.Metadata: lambda info, depth: _sample(info.type, depth),
    types.StructType: _struct,
    types.UnionType: _union,
    types.EnumType: lambda info, _: next(iter(info.cls)).value,
    types.LiteralType: lambda info, _: info.values[0],
    types.IntType: _number,
    types.FloatType: _number,
    types.StrType: _text,
    types.BytesType: lambda info, _: b"a" * max(1, info.min_length or 0),
    types.BoolType: lambda *_: True,
    types.NoneType: lambda *_: None,
    types.DateTimeType: lambda *_: "2026-01-02T03:04:05Z",
    types.CollectionType: lambda info, depth: [_sample(info.item_type, depth)],
    types.TupleType: lambda info, depth: [_sample(each, depth) for each in info.item_types],
    types.DictType: lambda info, depth: {_sample(info.key_type, depth): _sample(info.value_type, depth)},
    types.RawType: lambda *_: 1,
    types.AnyType: lambda *_: 1,
}
