"""Kinds of sockets and ways to connect them, in a box with a network of its own."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
import socket
import sys
from ipaddress import ip_address

from sluice.runtime.sandbox.network import HostAddress
from tests.integration.runtime.sandbox.network.conftest import LOOPBACK, Networked, Server, until


async def test_non_blocking_sockets_connect(networked: Networked, server: Server) -> None:
    networked.allow(server)
    code = """
import asyncio, json, sys
async def talk(index):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    writer.write(str(index).encode())
    answer = await reader.read(100)
    writer.close()
    return answer.decode()
async def main():
    print(json.dumps(await asyncio.gather(*(talk(index) for index in range(50)))))
asyncio.run(main())
"""
    assert await networked.run(code, server.port) == [f"> {index}" for index in range(50)]


async def test_many_threads_connect_at_once(networked: Networked, server: Server) -> None:
    networked.allow(server)
    networked.rules.delay_seconds = 0.05
    code = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def talk(index):
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as s:
        s.sendall(str(index).encode())
        return s.recv(100).decode()
with ThreadPoolExecutor(100) as pool:
    print(json.dumps(list(pool.map(talk, range(300)))))
"""
    assert await networked.run(code, server.port) == [f"> {index}" for index in range(300)]


async def test_ipv4_and_ipv6_sockets_connect_as_the_rules_allow(networked: Networked, server: Server) -> None:
    networked.allow(server)
    networked.rules.outside["2001:db8::7", 80] = HostAddress(LOOPBACK, server.port)
    networked.rules.outside["192.0.2.7", 80] = HostAddress(ip_address("::1"), 1)
    code = """
import json, socket, sys
told = []
for host, port in (("::ffff:127.0.0.1", int(sys.argv[1])), ("2001:db8::7", 80)):
    with socket.socket(socket.AF_INET6) as s:
        s.connect((host, port))
        s.sendall(b"six")
        told += [s.recv(100).decode(), s.getpeername()[0]]
with socket.socket() as s:
    told.append(s.connect_ex(("192.0.2.7", 80)))
with socket.create_server(("::1", 0), family=socket.AF_INET6) as own, socket.socket(socket.AF_INET6) as s:
    told.append(s.connect_ex(own.getsockname()))
with socket.create_server(("192.0.2.9", 8080)) as own, socket.socket() as s:
    told.append(s.connect_ex(("127.0.0.1", 8080)))
print(json.dumps(told))
"""
    mapped = "::ffff:127.0.0.1"
    assert await networked.run(code, server.port) == ["> six", mapped, "> six", mapped, 101, 0, 111]


async def test_socket_options_and_flags_are_kept_by_a_connect(networked: Networked, server: Server) -> None:
    networked.allow(server)
    code = """
import fcntl, json, os, socket, struct, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 7, 0))
os.set_inheritable(s.fileno(), True)
before = s.fileno()
s.connect(("127.0.0.1", int(sys.argv[1])))
t = socket.socket()
t.setblocking(False)
t.connect_ex(("127.0.0.1", int(sys.argv[1])))
print(json.dumps([
    s.fileno() == before, s.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
    s.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
    s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF), os.get_inheritable(s.fileno()), os.get_blocking(s.fileno()),
    struct.unpack("=qq", s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))[0],
    os.get_inheritable(t.fileno()), os.get_blocking(t.fileno()),
]))
"""
    assert await networked.run(code, server.port) == [True, 1, 77, 1, 131072, True, True, 7, False, False]


