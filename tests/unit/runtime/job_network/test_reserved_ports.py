"""Ports that are kept for a process of a job."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from sluice.runtime.job_network import PortsNotReserved, ReservedPorts

HERE = ipaddress.ip_address("127.0.0.1")


def test_a_job_gets_a_fresh_socket_each_time_it_listens() -> None:
    ports = ReservedPorts("127.0.0.1", ("rpc", "blocks"))
    try:
        assert len({ports.by_name["rpc"], ports.by_name["blocks"]}) == 2
        for address in (HERE, ipaddress.ip_address("::ffff:127.0.0.1"), ipaddress.ip_address("::")):
            listener = ports.listener(address, ports.by_name["rpc"])
            assert listener is not None
            with listener:
                listener.listen()
                with socket.create_connection(("127.0.0.1", ports.by_name["rpc"]), timeout=5):
                    listener.accept()[0].close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", ports.by_name["rpc"]), timeout=5)
    finally:
        ports.close()


def test_nobody_else_gets_a_reserved_port() -> None:
    ports = ReservedPorts("127.0.0.1", ("rpc",))
    try:
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", ports.by_name["rpc"]))
    finally:
        ports.close()


def test_no_listener_is_given_out_for_other_ports_and_addresses() -> None:
    ports = ReservedPorts("127.0.0.1", ("rpc",))
    try:
        assert ports.listener(HERE, ports.by_name["rpc"] ^ 1) is None
        assert ports.listener(ipaddress.ip_address("192.0.2.1"), ports.by_name["rpc"]) is None
    finally:
        ports.close()
    assert ports.listener(HERE, ports.by_name["rpc"]) is None


def test_a_host_of_another_machine_is_refused() -> None:
    with pytest.raises(PortsNotReserved, match=r"no port of 192\.0\.2\.1"):
        ReservedPorts("192.0.2.1", ("rpc",))
