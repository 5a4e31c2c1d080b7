"""Parsing the kernel's socket tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.audit import proc_net
from sluice.audit.containers import Container, decode_inspected
from sluice.audit.errors import AuditError
from sluice.audit.proc_net import Entry, parse_inet, parse_unix

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
UNIX_HEADER = "Num       RefCount Protocol Flags    Type St Inode Path\n"


def line(local: str, state: str = "0A", inode: int = 7) -> str:
    """A line of an IPv4 or IPv6 socket table."""
    remote = "0" * len(local.partition(":")[0]) + ":0000"
    return f"   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000  1000        0 {inode} 1 0 100 0\n"


@pytest.mark.parametrize(
    ("local", "host", "port"),
    [
        ("0100007F:1F90", "127.0.0.1", 8080),
        ("00000000:0016", "0.0.0.0", 22),  # noqa: S104  an address in a table
        ("0200A8C0:FFFF", "192.168.0.2", 65535),
        ("00000000000000000000000000000000:0050", "::", 80),
        ("00000000000000000000000001000000:0050", "::1", 80),
        ("0000000000000000FFFF00000100007F:0050", "127.0.0.1", 80),
        ("B80D0120000000000000000001000000:0050", "2001:db8::1", 80),
    ],
)
def test_addresses_are_decoded_from_words_in_host_byte_order(local: str, host: str, port: int) -> None:
    assert list(parse_inet(HEADER + line(local), udp=False)) == [Entry(7, host, port)]


def test_only_listening_sockets_are_returned() -> None:
    table = HEADER + line("0100007F:0001", "01") + line("0100007F:0002", "0A", 8) + line("0100007F:0003", "06")
    assert [entry.port for entry in parse_inet(table, udp=False)] == [2]
    assert [entry.port for entry in parse_inet(HEADER + line("0100007F:0004", "07"), udp=True)] == [4]
    assert list(parse_inet(HEADER + line("0100007F:0005", "01"), udp=True)) == []
    assert list(parse_inet(HEADER + "\n cut off\n", udp=False)) == []


def test_only_listening_unix_sockets_with_a_name_are_returned() -> None:
    table = (
        UNIX_HEADER
        + "0000: 00000002 00000000 00010000 0001 01 11 /run/with space.sock\n"
        + "0000: 00000002 00000000 00010000 0001 01 12 @abstract\n"
        + "0000: 00000003 00000000 00000000 0001 03 13 /run/connected.sock\n"
        + "0000: 00000003 00000000 00010000 0001 01 14\n"
    )
    assert list(parse_unix(table)) == [Entry(11, path="/run/with space.sock"), Entry(12, path="@abstract")]


def test_a_socket_that_is_closed_while_its_owner_is_looked_for_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be one that nobody has declared, because its owner has ended."""
    tables = tmp_path / "42" / "net"
    tables.mkdir(parents=True)
    (tmp_path / "42" / "ns").mkdir()
    (tmp_path / "42" / "ns" / "net").touch()
    (tables / "unix").write_text(UNIX_HEADER)
    (tables / "tcp").write_text(HEADER + line("0100007F:0001", inode=7) + line("0100007F:0002", inode=8))

    def owners(_proc: Path, _namespace: int) -> dict[int, int]:
        (tables / "tcp").write_text(HEADER + line("0100007F:0002", inode=8) + line("0100007F:0003", inode=9))
        return {}

    monkeypatch.setattr(proc_net, "_owners", owners)
    assert [each.port for each in proc_net.namespace_sockets(42, tmp_path)] == [2]


def inspected(name: str, service: str, pid: int = 42, *environment: str, network: str = "blue_cluster") -> object:
    """What ``docker inspect`` says about a container."""
    labels = {"com.docker.compose.service": service, "com.docker.compose.project": "blue"}
    return {
        "Name": f"/{name}",
        "State": {"Pid": pid, "Status": "running"},
        "Config": {"Labels": labels, "Env": ["PATH=/bin", *environment]},
        "HostConfig": {"NetworkMode": network},
    }


def test_a_containers_service_and_home_are_read_from_docker_inspect() -> None:
    output = [inspected("blue_ca_1", "ca"), inspected("blue_jm_1", "jobmanager", 43, "SLUICE_HOME=/srv")]
    found = decode_inspected(json.dumps(output).encode())
    assert found == (Container("ca", "blue", 42), Container("jobmanager", "blue", 43, home="/srv"))
    assert str(found[1].files.root) == "/proc/43/root/srv"


def test_replicas_of_a_service_are_named_by_their_containers_and_stopped_ones_ignored() -> None:
    output = [inspected("blue_tm_2", "tm", 3), inspected("blue_tm_1", "tm", 2), inspected("gone", "ca", 0)]
    assert [each.service for each in decode_inspected(json.dumps(output).encode())] == ["blue_tm_1", "blue_tm_2"]


def test_a_container_on_the_host_network_is_marked() -> None:
    (found,) = decode_inspected(json.dumps([inspected("c", "c", network="host")]).encode())
    assert found.on_host_network


@pytest.mark.parametrize("output", [b"", b"{}", b'[{"Name": 1}]', b'[{"State": {"Pid": -1}}]'])
def test_malformed_output_of_docker_inspect_is_an_error(output: bytes) -> None:
    with pytest.raises(AuditError, match="docker inspect"):
        decode_inspected(output)