async def test_connect_errors_are_those_of_the_kernel(networked: Networked) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        networked.rules.outside["192.0.2.1", 80] = HostAddress(LOOPBACK, unused.getsockname()[1])
        code = """
import ctypes, json, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
def connect(fd, address, length=16):
    return 0 if libc.connect(fd, address, length) == 0 else ctypes.get_errno()
inet = struct.pack("=H", socket.AF_INET) + struct.pack("!H", 80) + socket.inet_aton("192.0.2.1") + bytes(8)
s = socket.socket()
told = [connect(s.fileno(), inet), connect(s.fileno(), inet), connect(999, inet)]
told += [connect(os.open("/dev/null", os.O_RDONLY), inet), connect(s.fileno(), ctypes.c_void_p(8))]
told += [connect(s.fileno(), inet, 1), connect(s.fileno(), inet, 8), connect(s.fileno(), inet, 4096)]
six = socket.socket(socket.AF_INET6)
told += [connect(six.fileno(), inet)]
own = socket.create_server(("127.0.0.1", 0))
s.connect(own.getsockname())
told += [s.connect_ex(own.getsockname()), s.connect_ex(("192.0.2.1", 80))]
print(json.dumps(told))
"""
        told = await networked.run(code)

    assert told == [111, 111, 9, 88, 14, 22, 22, 22, 97, 106, 106]


async def test_unix_sockets_connect_within_the_box_only(networked: Networked) -> None:
    (networked.boxes.work / "outside").mkdir()
    code = """
import json, os, socket
told = []
def serve(address):
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    return server
for bound, named in (("s1", "s1"), ("s2", os.path.abspath("s2")), ("\\0name", "\\0name"), ("s3", "link")):
    if named == "link":
        os.symlink("s3", "link")
    with serve(bound) as server, socket.socket(socket.AF_UNIX) as s:
        s.connect(named)
        peer, _ = server.accept()
        s.sendall(b"hello")
        told.append(peer.recv(10).decode())
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        told.append(int.from_bytes(credentials[4:8], "little") == os.getuid())
os.symlink("/proc/1/root/etc/passwd", "away")
for wrong in ("nothing", "/etc/passwd", "away", "\\0nobody"):
    with socket.socket(socket.AF_UNIX) as s:
        told.append(s.connect_ex(wrong))
server = serve("full")
server.listen(0)
waiting = []
for _ in range(3):
    s = socket.socket(socket.AF_UNIX)
    s.setblocking(False)
    told.append(s.connect_ex("full"))
    waiting.append(s)
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
    datagrams.bind("datagrams")
    s.connect("datagrams")
    s.send(b"x")
    told.append(datagrams.recv(10).decode())
print(json.dumps(told))
"""
    told = await networked.run(code)

    assert told[:8] == ["hello", True] * 4
    assert told[8:10] == [2, 13]
    assert told[10] in (errno.EACCES, errno.ELOOP), "nothing of another process"
    assert told[11:] == [111, 0, 11, 11, "x"]


async def test_a_unix_socket_without_write_permission_is_not_connected(networked: Networked) -> None:
    code = """
import json, os, socket
server = socket.socket(socket.AF_UNIX)
server.bind("closed")
server.listen()
os.chmod("closed", 0o400)
print(json.dumps(socket.socket(socket.AF_UNIX).connect_ex("closed")))
"""
    assert await networked.run(code) == 13


async def test_a_waiting_connect_returns_when_its_descriptor_is_closed(networked: Networked, server: Server) -> None:
    networked.allow(server)
    networked.rules.delay_seconds = 0.2
    code = """
import json, os, socket, sys, threading, time
s = socket.socket()
fd = s.fileno()
told = []
thread = threading.Thread(target=lambda: told.append(s.connect_ex(("127.0.0.1", int(sys.argv[1])))))
thread.start()
time.sleep(0.05)
os.close(fd)
thread.join()
print(json.dumps(len(told)))
"""
    assert await networked.run(code, server.port) == 1


async def test_a_process_killed_during_a_waiting_connect_leaves_no_connection_open(
    networked: Networked, server: Server
) -> None:
    networked.allow(server)
    networked.rules.delay_seconds = 0.3
    code = "import socket, sys; print('here', flush=True); socket.create_connection(('127.0.0.1', int(sys.argv[1])))"
    child = await networked.start(code, server.port)
    await until(lambda: networked.rules.asked)
    child.signal_group(signal.SIGKILL)
    await child.wait()
    networked.rules.delay_seconds = 0.0
    echo = (
        "import json, socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print(json.dumps(1))"
    )

    assert await networked.run(echo, server.port) == 1
    await until(lambda: server.accepted == server.ended)


