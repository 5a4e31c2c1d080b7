"""``compose.yaml`` as a YAML document with named anchors and merge keys, so that it stays short and easy to edit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import yaml

MERGE_TAG = "tag:yaml.org,2002:merge"


class Anchored(dict[str, object]):
    """A mapping that is written once, as ``&anchor``, and referred to from everywhere else as ``*anchor``."""

    def __init__(self, anchor: str, items: Mapping[str, object]) -> None:
        super().__init__(items)
        self.anchor = anchor


@dataclass(frozen=True, slots=True)
class Merged:
    """A mapping that extends and overrides another: ``<<: *anchor``, then ``items``."""

    base: Anchored
    items: Mapping[str, object]


class _Dumper(yaml.SafeDumper):
    """Writes the two types above; everything else as PyYAML does."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]  # passed through
        self._anchors: dict[int, str] = {}

    def generate_anchor(self, node: yaml.Node) -> str:
        """The name of an anchored mapping; PyYAML's own for anything else that occurs twice."""
        return self._anchors.get(id(node)) or str(super().generate_anchor(node))

    def represent_anchored(self, data: Anchored) -> yaml.Node:
        """A mapping with a name."""
        node = self.represent_dict(data)
        self._anchors[id(node)] = data.anchor
        return node

    def represent_merged(self, data: Merged) -> yaml.Node:
        """A mapping that begins with a merge key (https://yaml.org/type/merge.html)."""
        node = self.represent_dict(data.items)
        key = yaml.ScalarNode(MERGE_TAG, "<<")
        node.value.insert(0, (key, self.represent_data(data.base)))
        return node


_Dumper.add_representer(Anchored, _Dumper.represent_anchored)
_Dumper.add_representer(Merged, _Dumper.represent_merged)


def dump(document: Mapping[str, object], header: str) -> str:
    """``document`` as YAML, in its order, below the lines of ``header`` as comments."""
    comments = "".join(f"# {line}".rstrip() + "\n" for line in header.splitlines())
    text = yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=1 << 16)
    return f"{comments}\n{text}"
