"""Reads from a gateway Protocol which methods may be called, by which roles, and with which types.

A gateway is a ``typing.Protocol`` whose remote methods are decorated with :func:`rpc`. A method without the decorator
cannot be called remotely, and a role that is not in ``allow`` may not call: deny by default.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect as types

from sluice.pki import Role
from sluice.runtime.rpc.errors import ContractError, InvalidArguments, RemoteFailure

DEFAULT_TIMEOUT_SECONDS = 10.0
"""How long an ask waits for its answer unless the method declares another timeout."""

_ATTRIBUTE = "__sluice_rpc__"
_FIXARRAY = 0x90
"""The first byte of a short msgpack array, to which its length is added."""
_MAX_PARAMETERS = 16
"""Arrays of this length or longer have another msgpack encoding."""
_F = TypeVar("_F", bound=Callable[..., Any])
_ENCODER = msgspec.msgpack.Encoder()
_UNDECLARED = (types.AnyType, types.RawType, types.CustomType, types.ExtType)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that :func:`rpc` declares for a method; the timeout is in seconds."""

    allow: frozenset[Role]
    timeout: float
    own_job: bool
    oneway: bool
    unfenced: bool
    local: bool = False


def rpc(
    *,
    allow: AbstractSet[Role] = frozenset(),
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
    own_job: bool = False,
    oneway: bool = False,
    unfenced: bool = False,
    local: bool = False,
) -> Callable[[_F], _F]:
    """Declare a Protocol method as callable by peers with a role in ``allow``, or only within the process.

    Args:
        allow: certificate roles that may call; an empty set is an error unless the method is local.
        timeout: seconds that an ask waits for the answer.
        own_job: the caller's certificate must belong to the job of the endpoint.
        oneway: a tell: the call returns as soon as it is queued for sending, and has no answer.
        unfenced: a fenced endpoint accepts the call without a token.
        local: only endpoints of the same process may call; no peer may, whatever its certificate.
    """
    if local and (allow or own_job):
        raise ContractError("an rpc method that is local and open to peers", "name roles, or make it local, not both")
    if not allow and not local:
        raise ContractError("an rpc method that no role may call", "name at least one role in allow, or local=True")
    if timeout <= 0:
        raise ContractError(f"an rpc method with a timeout of {timeout} s", "give a positive number of seconds")
    rules = Rules(frozenset(allow), timeout, own_job, oneway, unfenced, local)

    def declare(function: _F) -> _F:
        setattr(function, _ATTRIBUTE, rules)
        return function

    return declare


