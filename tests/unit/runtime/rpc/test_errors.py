"""How errors travel over RPC."""

from __future__ import annotations

import pytest

from sluice.core.errors import CertificateRejected, SluiceError
from sluice.runtime.rpc import (
    FencingTokenMismatch,
    PeerUnreachable,
    RemoteFailure,
    RpcTimeout,
    remotable,
)
from sluice.runtime.rpc.errors import (
    MAX_MESSAGE_CHARS,
    MAX_TRACEBACK_CHARS,
    ErrorText,
    describe,
    rebuild,
)


@remotable
class WithOwnConstructor(SluiceError):
    def __init__(self, slot: int) -> None:
        super().__init__(f"slot {slot} is gone", "ask again")
        self.slot = slot


class NotRemotable(SluiceError):
    pass


def raised(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught


@pytest.mark.parametrize(
    "error",
    [WithOwnConstructor(3), FencingTokenMismatch("stale", "look again"), CertificateRejected("weak key")],
)
def test_a_remotable_error_arrives_as_its_class(error: SluiceError) -> None:
    arrived = rebuild(describe(raised(error)))
    assert type(arrived) is type(error)
    assert (arrived.what, arrived.remedy, str(arrived)) == (error.what, error.remedy, str(error))
    assert "in raised" in arrived.remote_traceback  # type: ignore[attr-defined]  # set on whatever arrives
    assert "remote traceback" in arrived.__notes__[0]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NotRemotable("inside"), "NotRemotable: inside"),
        (ValueError("7"), "ValueError: 7"),
        (AssertionError(), "AssertionError"),
        (RpcTimeout("of a call it made itself"), "RpcTimeout: of a call it made itself"),
        (PeerUnreachable("a third party"), "PeerUnreachable: a third party"),
    ],
)
def test_other_errors_arrive_as_remote_failure_with_their_type_name(error: Exception, text: str) -> None:
    arrived = rebuild(describe(raised(error)))
    assert type(arrived) is RemoteFailure
    assert arrived.what == text


def test_an_rpc_error_that_is_passed_on_arrives_as_remote_failure() -> None:
    first = rebuild(describe(raised(FencingTokenMismatch("stale"))))
    second = rebuild(describe(raised(first)))
    assert type(second) is RemoteFailure
    assert second.what.startswith("FencingTokenMismatch: stale")


def test_a_domain_error_that_is_passed_on_keeps_its_class() -> None:
    first = rebuild(describe(raised(WithOwnConstructor(1))))
    assert type(rebuild(describe(raised(first)))) is WithOwnConstructor


def test_an_error_of_an_unknown_class_arrives_as_remote_failure_with_its_name() -> None:
    arrived = rebuild(ErrorText("other.module.DiskFull", "no room", "buy a disk", ""))
    assert type(arrived) is RemoteFailure
    assert str(arrived) == "DiskFull: no room (buy a disk)"


@pytest.mark.parametrize("name", ["os.system", "builtins.SystemExit", "sluice.core.errors.SluiceError", ""])
def test_only_registered_classes_are_ever_rebuilt(name: str) -> None:
    assert type(rebuild(ErrorText(name, "x", "", ""))) is RemoteFailure


def test_error_texts_are_bounded_and_a_traceback_keeps_its_end() -> None:
    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        raise NotRemotable("x" * 100_000)

    with pytest.raises(NotRemotable) as caught:
        deep(200)
    text = describe(caught.value)
    assert len(text.what) <= MAX_MESSAGE_CHARS + 1
    assert len(text.remote_traceback) <= MAX_TRACEBACK_CHARS + 4
    assert text.remote_traceback.endswith("xxx\n")
