"""Using up what jobs share in the cluster: slots, and the connections that its listeners accept."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import threading

from ..attempt import Group, Place, Tried, attempt, planted, reached, refused, untried
from ..reading import error_of
from ..world import Target, World

SHARING = Group(
    "SHR",
    severity="medium",
    cwe=(770, 400),
    expected="what others hold stays theirs, and listeners answer others all the same",
    remedy="set limits.max_slots_per_user, and see that the cluster's ports are reached only from its own machines",
)
EXECUTORS_WANTED = 64
"""More than the cluster should have free, but few enough for TaskManagers on demand."""
SLOT_SECONDS = 20.0
"""How long the cluster has to give slots."""
IDLE_CONNECTIONS = 400
ANSWER_SECONDS = 10.0
_LISTENERS = ("rpc", "edge", "ca", "blob")

_granted: list[int] = []
"""How many executors the job had after it had asked for more; asked once."""


@attempt("SHR-01", "take slots that another job holds", SHARING, places=(Place.DRIVER_JVM,), seconds=60, forked=False,
         last=True)  # fmt: skip
def _slots_of_others(world: World) -> Tried:
    if not world.victim:
        return untried("there is no other job")
    return planted(f"asked for {EXECUTORS_WANTED} executors", f"the job has {_executors(world)} now")


@attempt("SHR-02", "take more slots than a user may have", SHARING, places=(Place.DRIVER_JVM,), seconds=60,
         forked=False, last=True)  # fmt: skip
def _slots_without_a_bound(world: World) -> Tried:
    bound = world.bounds.get("max_slots_per_user", 0)
    if not bound:
        return untried("limits.max_slots_per_user is not known, or not set: free slots go to whoever asks first")
    count = _executors(world)
    done = f"asked for {EXECUTORS_WANTED} executors"
    return (reached if count > bound else refused)(done, f"the job has {count}, and its user may have {bound}")


def _executors(world: World) -> int:
    """The number of executors after the job has asked for far too many."""
    if not _granted:
        context = world.spark.sparkContext._jsc.sc()  # noqa: SLF001  the way to the JVM
        context.requestExecutors(EXECUTORS_WANTED)
        threading.Event().wait(SLOT_SECONDS)
        _granted.append(context.getExecutorIds().size())
    return _granted[0]


@attempt("SHR-03", "keep others from the cluster's listeners by idle connections", SHARING, seconds=90)
def _idle_connections(world: World) -> Tried:
    targets = [each for word in _LISTENERS for each in world.of("port") if each.name.startswith(word)]
    targets = list({each.name: each for each in targets}.values())[: len(_LISTENERS)]
    if not targets:
        return untried("no listener is known from outside")
    seen = []
    for target in targets:
        try:
            _handshake(target)
        except OSError as error:
            seen.append(f"{target}: {error_of(error)} at once")
            continue
        held = _held(target)
        try:
            _handshake(target)
        except OSError as error:
            return reached(f"held {len(held)} connections to {target}, and made another", error_of(error))
        finally:
            for each in held:
                each.close()
        seen.append(f"{target}: answered beside {len(held)}")
    return refused(f"held up to {IDLE_CONNECTIONS} connections that say nothing, and made another", "; ".join(seen))


def _held(target: Target) -> list[socket.socket]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held: list[socket.socket] = []
    with contextlib.suppress(OSError):  # the limit of descriptors: count what was opened
        while len(held) < IDLE_CONNECTIONS:
            held.append(socket.create_connection(target.address, ANSWER_SECONDS))
    return held


def _handshake(target: Target) -> None:
    """A handshake without a certificate: a TLS alert is an answer too; OSError when there is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(target.address, ANSWER_SECONDS) as raw:
        try:
            with context.wrap_socket(raw):
                return
        except ssl.SSLEOFError:
            raise
        except ssl.SSLError:
            return
