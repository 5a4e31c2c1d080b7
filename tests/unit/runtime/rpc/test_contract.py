"""Reading gateways: what is declared, what is refused, and how arguments are bound and decoded."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import msgspec
import pytest
from hypothesis import given, strategies as st

from sluice.pki.spiffe_id import Role
from sluice.runtime import gateways
from sluice.runtime.rpc import (
    ContractError,
    InvalidArguments,
    RemoteFailure,
    RpcEndpoint,
    rpc,
)
from sluice.runtime.rpc.contract import gateway_of

TASKMANAGERS = frozenset({Role.TASKMANAGER})


class Point(msgspec.Struct, frozen=True):
    x: int
    y: int


class Mutable(msgspec.Struct):
    x: int


class Holder(msgspec.Struct, frozen=True):
    inside: tuple[Mutable, ...]


class Tree(msgspec.Struct, frozen=True):
    children: tuple[Tree, ...] = ()


class Good(Protocol):
    @rpc(allow=TASKMANAGERS, timeout=3.0, own_job=True, unfenced=True)
    async def move(self, point: Point, steps: int = 2, *, name: str = "") -> Point: ...

    @rpc(allow=TASKMANAGERS, oneway=True)
    async def hint(self, tree: Tree) -> None: ...

    async def not_remote(self) -> None: ...


class Plain(Protocol):
    @rpc(allow=TASKMANAGERS, timeout=3.0, own_job=True, unfenced=True)
    async def move(self, point: Point, steps: int = 2, name: str = "") -> Point: ...

    @rpc(allow=TASKMANAGERS, oneway=True)
    async def hint(self, tree: Tree) -> None: ...

    async def not_remote(self) -> None: ...


class Derived(Plain, Protocol):
    @rpc(allow=frozenset({Role.JOBMANAGER}))
    async def more(self) -> None: ...


def test_rules_and_parameters_of_a_gateway_are_read() -> None:
    gateway = gateway_of(Plain)
    assert gateway.name == "Plain"
    assert set(gateway.methods) == {"move", "hint"}
    move = gateway.methods["move"]
    assert (move.rules.timeout, move.rules.own_job, move.rules.oneway, move.rules.unfenced) == (3.0, True, False, True)
    assert move.rules.allow == TASKMANAGERS
    assert move.parameters == ("point", "steps", "name")


def test_a_method_without_the_rpc_decorator_is_not_remote() -> None:
    assert "not_remote" not in gateway_of(Plain).methods


def test_inherited_methods_belong_to_a_gateway() -> None:
    assert set(gateway_of(Derived).methods) == {"move", "hint", "more"}


@pytest.mark.parametrize("protocol", [value for value in vars(gateways).values() if inspect.isclass(value)])
def test_the_gateways_of_the_cluster_are_declared_correctly(protocol: type) -> None:
    if protocol.__module__ == gateways.__name__:
        assert gateway_of(protocol).methods


class NotAsync(Protocol):
    @rpc(allow=TASKMANAGERS)
    def run(self) -> None: ...


class Undeclared(Protocol):
    @rpc(allow=TASKMANAGERS)
    async def run(self, what) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001  # wrong on purpose


class NoReturn(Protocol):
    @rpc(allow=TASKMANAGERS)
    async def run(self): ...  # type: ignore[no-untyped-def]  # noqa: ANN201  # wrong on purpose


class TakesAnything(Protocol):
    @rpc(allow=TASKMANAGERS)
    async def run(self, what: Any) -> None: ...


class TakesAnythingInside(Protocol):
    @rpc(allow=TASKMANAGERS)
    async def run(self, what: dict[str, tuple[Any, ...]]) -> None: ...


class TakesObject(Protocol):
    @rpc(allow=TASKMANAGERS)
    async def run(self, what: threading_lock) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # on purpose


class ReturnsMutable(Protocol):
    @rpc(allow=TASKMANAGERS)
    async def run(self) -> tuple[Holder, ...]: ...


class Unresolvable(Protocol):
    @rpc(allow=TASKMANAGERS)
    async def run(self, what: RpcEndpoint) -> None: ...


class OnewayWithResult(Protocol):
    @rpc(allow=TASKMANAGERS, oneway=True)
    async def run(self) -> int: ...


class Private(Protocol):
    @rpc(allow=TASKMANAGERS)
    async def _run(self) -> None: ...


class Variadic(Protocol):
    @rpc(allow=TASKMANAGERS)
    async def run(self, *what: int) -> None: ...


class Nothing(Protocol):
    async def run(self) -> None: ...


@pytest.mark.parametrize(
    "protocol",
    [
        Good,
        NotAsync,
        Undeclared,
        NoReturn,
        TakesAnything,
        TakesAnythingInside,
        TakesObject,
        ReturnsMutable,
        Unresolvable,
        OnewayWithResult,
        Private,
        Variadic,
        Nothing,
    ],
)
def test_a_wrong_declaration_is_an_error(protocol: type) -> None:
    with pytest.raises(ContractError):
        gateway_of(protocol)


def test_rpc_needs_a_role_and_a_timeout() -> None:
    with pytest.raises(ContractError, match="no role"):
        rpc(allow=frozenset())
    with pytest.raises(ContractError, match="timeout"):
        rpc(allow=TASKMANAGERS, timeout=0)


class Incomplete(RpcEndpoint):
    async def move(self, point: Point, steps: int = 2, name: str = "") -> Point:
        return Point(point.x + steps, point.y + len(name))


class NotCoroutine(Incomplete):
    def hint(self, tree: Tree) -> None: ...


@pytest.mark.parametrize("endpoint", [Incomplete, NotCoroutine])
def test_an_endpoint_must_implement_its_gateway(endpoint: type[RpcEndpoint]) -> None:
    with pytest.raises(ContractError, match="no coroutine method hint"):
        endpoint("x", Plain)


MOVE = gateway_of(Plain).methods["move"]


def test_binding_follows_pythons_rules() -> None:
    point = Point(1, 2)
    assert MOVE.bind((point,), {}) == (point, 2, "")
    assert MOVE.bind((point, 3), {"name": "n"}) == (point, 3, "n")
    assert MOVE.bind((), {"point": point, "name": "n"}) == (point, 2, "n")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((), {}), ((1, 2, 3, 4), {}), ((1,), {"point": 1}), ((1,), {"other": 1})],
)
def test_binding_refuses_what_python_refuses(arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"move\(\)"):
        MOVE.bind(arguments, named)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 100), st.text())
def test_arguments_survive_the_round_trip(x: int, steps: int, name: str) -> None:
    arguments = (Point(x, 0), steps, name)
    assert MOVE.decode_arguments(MOVE.encode_arguments(arguments)) == arguments


class Later(Protocol):
    """A later release of the gateway, in which the method has one more argument."""

    @rpc(allow=TASKMANAGERS)
    async def move(
        self, point: Point, steps: int = 2, name: str = "", colour: str | msgspec.UnsetType = msgspec.UNSET
    ) -> Point: ...


def test_arguments_that_an_earlier_release_does_not_send_have_their_defaults() -> None:
    later = gateway_of(Later).methods["move"]
    assert later.decode_arguments(MOVE.encode_arguments((Point(1, 2), 3, "n"))) == (Point(1, 2), 3, "n", msgspec.UNSET)
    assert later.decode_arguments(msgspec.msgpack.encode([{"x": 1, "y": 2}])) == (Point(1, 2), 2, "", msgspec.UNSET)


def test_an_earlier_release_accepts_a_call_without_new_arguments_and_refuses_others() -> None:
    later = gateway_of(Later).methods["move"]
    unset = later.encode_arguments(later.bind((Point(1, 2), 3, "n"), {}))
    assert MOVE.decode_arguments(unset) == (Point(1, 2), 3, "n")
    with pytest.raises(InvalidArguments):
        MOVE.decode_arguments(later.encode_arguments((Point(1, 2), 3, "n", "red")))


@given(st.binary())
def test_any_bytes_decode_to_the_declared_types_or_are_refused(data: bytes) -> None:
    try:
        point, steps, name = MOVE.decode_arguments(data)
    except InvalidArguments:
        return
    assert (type(point), type(steps), type(name)) == (Point, int, str)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((), id="too-few"),
        pytest.param(({"x": 1, "y": 2}, 1, "", 4), id="too-many"),
        pytest.param(({"x": 1}, 1, ""), id="missing-field"),
        pytest.param(({"x": "1", "y": 2}, 1, ""), id="no-coercion"),
        pytest.param(({"x": 1, "y": 2}, 1.5, ""), id="float-for-int"),
        pytest.param(({"x": 1, "y": 2}, 1, None), id="none"),
    ],
)
def test_arguments_of_other_types_are_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidArguments, match="move"):
        MOVE.decode_arguments(msgspec.msgpack.encode(arguments))


def test_a_deeply_nested_argument_is_refused() -> None:
    data = b"\x91" + b"\x81\xa8children\x91" * 50_000 + b"\x80"
    with pytest.raises(InvalidArguments):
        gateway_of(Plain).methods["hint"].decode_arguments(data)


def test_arguments_that_msgpack_cannot_represent_are_refused_when_encoding() -> None:
    with pytest.raises(InvalidArguments):
        MOVE.encode_arguments((object(), 1, ""))
    with pytest.raises(InvalidArguments):
        MOVE.encode_arguments((Point(1 << 80, 0), 1, ""))


def test_a_result_of_another_type_is_a_remote_failure() -> None:
    with pytest.raises(RemoteFailure, match="result of move"):
        MOVE.decode_result(msgspec.msgpack.encode("no point"))
