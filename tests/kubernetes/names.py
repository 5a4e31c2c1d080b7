"""A fake DNS for the pods and Services of a cluster.

Kubelet and containers are real, but there is no CoreDNS. The name of a Service resolves to its pods,
whether it is headless or not: there is no kube-proxy for virtual addresses.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Any

from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.node import ADDRESS, API_ADDRESS, Node

DOMAIN = "cluster.local"
TYPE_A = 1
API = f"kubernetes.default.svc.{DOMAIN}"
Object = dict[str, Any]


def addresses(server: ApiServer, name: str) -> list[str] | None:
    """The addresses that a name of the cluster has now; None if the name does not exist."""
    if name == API:
        return [API_ADDRESS]
    parts = name.removesuffix(f".svc.{DOMAIN}").split(".")
    if len(parts) not in {2, 3} or not name.endswith(f".svc.{DOMAIN}"):
        return None
    service, namespace = parts[-2:]
    status, found = server.call("GET", f"/api/v1/namespaces/{namespace}/services/{service}")
    if status != 200:
        return None
    selector = ",".join(f"{key}={value}" for key, value in found["spec"].get("selector", {}).items())
    _, answer = server.call("GET", f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")
    pods = [each for each in answer["items"] if each["status"].get("podIP")]
    if len(parts) == 3:
        pods = [each for each in pods if each["metadata"]["name"] == parts[0]]
        return [each["status"]["podIP"] for each in pods if each["spec"].get("subdomain") == service] or None
    return [each["status"]["podIP"] for each in pods]


def serve_names(node: Node, stack: contextlib.ExitStack) -> None:
    """Answer DNS queries from a node's pods until the stack unwinds."""

    def make() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind((ADDRESS, 53))
        return made

    stop = threading.Event()
    listener = node.in_network(make)
    listener.settimeout(0.2)
    thread = threading.Thread(target=_answer_all, args=(listener, node.server, stop))
    thread.start()
    stack.callback(listener.close)
    stack.callback(thread.join)
    stack.callback(stop.set)


def _answer_all(listener: socket.socket, server: ApiServer, stop: threading.Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(OSError):
            question, sender = listener.recvfrom(512)
            listener.sendto(_answer(server, question), sender)


def _answer(server: ApiServer, question: bytes) -> bytes:
    labels, at = [], 12
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode())
        at += 1 + length
    (kind,) = struct.unpack_from(">H", question, at + 1)
    found = addresses(server, ".".join(labels).lower())
    records = found if found and kind == TYPE_A else []
    flags = 0x8580 if found is not None else 0x8583
    header = question[:2] + struct.pack(">5H", flags, 1, len(records), 0, 0)
    record = struct.pack(">HHHIH", 0xC00C, TYPE_A, 1, 1, 4)
    return header + question[12 : at + 5] + b"".join(record + socket.inet_aton(each) for each in records)
