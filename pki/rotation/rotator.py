"""Runs the rotation of a home.

The decisions are in ``pki.authorities.rotation_phases``, the steps in ``pki.authorities.rotation_store``. Each verb
first updates everything within reach to the current phase (bundle, ``ca.pem``, ``crl.pem``, identities), then checks
whether anybody lags, and only then moves on. So a refused or killed verb can simply be repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from sluice.core import Clock, Home, StoreError, utc_now
from sluice.pki.authorities import (
    Generations,
    Keep,
    Laggard,
    PeersLag,
    Phase,
    Rotation,
    RotationRefused,
    RotationStore,
    TrustHolder,
    TrustStore,
    Verb,
    check_verb,
    lacking,
    left_out,
    presenting,
    trusting,
    unknown_names,
)
from sluice.pki.config import PkiConfig
from sluice.pki.ledger import ledger_path, ledger_turn
from sluice.pki.pkcs11 import TokenUri
from sluice.pki.revocation import RevocationStore, push_crls
from sluice.pki.rotation.view import holders, remembered
from sluice.pki.trust import Alive, is_running, push_trust
from sluice.pki.x509 import ISSUING, AuthorityKind

Patience = Callable[[Sequence[Laggard]], bool]
"""Called with the processes that are behind; returns True to check again (after waiting), False to give up."""


def no_patience(_: Sequence[Laggard]) -> bool:
    """Refuse at once."""
    return False


class Rotator:
    """The rotation of one home.

    Args:
        home: whose authorities are replaced.
        config: the settings of new authorities.
        renew: renews the identities that are not of the current authority, or half written; returns what it did.
        report: gets a line for each action.
        clock: the present.
        alive: which processes run.
    """

    def __init__(
        self,
        home: Home,
        config: PkiConfig,
        *,
        renew: Callable[[], list[str]] = list,
        report: Callable[[str], None] = lambda _: None,
        clock: Clock = utc_now,
        alive: Alive = is_running,
    ) -> None:
        self._home = home
        self._config = config
        self._renew = renew
        self._report = report
        self._clock = clock
        self._alive = alive
        self._store = RotationStore(home.pki)
        self._revocations = RevocationStore(home.pki, config, clock=clock)

    def state(self) -> tuple[Rotation | None, Phase]:
        """The running rotation, and its phase."""
        return self._store.read()

    def holders(self) -> tuple[TrustHolder, ...]:
        """The holders, with the authorities that they trust and present."""
        return holders(self._home, self._clock(), alive=self._alive, revoked=self._revoked())

    def waiting_for(self) -> tuple[Laggard, ...]:
        """The holders that block the next step (``activate``, ``finish``, or the end of one)."""
        rotation, phase = self._store.read()
        if rotation is None:
            return ()
        match phase:
            case Phase.PREPARED:
                return lacking(self.holders(), _sides(rotation), Keep.NEW)
            case Phase.ACTIVE:
                return self._presenting(rotation, Keep.OLD)
            case Phase.FINISHING:
                return trusting(self.holders(), _sides(rotation), Keep.OLD)
            case _:
                return trusting(self.holders(), _sides(rotation), Keep.NEW)

    def prepare(
        self,
        subject: AuthorityKind,
        *,
        root_passphrase: bytes | None = None,
        patience: Patience = no_patience,
        places: Mapping[AuthorityKind, TokenUri] | None = None,
    ) -> None:
        """A -> A+B: make B and have it trusted everywhere. With ``patience``: until every process does.

        ``places`` are tokens in which to create keys, instead of where their predecessors are.

        Raises:
            RotationRefused: a rotation is running already, and complete in its phase.
            PeersLag: ``patience`` ended before everybody had followed; B stays.
        """
        rotation, phase = self._store.read()
        check_verb(Verb.PREPARE, subject, rotation, phase)
        if rotation is None:
            rotation = self._store.begin(
                subject, self._config, self._clock(), root_passphrase=root_passphrase, places=places
            )
            self._report(f"made {_names(rotation)}")
        elif not lacking(self.holders(), _sides(rotation), Keep.NEW):
            raise RotationRefused(f"the new {subject} authority is trusted everywhere already", "next is `activate`")
        self._settle()
        if patience is not no_patience:
            self._await(
                "it is prepared, but not followed everywhere",
                lambda: lacking(self.holders(), _sides(rotation), Keep.NEW),
                (),
                patience,
            )

    def activate(
        self, subject: AuthorityKind, *, without: Collection[str] = (), patience: Patience = no_patience
    ) -> None:
        """A+B -> B+A: let B sign, and renew what is within reach.

        Args:
            subject: what is being replaced.
            without: abandoned identities.
            patience: for holders that do not trust B yet.

        Raises:
            PeersLag: somebody does not trust B; nothing was changed.
            LedgerError: an authority is stopped while it issues; nothing was changed.
        """
        rotation = self._started(Verb.ACTIVATE, subject)
        self._check_names(rotation, Keep.OLD, without)
        if elsewhere := self._elsewhere(rotation, Keep.OLD, self.holders()):
            self._report(
                f"elsewhere, so that what it trusts is not known here: {elsewhere[0].identity}"
                f"{f' and {len(elsewhere) - 1} more' if len(elsewhere) > 1 else ''}; bring the new bundle there first"
            )
        self._await(
            "it cannot be activated", lambda: lacking(self.holders(), _sides(rotation), Keep.NEW), without, patience
        )
        with self._nobody_signs():
            self._store.switch(Keep.NEW, self._clock())
        self._report(f"the new {subject} authority signs")
        self._settle()
        self._renew_all()

    def finish(
        self,
        subject: AuthorityKind,
        *,
        without: Collection[str] = (),
        patience: Patience = no_patience,
        last_patience: Patience = no_patience,
        retire: bool = False,
    ) -> list[Path]:
        """B+A -> B: withdraw the trust in A, and destroy its key when nobody trusts it any more.

        Args:
            subject: what is being replaced.
            without: abandoned identities.
            patience: for holders of a certificate of A.
            last_patience: for holders that still trust A after it was withdrawn.
            retire: keep A's key; returns where it is then.

        Raises:
            PeersLag: somebody has a certificate of A, or (then A's key is still there) trusts A.
        """
        rotation = self._started(Verb.FINISH, subject)
        return self._end(rotation, Keep.NEW, without, patience, last_patience, retire=retire)

    def abort(
        self,
        subject: AuthorityKind,
        *,
        without: Collection[str] = (),
        patience: Patience = no_patience,
        last_patience: Patience = no_patience,
        retire: bool = False,
    ) -> list[Path]:
        """Back to A: A signs again, and when nobody has a certificate of B any more, the trust in B is withdrawn.

        :meth:`finish` with A and B swapped. When it is refused, A signs and B is trusted beside it: repeat it.
        """
        rotation = self._started(Verb.ABORT, subject)
        if rotation.keep is None:
            self._check_names(rotation, Keep.NEW, without)
            self._await(
                "it cannot be aborted", lambda: lacking(self.holders(), _sides(rotation), Keep.OLD), without, patience
            )
            with self._nobody_signs():
                rotation = self._store.switch(Keep.OLD, self._clock())
            self._report(f"the old {subject} authority signs")
        return self._end(rotation, Keep.OLD, without, patience, last_patience, retire=retire)

    def _end(
        self,
        rotation: Rotation,
        keep: Keep,
        without: Collection[str],
        patience: Patience,
        last_patience: Patience,
        *,
        retire: bool,
    ) -> list[Path]:
        gone = Keep.OLD if keep is Keep.NEW else Keep.NEW
        self._check_names(rotation, gone, without)
        if rotation.keep is None:

            def late() -> tuple[Laggard, ...]:
                self._renew_all()
                return self._presenting(rotation, gone)

            self._await("it cannot be ended", late, without, patience)
            with self._nobody_signs():
                self._store.end(keep)
            self._report(f"only the {keep} {rotation.subject} authority is trusted from now on")
            self._settle()
        self._await(
            "the trust is withdrawn, but the key is kept",
            lambda: trusting(self.holders(), _sides(rotation), gone),
            without,
            last_patience,
        )
        with self._nobody_signs():
            kept = self._store.close(retire=retire)
        self._report(f"the rotation of the {rotation.subject} authority has ended")
        return kept

    def _nobody_signs(self) -> contextlib.AbstractContextManager[None]:
        """Ensure that no authority is about to sign: one that was stopped midway could continue with the old key."""
        return ledger_turn(ledger_path(self._home.pki))

    def _started(self, verb: Verb, subject: AuthorityKind) -> Rotation:
        rotation, phase = self._store.read()
        check_verb(verb, subject, rotation, phase)
        if rotation is None:  # check_verb has refused it
            raise RotationRefused("no rotation is under way")
        self._settle()
        self._renew_all()
        return rotation

    def _presenting(self, rotation: Rotation, unwanted: Keep) -> tuple[Laggard, ...]:
        seen = self.holders()
        elsewhere = self._elsewhere(rotation, unwanted, seen)
        return presenting((*seen, *elsewhere), _sides(rotation), unwanted)

    def _elsewhere(self, rotation: Rotation, unwanted: Keep, seen: tuple[TrustHolder, ...]) -> tuple[TrustHolder, ...]:
        return remembered(self._home, rotation, unwanted, seen, self._clock(), self._revoked())

    def _revoked(self) -> frozenset[int]:
        """Serial numbers of revoked certificates."""
        here = [kind for kind in ISSUING if self._store.authorities.exists(kind)]
        return frozenset(entry.number for kind in here for entry in self._revocations.revocations(kind))

    def _await(
        self, what: str, judge: Callable[[], tuple[Laggard, ...]], without: Collection[str], patience: Patience
    ) -> None:
        while late := left_out(judge(), without):
            if not patience(late):
                raise PeersLag(
                    f"{what}: {len(late)} {'lags' if len(late) == 1 else 'lag'}, such as {late[0]}",
                    "wait with --wait SECONDS; leave out what is gone for good with --force IDENTITY",
                    late,
                )
            self._settle()

    def _check_names(self, rotation: Rotation, unwanted: Keep, names: Collection[str]) -> None:
        if not names:
            return
        seen = self.holders()
        elsewhere = self._elsewhere(rotation, unwanted, seen)
        if unknown := unknown_names((*seen, *elsewhere), names):
            raise RotationRefused(
                f"there is no identity called {unknown[0][:200]!r}", "see `sluice pki rotate --status`"
            )

    def _settle(self) -> None:
        """Update everything within reach to the current phase: trust anchors first, then their CRLs."""
        TrustStore(self._home.pki).publish()
        _, failed = push_trust(self._home)
        for kind in ISSUING:
            try:
                self._revocations.refresh(kind)
            except StoreError as error:
                failed.append(str(error))
        _, unwritten = push_crls(self._home, self._revocations.lists(), self._clock())
        for line in (*failed, *unwritten):
            self._report(line)

    def _renew_all(self) -> None:
        for line in self._renew():
            self._report(line)


def _sides(rotation: Rotation) -> tuple[Generations, ...]:
    return tuple(both for kind, both in rotation.generations.items() if kind in ISSUING)


def _names(rotation: Rotation) -> str:
    kinds = " and ".join(rotation.generations)
    return f"a new {kinds} authority" if len(rotation.generations) == 1 else f"new {kinds} authorities"
