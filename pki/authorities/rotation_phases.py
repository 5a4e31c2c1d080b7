"""The phases in which authority B replaces authority A: A, A+B, B+A, B. No I/O.

In each phase the first one signs and all are trusted, so that processes that are one phase apart still trust each
other. A verb moves on only when nobody is behind the phase it leaves:

    prepare    A -> A+B    B is trusted beside A
    activate   A+B -> B+A  refused while anybody does not trust B
    finish     B+A -> B    refused while anybody has a certificate of A
    abort      back to A   refused while anybody has a certificate of B

A rotation of the root replaces all three authorities: the trust anchors are the intermediates, so that both sides go
through the phases together.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from sluice.core import PkiError
from sluice.pki.x509 import AuthorityKind


class RotationRefused(PkiError):
    """A verb that does not fit the phase, or that somebody is not ready for."""


class PeersLag(RotationRefused):
    """Somebody is not ready for the next phase; ``laggards`` says who, and why."""

    def __init__(self, what: str, remedy: str, laggards: tuple[Laggard, ...]) -> None:
        super().__init__(what, remedy)
        self.laggards = laggards


class Verb(enum.StrEnum):
    """The commands of a rotation."""

    PREPARE = "prepare"
    ACTIVATE = "activate"
    FINISH = "finish"
    ABORT = "abort"


class Phase(enum.StrEnum):
    """The phases of a rotation, named after the trusted authorities; the first one signs."""

    STEADY = "A"
    PREPARED = "A+B"
    ACTIVE = "B+A"
    FINISHING = "B"
    ABORTING = "A again"


class Keep(enum.StrEnum):
    """Which generation remains at the end."""

    OLD = "old"
    NEW = "new"


class Generations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key identifiers of A (``old``) and B (``new``)."""

    old: str
    new: str

    def of(self, keep: Keep) -> str:
        """The key identifier of one generation."""
        return self.new if keep is Keep.NEW else self.old


class Rotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A running rotation, as stored.

    ``generations`` has the authorities that are replaced: one, or with the root all three. Since ``activating_at`` B
    may have signed, since ``activated_at`` A has not; at ``reverted_at`` A took over again. ``keep`` is the only
    generation that is trusted from now on.
    """

    subject: AuthorityKind
    generations: dict[AuthorityKind, Generations]
    started_at: dt.datetime
    activating_at: dt.datetime | None = None
    activated_at: dt.datetime | None = None
    reverted_at: dt.datetime | None = None
    keep: Keep | None = None


def phase_of(rotation: Rotation | None, signing: Mapping[AuthorityKind, str]) -> Phase:
    """The phase, from the stored rotation and the identifier of the key that signs for each authority."""
    if rotation is None:
        return Phase.STEADY
    if rotation.keep is not None:
        return Phase.FINISHING if rotation.keep is Keep.NEW else Phase.ABORTING
    if all(signing[kind] == generations.new for kind, generations in rotation.generations.items()):
        return Phase.ACTIVE
    return Phase.PREPARED  # also after a crash during activation, which must be repeated


_MEANT_FOR = {
    Verb.PREPARE: {Phase.STEADY, Phase.PREPARED},
    Verb.ACTIVATE: {Phase.PREPARED, Phase.ACTIVE},
    Verb.FINISH: {Phase.ACTIVE, Phase.FINISHING},
    Verb.ABORT: {Phase.PREPARED, Phase.ACTIVE, Phase.ABORTING},
}
"""Each verb may be repeated in the phase that it leads to, to complete it after a crash."""
_NEXT = {
    Phase.STEADY: "begin with `sluice pki rotate prepare`",
    Phase.PREPARED: "next is `activate`, or `abort`",
    Phase.ACTIVE: "next is `finish`, or `abort`",
    Phase.FINISHING: "repeat `finish` until it is done",
    Phase.ABORTING: "repeat `abort` until it is done",
}


def check_verb(verb: Verb, subject: AuthorityKind, rotation: Rotation | None, phase: Phase) -> None:
    """Refuse a verb that does not fit the phase; :class:`RotationRefused`."""
    if rotation is not None and rotation.subject is not subject:
        raise RotationRefused(
            f"the {rotation.subject} authority is being replaced (phase {phase}): one at a time",
            f"end that first: {_NEXT[phase]}",
        )
    if phase not in _MEANT_FOR[verb]:
        state = "is not being replaced" if rotation is None else f"is in phase {phase}"
        raise RotationRefused(f"the {subject} authority {state}, so there is nothing to {verb}", _NEXT[phase])


class Source(enum.StrEnum):
    """The source of knowledge about what a holder trusts and presents."""

    PROCESS = "process"
    FOLLOWER = "follower"
    FILES = "files"
    LEDGER = "ledger"


@dataclass(frozen=True, slots=True)
class TrustHolder:
    """A holder of a certificate: a running process (by its report), an identity directory, or a ledger entry.

    A process reports here, or to the online authority from another machine (a follower): then ``place`` is that
    machine's address. ``issuer`` and ``anchors`` are key identifiers. ``usable`` tells whether the leaf is valid now.
    ``problem`` says why nothing is known of it: then it counts as behind in every check.
    """

    source: Source
    identity: str
    place: str
    program: str = ""
    pid: int | None = None
    issuer: str = ""
    anchors: tuple[str, ...] = ()
    crls: tuple[tuple[str, int], ...] = ()
    usable: bool = True
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Laggard:
    """A holder that blocks a rotation, and why."""

    holder: TrustHolder
    why: str

    def __str__(self) -> str:
        who = self.holder.identity or self.holder.place
        where = f" ({self.holder.program} {self.holder.pid})" if self.holder.pid is not None else ""
        if self.holder.source is Source.FOLLOWER and who != self.holder.place:
            where += f" at {self.holder.place}"
        return f"{who}{where}: {self.why}"


def lacking(holders: Iterable[TrustHolder], sides: Collection[Generations], wanted: Keep) -> tuple[Laggard, ...]:
    """The holders that do not trust the generation ``wanted`` of their side."""
    return _judged(holders, sides, lambda holder, side: _lacks(holder, side.of(wanted)))


def presenting(holders: Iterable[TrustHolder], sides: Collection[Generations], unwanted: Keep) -> tuple[Laggard, ...]:
    """The holders of a valid leaf of the generation ``unwanted``."""
    return _judged(holders, sides, lambda holder, side: _presents(holder, side.of(unwanted)))


def trusting(holders: Iterable[TrustHolder], sides: Collection[Generations], unwanted: Keep) -> tuple[Laggard, ...]:
    """The holders that still trust the generation ``unwanted``."""
    return _judged(holders, sides, lambda holder, side: _trusts(holder, side.of(unwanted)))


def _lacks(holder: TrustHolder, wanted: str) -> str:
    if holder.source is Source.LEDGER or wanted in holder.anchors:
        return ""
    return "it does not trust the new authority yet"


def _presents(holder: TrustHolder, unwanted: str) -> str:
    if not holder.usable or holder.issuer != unwanted:
        return ""
    if holder.source in {Source.PROCESS, Source.FOLLOWER}:
        return "it still presents a certificate of the authority to be removed"
    return "its certificate is of the authority to be removed, and still valid"


def _trusts(holder: TrustHolder, unwanted: str) -> str:
    return "it still trusts the authority to be removed" if unwanted in holder.anchors else ""


def _judged(holders: Iterable[TrustHolder], sides: Collection[Generations], why: _Judge) -> tuple[Laggard, ...]:
    found: list[Laggard] = []
    for holder in holders:
        if holder.problem:
            found.append(Laggard(holder, holder.problem))
            continue
        mine = [side for side in sides if {side.old, side.new} & {holder.issuer, *holder.anchors}]
        found += [Laggard(holder, reason) for side in mine if (reason := why(holder, side))]
    return tuple(found)


class _Judge(Protocol):
    def __call__(self, holder: TrustHolder, side: Generations, /) -> str: ...


def left_out(laggards: Sequence[Laggard], names: Collection[str]) -> tuple[Laggard, ...]:
    """The holders without the abandoned identities ``names``."""
    return tuple(each for each in laggards if each.holder.identity not in names)


def unknown_names(holders: Iterable[TrustHolder], names: Collection[str]) -> tuple[str, ...]:
    """The names that no holder has: most likely mistyped."""
    known = {holder.identity for holder in holders}
    return tuple(name for name in names if name not in known)