@dataclass(frozen=True, slots=True)
class Method:
    """One remote method with its rules and its codec."""

    name: str
    rules: Rules
    parameters: tuple[str, ...]
    defaults: Mapping[str, Any]
    _arguments: Mapping[int, msgspec.msgpack.Decoder[tuple[Any, ...]]] = field(repr=False)
    """Decoders by number of arguments: a peer of an earlier release does not send arguments that were added later."""
    _result: msgspec.msgpack.Decoder[Any] = field(repr=False)

    def bind(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return all arguments in order; raise ``TypeError`` exactly when Python's own call would."""
        if not named and len(arguments) == len(self.parameters):
            return tuple(arguments)
        if len(arguments) > len(self.parameters):
            raise TypeError(f"{self.name}() takes {len(self.parameters)} arguments but {len(arguments)} were given")
        values = dict(zip(self.parameters, arguments, strict=False))
        for name, value in named.items():
            if name not in self.parameters or name in values:
                raise TypeError(f"{self.name}() got an unexpected or repeated argument {name!r}")
            values[name] = value
        missing = [name for name in self.parameters if name not in values and name not in self.defaults]
        if missing:
            raise TypeError(f"{self.name}() lacks the arguments {', '.join(missing)}")
        return tuple(values.get(name, self.defaults.get(name)) for name in self.parameters)

    def encode_arguments(self, arguments: tuple[Any, ...]) -> bytes:
        """Encode arguments as msgpack, without ``UNSET`` ones at the end, which earlier releases do not know."""
        while arguments and arguments[-1] is msgspec.UNSET:
            arguments = arguments[:-1]
        try:
            return _ENCODER.encode(arguments)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArguments(f"the arguments of {self.name} cannot be encoded: {type(error).__name__}") from error

    def decode_arguments(self, data: bytes) -> tuple[Any, ...]:
        """Decode arguments of the declared types; raises :class:`InvalidArguments`, which contains no values."""
        count = len(self.parameters)
        if data and (sent := data[0] - _FIXARRAY) in self._arguments:
            count = sent
        try:
            values = self._arguments[count].decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArguments(f"the arguments of {self.name} are not of the declared types: {error}") from None
        return (*values, *(self.defaults[name] for name in self.parameters[count:]))

    def encode_result(self, result: Any) -> bytes:  # noqa: ANN401  # any declared type
        """Encode the result as msgpack."""
        return _ENCODER.encode(result)

    def decode_result(self, data: bytes) -> Any:  # noqa: ANN401  # any declared type
        """Decode the result of the declared type; raises :class:`RemoteFailure`."""
        try:
            return self._result.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RemoteFailure(f"the result of {self.name} is not of the declared type: {error}") from None


@dataclass(frozen=True, slots=True)
class Gateway:
    """All remote methods of one Protocol."""

    name: str
    methods: Mapping[str, Method]


@cache
def gateway_of(protocol: type) -> Gateway:
    """Read the remote methods of ``protocol``; raises :class:`ContractError` naming a wrong declaration."""
    methods = {}
    for name, function in inspect.getmembers(protocol, inspect.isfunction):
        rules = getattr(function, _ATTRIBUTE, None)
        if isinstance(rules, Rules):
            methods[name] = _read(f"{protocol.__name__}.{name}", name, function, rules)
    if not methods:
        raise ContractError(f"{protocol.__name__} declares no remote method", "decorate its methods with @rpc")
    return Gateway(protocol.__name__, methods)


def check_implements(implementation: object, gateway: Gateway) -> None:
    """Raise :class:`ContractError` unless every method of ``gateway`` is an ``async def`` of ``implementation``."""
    for name in gateway.methods:
        if not inspect.iscoroutinefunction(getattr(implementation, name, None)):
            raise ContractError(
                f"{type(implementation).__name__} serves {gateway.name} but has no coroutine method {name}",
                f"define `async def {name}`",
            )


def _read(label: str, name: str, function: Callable[..., Any], rules: Rules) -> Method:
    if not inspect.iscoroutinefunction(function):
        raise ContractError(f"{label} is not a coroutine", "declare it with async def")
    if name.startswith("_"):
        raise ContractError(f"{label} is private and cannot be remote", "give it a public name")
    parameters = list(inspect.signature(function).parameters.values())[1:]
    if any(parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters):
        raise ContractError(f"{label} has parameters that are not plain positional ones")
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise ContractError(f"{label} has a type that cannot be resolved: {error}") from error
    missing = [each for each in (*(parameter.name for parameter in parameters), "return") if each not in hints]
    if missing:
        raise ContractError(f"{label} does not declare the type of {', '.join(missing)}")
    if rules.oneway and hints["return"] is not type(None):
        raise ContractError(f"{label} is one-way but returns something", "declare -> None")
    declared = [hints[parameter.name] for parameter in parameters]
    for hint in (*declared, hints["return"]):
        _check_declared(label, hint)
    defaults = {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}
    if len(declared) >= _MAX_PARAMETERS:
        raise ContractError(f"{label} has {len(declared)} parameters", "put them into one Struct")
    return Method(
        name=name,
        rules=rules,
        parameters=tuple(parameter.name for parameter in parameters),
        defaults=defaults,
        _arguments={
            count: msgspec.msgpack.Decoder(_tuple_of(declared[:count]))
            for count in range(len(declared) - len(defaults), len(declared) + 1)
        },
        _result=msgspec.msgpack.Decoder(hints["return"]),
    )


def _tuple_of(declared: Sequence[Any]) -> Any:  # noqa: ANN401  # a type expression
    return tuple[tuple(declared)] if declared else tuple[()]  # type: ignore[misc]  # built at run time


def _check_declared(label: str, hint: Any) -> None:  # noqa: ANN401  # a type expression
    """Refuse types that do not declare their content, and mutable Structs (local calls share objects)."""
    try:
        pending: list[Any] = [types.type_info(hint)]
    except TypeError as error:
        raise ContractError(f"{label} has a type that msgspec cannot decode: {error}") from error
    seen: set[type] = set()
    while pending:
        info = pending.pop()
        if isinstance(info, _UNDECLARED):
            raise ContractError(f"{label} uses {hint}, which does not declare what it holds", "use concrete types")
        if isinstance(info, types.StructType):
            if info.cls in seen:
                continue
            seen.add(info.cls)
            if not info.cls.__struct_config__.frozen:
                raise ContractError(f"{label} uses {info.cls.__name__}, which is mutable", "declare it frozen=True")
        if isinstance(info, msgspec.Struct):
            for name in info.__struct_fields__:
                value = getattr(info, name)
                pending.extend(value if isinstance(value, tuple) else (value,))