async def test_a_signal_does_not_disturb_a_waiting_connect(networked: Networked, server: Server) -> None:
    networked.allow(server)
    networked.rules.delay_seconds = 0.02
    code = """
import json, signal, socket, sys
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
told = []
for _ in range(20):
    with socket.socket() as s:
        told.append(s.connect_ex(("127.0.0.1", int(sys.argv[1]))))
        s.sendall(b"x")
        s.recv(10)
signal.setitimer(signal.ITIMER_REAL, 0)
print(json.dumps(sorted(set(told))))
"""
    assert await networked.run(code, server.port) == [0]


async def test_a_revoked_connection_is_ended_at_once_and_others_stay_open(networked: Networked, server: Server) -> None:
    networked.allow(server)
    networked.allow(server, host="192.0.2.1", port=80)
    code = """
import json, socket, sys, time
kept = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
ended = socket.create_connection(("192.0.2.1", 80))
ended.sendall(b"x" * 1000)
ended.recv(2000)
print("open", flush=True)
began = time.monotonic()
try:
    result = ended.recv(10).decode()
except OSError as error:
    result = error.errno
kept.sendall(b"still")
print(json.dumps([result, kept.recv(100).decode()]), flush=True)
try:
    ended.sendall(b"more")
except OSError as error:
    print("refused", flush=True)
"""
    child = await networked.start(code, server.port)
    await until(lambda: "open" in networked.boxes.output())

    def unwanted(connection: object) -> bool:
        return "192.0.2.1" in str(connection)

    assert await asyncio.to_thread(networked.network.end, unwanted, "revoked") == 1
    assert (await child.wait()).code == 0
    _, told, last = networked.boxes.output().splitlines()
    result, still = json.loads(told)
    assert result in ("", errno.ECONNRESET, errno.EPIPE)
    assert still == "> still"
    assert last == "refused"
    await until(lambda: len(networked.rows.ended) == 2)
    connection, traffic, reason = next(each for each in networked.rows.ended if each[2])
    assert (reason, connection.connect.port) == ("revoked", 80)
    assert (traffic.sent, traffic.received) == (1000, 1002)


async def test_a_revoked_connection_that_a_job_has_hidden_is_recorded_as_lost(
    networked: Networked, server: Server
) -> None:
    networked.allow(server)
    code = """
import socket, sys, time
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
ours, theirs = socket.socketpair()
socket.send_fds(ours, [b"."], [s.fileno()])
s.close()
print("hidden", flush=True)
time.sleep(600)
"""
    child = await networked.start(code, server.port)
    await until(lambda: "hidden" in networked.boxes.output())

    assert await asyncio.to_thread(networked.network.end, lambda _: True, "revoked") == 1
    assert len(networked.rows.lost) == 1
    await child.stop(0)


async def test_a_revoked_connection_of_a_child_process_is_found_and_ended(networked: Networked, server: Server) -> None:
    networked.allow(server)
    code = """
import os, socket, sys, time
if os.fork() == 0:
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    print("open", flush=True)
time.sleep(600)
"""
    child = await networked.start(code, server.port)
    await until(lambda: "open" in networked.boxes.output())

    assert await asyncio.to_thread(networked.network.end, lambda _: True, "revoked") == 1
    assert networked.rows.lost == []
    await child.stop(0)


async def test_localhost_and_the_host_name_resolve_by_the_files_of_the_box(networked: Networked) -> None:
    code = """
import json, socket
told = [socket.gethostbyname("localhost"), socket.gethostbyname(socket.gethostname())]
told.append(open("/etc/resolv.conf").read().split()[1])
print(json.dumps(told))
"""
    assert await networked.run(code) == ["127.0.0.1", "127.0.0.1", "127.0.0.53"]
    assert sys.platform == "linux"
