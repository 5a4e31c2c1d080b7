"""Maps a request to its operation: exactly one published route, or none.

The gateway knows REST only by its published route list (JSON: ``[{"method", "path", "operation", "stream"}]``). A
request that matches no route never reaches REST, so the two cannot interpret a path differently. Envoy and REST
normalise differently. Therefore every path that *could* be normalised is refused (RFC 3986 section 6.2.2; ``%252e``,
``..;/`` and the like pass Envoy's own normalisation).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import msgspec

from sluice.gateway.errors import RouteListError

MAX_ROUTES = 500
MAX_PATH_CHARACTERS = 1000
MAX_QUERY_CHARACTERS = 1000
"""1000 is the maximum repetition count in Envoy's regular expressions."""
MAX_PARAMETER_CHARACTERS = 128

_PATH_CLASS = "[A-Za-z0-9._~/-]"
"""Unreserved characters only: no percent-encoding, no ``;``, no backslash, no control characters."""
_QUERY_CLASS = "[A-Za-z0-9._~!$&'()*+,;=:@/?%-]"
TARGET_PATTERN = f"/{_PATH_CLASS}{{0,{MAX_PATH_CHARACTERS - 1}}}([?]{_QUERY_CLASS}{{0,{MAX_QUERY_CHARACTERS}}})?"
"""Matches what :func:`split_target` accepts, for proxies that cannot call it. Valid in RE2 and in Python."""
_PATH = re.compile(f"/{_PATH_CLASS}*")
_QUERY = re.compile(f"{_QUERY_CLASS}*")
PARAMETER_PATTERN = f"[A-Za-z0-9_~-][A-Za-z0-9._~-]{{0,{MAX_PARAMETER_CHARACTERS - 1}}}"
"""Matches segments that a parameter accepts. Valid in RE2 and in Python."""
_PARAMETER = re.compile(r"\{[a-z_]+\}")
_LITERAL = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*")
_METHOD = re.compile(r"[A-Z]{3,10}")


class UnsafePath(Exception):
    """Programs may interpret this request target differently. The message says what is wrong."""


class Route(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One published route. ``path`` may have ``{name}`` segments. A ``stream`` lasts until its reader disconnects."""

    method: str
    path: str
    operation: str
    stream: bool = False


@dataclass(frozen=True, slots=True)
class _Compiled:
    route: Route
    segments: tuple[str | None, ...]  # None: a parameter

    def matches(self, segments: tuple[str, ...]) -> bool:
        return len(segments) == len(self.segments) and all(
            want is None or want == have for want, have in zip(self.segments, segments, strict=True)
        )

    def overlaps(self, other: _Compiled) -> bool:
        return len(other.segments) == len(self.segments) and all(
            mine is None or theirs is None or mine == theirs
            for mine, theirs in zip(self.segments, other.segments, strict=True)
        )


class RouteTable:
    """The published routes. It is guaranteed that a request matches at most one of them."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_method: dict[str, list[_Compiled]] = {}
        self.routes = tuple(routes)
        if len(self.routes) > MAX_ROUTES:
            raise RouteListError(f"{len(self.routes)} routes are more than {MAX_ROUTES}")
        for route in self.routes:
            self._by_method.setdefault(route.method, []).append(_compile(route))
        for compiled in self._by_method.values():
            for one, other in combinations(compiled, 2):
                if one.overlaps(other):
                    raise RouteListError(
                        f"{one.route.method} {one.route.path} and {other.route.path} can mean the same request",
                        "publish routes that exclude each other",
                    )

    @classmethod
    def decode(cls, data: bytes) -> RouteTable:
        """Parse the published JSON. Raises :class:`RouteListError`."""
        try:
            return cls(msgspec.json.decode(data, type=tuple[Route, ...]))
        except msgspec.MsgspecError as error:
            raise RouteListError(f"the route list is malformed: {error}", "start the cluster again") from error

    def match(self, method: str, path: str) -> Route | None:
        """The route that matches this request, or None. ``path`` must have passed :func:`split_target`."""
        segments = tuple(path[1:].split("/"))
        if any(len(segment) > MAX_PARAMETER_CHARACTERS for segment in segments):
            return None
        matching = [entry.route for entry in self._by_method.get(method, ()) if entry.matches(segments)]
        return matching[0] if len(matching) == 1 else None


def split_target(target: str) -> str:
    """The path of an unambiguous request target. Raises :class:`UnsafePath`."""
    path, _, query = target.partition("?")
    if len(path) > MAX_PATH_CHARACTERS or len(query) > MAX_QUERY_CHARACTERS:
        raise UnsafePath("the request target is too long")
    if not _PATH.fullmatch(path):
        raise UnsafePath("the path has characters outside of A-Z a-z 0-9 . _ ~ / -")
    if not _QUERY.fullmatch(query):
        raise UnsafePath("the query has characters that RFC 3986 does not allow")
    segments = path[1:].split("/")
    if path != "/" and any(segment == "" or segment.startswith(".") for segment in segments):
        raise UnsafePath("the path has an empty or dot segment")
    return path


def _compile(route: Route) -> _Compiled:
    if not _METHOD.fullmatch(route.method):
        raise RouteListError(f"{route.method[:40]!r} is not a method")
    if not route.operation:
        raise RouteListError(f"{route.method} {route.path} names no operation")
    if not route.path.startswith("/"):
        raise RouteListError(f"the path {route.path[:80]!r} does not begin with '/'")
    segments: list[str | None] = []
    for segment in route.path[1:].split("/"):
        if _PARAMETER.fullmatch(segment):
            segments.append(None)
        elif _LITERAL.fullmatch(segment) or route.path == "/":
            segments.append(segment)
        else:
            raise RouteListError(f"the path {route.path[:80]!r} has a segment that no request may have: {segment!r}")
    return _Compiled(route, tuple(segments))
