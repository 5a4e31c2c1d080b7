"""The definition of a REST operation: method, path, operation name, handler, and the types of input and output.

A handler is a function of the cluster and the call::

    async def list_jobs(cluster: Cluster, call: Call[PageQuery]) -> JobList:
        \"\"\"Running and archived jobs, the latest first.\"\"\"

Its annotations define the query, the body (a third parameter ``body``) and the response. Its docstring is the summary.
Requests are validated against them, and the OpenAPI document is generated from them
(:mod:`sluice.runtime.rest.openapi`).
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
"""A type annotation: a class, ``list[bytes]``, ``A | B``."""


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all query types. Each field is a parameter; unknown and repeated parameters are refused."""


class NoQuery(Query, frozen=True):
    """A query without parameters."""


QueryT = TypeVar("QueryT", bound=Query)
DocumentT = TypeVar("DocumentT")


@dataclass(frozen=True, slots=True)
class Call(Generic[QueryT]):
    """One validated request: the caller, the named path segments, the query, and the trace parent."""

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
    """A response with headers, or with a status other than the default of its route."""

    document: DocumentT
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)


class Nothing(msgspec.Struct, frozen=True):
    """An empty object, for operations without a result."""


Handler = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, eq=False)
class Form:
    """The parts of a multipart/form-data body: name -> a type for JSON, ``bytes`` for a file."""

    parts: Mapping[str, Annotation]
    required: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Route:
    """One operation of REST.


    Attributes:
        method: the HTTP method.
        path: the path template; ``{name}`` is one segment.
        operation: its name in the policy; routes with the same effect may share a name.
        handler: the handler, see the module's documentation.
        status: the status of a successful response.
        other_statuses: further statuses that a successful response may have.
        errors: the errors that it raises besides :data:`~sluice.runtime.rest.protocol.problems.EVERYWHERE`.
        form: the parts of a multipart/form-data body, which the handler reads itself.
        media: the content type of a successful response.
        binary: whether the body is binary; the handler reads it itself.
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
        """The unique name of the route."""
        return self.handler.__name__

    @property
    def summary(self) -> str:
        """The first line of the handler's docstring."""
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
        """The type of its query parameters."""
        (query,) = get_args(self._types["call"])
        checked: type[Query] = query
        return checked

    @property
    def body(self) -> Annotation | None:
        """The type of its JSON body; None if it has no JSON body."""
        return self._types.get("body")

    @property
    def response(self) -> Annotation | None:
        """The type of a successful response; None if it is not JSON."""
        answer = self._types["return"]
        if get_origin(answer) is Reply:
            (answer,) = get_args(answer)
        if inspect.isclass(answer) and issubclass(answer, web.StreamResponse):
            return None
        return answer

    @property
    def stream(self) -> bool:
        """Whether the response is an event stream."""
        return self.media == EVENT_STREAM

    def published(self) -> dict[str, Any]:
        """The description of the route for the gateway."""
        return {
            "method": self.method,
            "path": self.path,
            "operation": self.operation,
            **({"stream": True} if self.stream else {}),
        }
