"""The registry held against the kernel's table."""

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
    """What is made of ``sockets``; ports in ``plain`` answer no hello."""
    listeners = reconcile([RPC, AUTH], sockets, lambda address: address[1] not in plain)
    return {listener.name: listener for listener in listeners}


def test_what_is_declared_and_there_is_what_it_was_declared_as() -> None:
    listeners = found(kernel(port=1000), kernel(path=AUTH.path))
    assert {name: listener.kind for name, listener in listeners.items()} == {"rpc": Kind.MUTUAL, "auth": Kind.SOCKET}
    assert listeners["rpc"].process == "member"
    assert listeners["rpc"].bound == ("127.0.0.1",)


def test_what_is_declared_and_not_there_stays_and_will_be_missed() -> None:
    assert found()["rpc"].bound == ()


def test_what_nobody_declared_is_told_with_its_process() -> None:
    (listener,) = (each for each in found(kernel("nc -l", port=4444)).values() if each.kind is Kind.UNDECLARED)
    assert (listener.port, listener.bound) == (4444, ("127.0.0.1",))
    assert "nc -l" in listener.process


def test_the_declared_port_on_every_interface_is_still_the_declared_listener_with_where_it_is_bound() -> None:
    listeners = found(kernel(host="0.0.0.0", port=1000))  # noqa: S104  what must be found
    assert listeners["rpc"].bound == ("0.0.0.0",)  # noqa: S104  what must be found
    assert not [each for each in listeners.values() if each.kind is Kind.UNDECLARED]


def test_the_declared_port_on_another_address_is_another_listener() -> None:
    kinds = [each.kind for each in found(kernel(host="10.0.0.1", port=1000)).values()]
    assert Kind.UNDECLARED in kinds


def test_a_jobs_jvms_listen_for_their_own_job() -> None:
    listeners = found(kernel(DRIVER, port=2000), kernel(EXECUTOR, port=3000, pid=8))
    for name in ("driver-7-2000", "executor-8-3000"):
        assert (listeners[name].kind, listeners[name].channel) == (Kind.MUTUAL, Channel.DATA)
        assert listeners[name].job_id == JOB


def test_a_driver_has_one_gateway_for_its_own_python_process_and_no_second_one() -> None:
    listeners = found(
        kernel(DRIVER, port=2000), kernel(DRIVER, port=2001), kernel(DRIVER, port=2002), plain=frozenset({2001, 2002})
    )
    assert sorted(str(each.kind) for each in listeners.values() if each.port >= 2000) == ["local", "mutual", "mutual"]


def test_an_executor_has_no_gateway() -> None:
    listeners = found(kernel(EXECUTOR, port=3000), plain=frozenset({3000}))
    assert listeners["executor-7-3000"].kind is Kind.MUTUAL


def test_sockets_that_a_child_inherited_count_once() -> None:
    listeners = found(kernel(port=5000, pid=1), kernel(port=5000, pid=2))
    assert len([each for each in listeners.values() if each.kind is Kind.UNDECLARED]) == 1


def test_unix_sockets_of_workers_lie_in_private_directories_and_others_are_undeclared() -> None:
    listeners = found(kernel(path="/t/sluice-jvm-1-x/bridge"), kernel(path="/t/strange.sock"))
    assert listeners["bridge"].kind is Kind.SOCKET
    assert [each.path for each in listeners.values() if each.kind is Kind.UNDECLARED] == ["/t/strange.sock"]
