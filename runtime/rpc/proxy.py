"""Typed proxies: objects that implement a gateway and send each method call to an endpoint."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, Protocol, TypeVar, cast

from sluice.runtime.rpc.contract import Method, gateway_of

_T = TypeVar("_T")


class Link(Protocol):
    """A link to endpoints, within the process or over a stream."""

    async def ask(self, method: Method, endpoint: str, token: bytes | None, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401
        """Call and wait for the result; raises the method's error or an ``RpcError``."""

    async def tell(self, method: Method, endpoint: str, token: bytes | None, arguments: tuple[Any, ...]) -> None:
        """Queue the call for sending; wait only for room."""


class _Proxy:
    __slots__ = ("_endpoint", "_link", "_token")

    def __init__(self, link: Link, endpoint: str, token: bytes | None) -> None:
        self._link = link
        self._endpoint = endpoint
        self._token = token

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._endpoint}>"  # never the token


def make_proxy(protocol: Callable[..., _T], link: Link, endpoint: str, token: bytes | None) -> _T:
    """Return an implementation of ``protocol`` whose methods call ``endpoint`` over ``link``.

    ``protocol`` is the Protocol class itself; it is typed as a callable because ``type[T]`` excludes abstract classes.
    """
    return cast("_T", _proxy_class(cast("type", protocol))(link, endpoint, token))


@cache
def _proxy_class(protocol: type) -> type[_Proxy]:
    gateway = gateway_of(protocol)
    methods = {name: _forward(method) for name, method in gateway.methods.items()}
    return type(f"{gateway.name}Proxy", (_Proxy,), {"__slots__": (), **methods})


def _forward(method: Method) -> Callable[..., Coroutine[Any, Any, Any]]:
    if method.rules.oneway:

        async def tell(self: _Proxy, *arguments: Any, **named: Any) -> None:  # noqa: ANN401  # the declared types
            await self._link.tell(method, self._endpoint, self._token, method.bind(arguments, named))

        return tell

    async def ask(self: _Proxy, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401  # the declared types
        return await self._link.ask(method, self._endpoint, self._token, method.bind(arguments, named))

    return ask
