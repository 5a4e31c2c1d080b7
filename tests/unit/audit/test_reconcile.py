"""Reconciling the declared listeners with the kernel's socket table."""

from __future__ import annotations

from sluice.audit.discovery import reconcile
from sluice.audit.model import Kind, Listener
from sluice.audit.sockets import KernelSocket
from sluice.pki.channels import Channel

RPC = Listener(name="rpc", kind=Kind.MUTUAL, channel=Channel.RPC, host="127.0.0.1", port=1000)
AUTH = Listener(name="auth", kind=Kind.SOCKET, path="/home/run/sock/auth.sock")
JOB = "0123456789abcdef" * 2
DRIVER = f"java @/home/work/tm-1/jobs/{JOB}/driver-1/work/args org.apache.spark.api.python.PythonGatewayServer"
EXECUTOR = f"java @/home/work/tm/jobs/{JOB}/args org.apache.spark.executor.CoarseGrainedExecutorBackend"


def kernel(
    command: str = "python", *, host: str = "127.0.0.1", port: int = 0, path: str = "", pid: int = 7
) -> KernelSocket:
    """A socket of one process."""
    return KernelSocket("member", pid, command, host="" if path else host, port=port, path=path)


def found(*sockets: KernelSocket, plain: frozenset[int] = frozenset()) -> dict[str, Listener]:
    """The listeners that result from ``sockets``; ports in ``plain`` do not answer a TLS hello."""
    listeners = reconcile([RPC, AUTH], sockets, lambda address: address[1] not in plain)
    return {listener.name: listener for listener in listeners}


def test_a_declared_listener_that_is_bound_keeps_its_declared_kind() -> None:
    listeners = found(kernel(port=1000), kernel(path=AUTH.path))
    assert {name: listener.kind for name, listener in listeners.items()} == {"rpc": Kind.MUTUAL, "auth": Kind.SOCKET}
    assert listeners["rpc"].process == "member"
    assert listeners["rpc"].bound == ("127.0.0.1",)


def test_a_declared_listener_that_is_not_bound_is_kept() -> None:
    assert found()["rpc"].bound == ()


def test_an_undeclared_listener_is_reported_with_its_process() -> None:
    (listener,) = (each for each in found(kernel("nc -l", port=4444)).values() if each.kind is Kind.UNDECLARED)
    assert (listener.port, listener.bound) == (4444, ("127.0.0.1",))
    assert "nc -l" in listener.process


def test_the_declared_port_bound_on_every_interface_is_the_declared_listener() -> None:
    listeners = found(kernel(host="0.0.0.0", port=1000))  # noqa: S104  what must be found
    assert listeners["rpc"].bound == ("0.0.0.0",)  # noqa: S104  what must be found
    assert not [each for each in listeners.values() if each.kind is Kind.UNDECLARED]


def test_the_declared_port_on_another_address_is_an_undeclared_listener() -> None:
    kinds = [each.kind for each in found(kernel(host="10.0.0.1", port=1000)).values()]
    assert Kind.UNDECLARED in kinds


def test_listeners_of_a_jobs_jvms_are_data_channels_of_that_job() -> None:
    listeners = found(kernel(DRIVER, port=2000), kernel(EXECUTOR, port=3000, pid=8))
    for name in ("driver-7-2000", "executor-8-3000"):
        assert (listeners[name].kind, listeners[name].channel) == (Kind.MUTUAL, Channel.DATA)
        assert listeners[name].job_id == JOB


def test_only_one_plaintext_listener_of_a_driver_is_taken_for_its_python_gateway() -> None:
    listeners = found(
        kernel(DRIVER, port=2000), kernel(DRIVER, port=2001), kernel(DRIVER, port=2002), plain=frozenset({2001, 2002})
    )
    assert sorted(str(each.kind) for each in listeners.values() if each.port >= 2000) == ["local", "mutual", "mutual"]


def test_a_plaintext_listener_of_an_executor_is_not_taken_for_a_python_gateway() -> None:
    listeners = found(kernel(EXECUTOR, port=3000), plain=frozenset({3000}))
    assert listeners["executor-7-3000"].kind is Kind.MUTUAL


def test_a_socket_that_a_child_inherited_is_counted_once() -> None:
    listeners = found(kernel(port=5000, pid=1), kernel(port=5000, pid=2))
    assert len([each for each in listeners.values() if each.kind is Kind.UNDECLARED]) == 1


def test_unix_sockets_outside_the_private_directories_of_workers_are_undeclared() -> None:
    listeners = found(kernel(path="/t/sluice-jvm-1-x/bridge"), kernel(path="/t/strange.sock"))
    assert listeners["bridge"].kind is Kind.SOCKET
    assert [each.path for each in listeners.values() if each.kind is Kind.UNDECLARED] == ["/t/strange.sock"]
