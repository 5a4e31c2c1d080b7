"""The definition of a REST operation: method, path, name, handler, and the types of its input and output.

A handler is a function of the cluster and the call::

    async def list_jobs(cluster: Cluster, call: Call[PageQuery]) -> JobList:
        \"\"\"Running and archived jobs, the latest first.\"\"\"

Its annotations say which query it takes, which body (a third parameter ``body``), and what it answers; its docstring is
the summary. From them come the checks of what arrives, and the description (:mod:`sluice.runtime.rest.openapi`).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from aiohttp import web

from sluice.core import SluiceError
from sluice.pki.assertions import Assertion
from sluice.runtime.rest.protocol.assertion import asserted

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
FORM = "multipart/form-data"
BINARY = "application/octet-stream"
PLAIN_TEXT = "text/plain"


Annotation: TypeAlias = Any
"""What an annotation may be: a class, ``list[bytes]``, ``A | B``."""


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all query parameters: each field is one; unknown and repeated ones are refused."""


class NoQuery(Query, frozen=True):
    """No parameters at all."""


QueryT = TypeVar("QueryT", bound=Query)
DocumentT = TypeVar("DocumentT")


@dataclass(frozen=True, slots=True)
class Call(Generic[QueryT]):
    """One request, validated: the caller, the segments of the path that have names, and the query."""

    request: web.Request
    path: Mapping[str, str]
    query: QueryT
    trace: str = ""

    @property
    def who(self) -> Assertion:
        """The caller, as the gateway asserts it."""
        return asserted(self.request)


@dataclass(frozen=True, slots=True)
class Reply(Generic[DocumentT]):
    """An answer with headers, or with another status than the usual one of its route."""

    document: DocumentT
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)


class Nothing(msgspec.Struct, frozen=True):
    """An empty object: there is nothing to say."""


Handler = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, eq=False)
class Form:
    """The parts of a body in multipart/form-data: name -> a type for JSON, ``bytes`` for a file."""

    parts: Mapping[str, Annotation]
    required: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Route:
    """One operation of REST.

    Attributes:
        method: of HTTP.
        path: a template; ``{name}`` is one segment.
        operation: its name in the policy; routes that are the same act may share one.
        handler: who answers, see the module's documentation.
        status: of a good answer.
        other_statuses: that a good answer may have besides.
        errors: what it raises besides what every route may.
        form: what comes as multipart/form-data; the handler reads it itself.
        media: the content type of a good answer.
        binary: whether a body of bytes comes, which the handler reads itself.
    """

    method: str
    path: str
    operation: str
    handler: Handler
    status: int = 200
    other_statuses: tuple[int, ...] = ()
    errors: tuple[type[SluiceError], ...] = ()
    form: Form | None = None
    media: str = JSON
    binary: bool = False

    @property
    def id(self) -> str:
        """A name that no other route has."""
        return self.handler.__name__

    @property
    def summary(self) -> str:
        """What the operation does, in one line."""
        return (inspect.getdoc(self.handler) or "").partition("\n")[0]

    @property
    def details(self) -> str:
        """The rest of the handler's docstring."""
        return (inspect.getdoc(self.handler) or "").partition("\n")[2].strip()

    @cached_property
    def _types(self) -> dict[str, Any]:
        return get_type_hints(self.handler, include_extras=True)

    @property
    def query(self) -> type[Query]:
        """The parameters that it takes."""
        (query,) = get_args(self._types["call"])
        checked: type[Query] = query
        return checked

    @property
    def body(self) -> Annotation | None:
        """The type of its body in JSON; None: it takes no such body."""
        return self._types.get("body")

    @property
    def response(self) -> Annotation | None:
        """The type of a good answer; None: something that is not JSON."""
        answer = self._types["return"]
        if get_origin(answer) is Reply:
            (answer,) = get_args(answer)
        if inspect.isclass(answer) and issubclass(answer, web.StreamResponse):
            return None
        return answer

    @property
    def stream(self) -> bool:
        """Whether a good answer goes on for as long as the client stays."""
        return self.media == EVENT_STREAM

    def published(self) -> dict[str, Any]:
        """The facts about the route that the gateway needs."""
        return {
            "method": self.method,
            "path": self.path,
            "operation": self.operation,
            **({"stream": True} if self.stream else {}),
        }
