"""Describes types of messages and records as JSON documents, and finds incompatible changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import NODEFAULT, UNSET, Struct, inspect as types

Described = Mapping[str, Any]
"""``kind`` and what belongs to it; a Struct is ``{"kind": "struct", "name": ...}``, and its fields are kept by name."""


class Describer:
    """Describes types. ``structs`` collects all structs it has encountered, by module and name."""

    def __init__(self) -> None:
        self.structs: dict[str, Described] = {}

    def describe(self, declared: object) -> Described:
        """Describe the values that may be sent or stored for a type."""
        return self._of(types.type_info(declared))

    def _of(self, info: types.Type) -> Described:
        if isinstance(info, types.StructType):
            return self._struct(info)
        if isinstance(info, types.UnionType):
            members = [self._of(each) for each in info.types]
            return {"kind": "union", "types": sorted(members, key=repr)}
        if isinstance(info, types.EnumType):
            return {"kind": "enum", "values": sorted(each.value for each in info.cls)}
        if isinstance(info, types.LiteralType):
            return {"kind": "enum", "values": sorted(info.values)}
        if isinstance(info, types.Metadata):
            return self._of(info.type)
        found: dict[str, Any] = {"kind": type(info).__name__.removesuffix("Type").lower()}
        assert isinstance(info, Struct)
        for name in info.__struct_fields__:
            value = getattr(info, name)
            if isinstance(value, types.Type):
                found[name] = self._of(value)
            elif isinstance(value, tuple):
                found[name] = [self._of(each) for each in value]
            elif value is not None and not isinstance(value, type):
                found[name] = value
        return found

    def _struct(self, info: types.StructType) -> Described:
        name = f"{info.cls.__module__}.{info.cls.__qualname__}"
        if name not in self.structs:
            self.structs[name] = {}  # it may hold itself
            self.structs[name] = {
                "array": info.array_like,
                "strict": info.forbid_unknown_fields,
                "omits": info.cls.__struct_config__.omit_defaults,
                "tag": [info.tag_field, info.tag],
                "fields": [
                    {
                        "name": each.encode_name,
                        "type": self._of(each.type),
                        "required": each.required,
                        "unset": not each.required and each.default is NODEFAULT and each.default_factory is NODEFAULT,
                    }
                    for each in info.fields
                ],
            }
        return {"kind": "struct", "name": name}


class Comparison:
    """Finds incompatible changes between two releases, in either direction.

    Each change is reported with its place.
    """

    def __init__(self, old: Mapping[str, Described], new: Mapping[str, Described]) -> None:
        """Both arguments: the structs of a release, by name."""
        self._old = old
        self._new = new
        self._seen: set[tuple[str, str]] = set()

    def breaks(self, place: str, old: Described, new: Described) -> Iterator[str]:
        """Yield one message for each incompatible change."""
        if old["kind"] != new["kind"]:
            yield f"{place}: was {old['kind']}, is {new['kind']}"
        elif old["kind"] == "struct":
            yield from self._structs(place, old["name"], new["name"])
        elif old["kind"] == "enum":
            if old["values"] != new["values"]:
                yield f"{place}: its values were {old['values']}, are {new['values']}"
        elif old["kind"] == "union":
            yield from self._members(place, old["types"], new["types"])
        else:
            for key in sorted({*old, *new} - {"kind"}):
                yield from self._values(f"{place}.{key}", old.get(key), new.get(key))

    def _values(self, place: str, old: object, new: object) -> Iterator[str]:
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from self.breaks(place, old, new)
        elif isinstance(old, list) and isinstance(new, list):
            yield from self._members(place, old, new)
        elif old != new:
            yield f"{place}: was {old}, is {new}"

    def _members(self, place: str, old: Sequence[Described], new: Sequence[Described]) -> Iterator[str]:
        if len(old) != len(new):
            yield f"{place}: had {len(old)} types, has {len(new)}"
            return
        for number, (before, now) in enumerate(zip(old, new, strict=True)):
            yield from self.breaks(f"{place}[{number}]", before, now)

    def _structs(self, place: str, old_name: str, new_name: str) -> Iterator[str]:
        if (old_name, new_name) in self._seen:
            return
        self._seen.add((old_name, new_name))
        old, new = self._old[old_name], self._new[new_name]
        for key in ("array", "tag"):
            if old[key] != new[key]:
                yield f"{place}: {key} was {old[key]}, is {new[key]}"
        if old["array"] and [each["name"] for each in old["fields"]] != [each["name"] for each in new["fields"]]:
            yield f"{place}: the fields of an array have changed"
            return
        fields = {each["name"]: each for each in new["fields"]}
        for each in old["fields"]:
            now = fields.pop(each["name"], None)
            if now is None:
                yield f"{place}.{each['name']}: is gone"
                continue
            if now["required"] and not each["required"]:
                yield f"{place}.{each['name']}: is required now"
            yield from self.breaks(f"{place}.{each['name']}", each["type"], now["type"])
        for name, each in fields.items():
            ignored, omitted = not old["strict"], new["omits"]
            if each["required"]:
                yield f"{place}.{name}: is new, and required"
            elif not (each["unset"] or ignored or omitted):
                yield f"{place}.{name}: is new, and sent to releases that refuse it: declare it `| UnsetType = UNSET`"


def is_unset(default: object) -> bool:
    """Whether a parameter with this default is sent only if it is given."""
    return default is UNSET
