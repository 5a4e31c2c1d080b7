"""A rotation on disk: ``<pki>/rotation/{state.json,authorities/<kind>/{cert.pem,key.pem}}``.

``<pki>/authorities`` has the authorities that sign; the other generation of the replaced ones is in
``rotation/authorities``. One rename creates the directory ``rotation`` with the new authorities in it, and one removes
it. In between, the generations swap places in one step each (``exchange``), so that their places show the progress. So
after a crash the same verb can be repeated.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from sluice.core import (
    StoreError,
    exchange,
    locked,
    make_private_directory,
    read_bounded,
    remove_leftovers,
    staged_name,
    sync_directory,
    write_secret,
)
from sluice.pki.authorities.rotation_phases import Generations, Keep, Phase, Rotation, RotationRefused, phase_of
from sluice.pki.authorities.signing import create_intermediate, create_root
from sluice.pki.authorities.store import KEY_FILE, AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.pkcs11 import TOKEN_KEYS, TokenKeys, TokenUri
from sluice.pki.x509 import DAMAGED_JSON, ISSUING, AuthorityKind, key_id

STATE_FILE = "state.json"
RETIRED = "retired"
"""Where retired authorities are kept whose keys were not destroyed."""
MAX_STATE_BYTES = 64 << 10


def rotation_directory(pki: Path) -> Path:
    """The directory of the running rotation; missing when there is none."""
    return pki / "rotation"


def read_rotation(pki: Path) -> Rotation | None:
    """The running rotation below ``pki``; :class:`StoreError` when its state is damaged."""
    path = rotation_directory(pki) / STATE_FILE
    if not rotation_directory(pki).exists():
        return None
    try:
        return msgspec.json.decode(read_bounded(path, MAX_STATE_BYTES), type=Rotation)
    except DAMAGED_JSON as error:
        raise StoreError(f"{path} is damaged: {error}", "restore it from a copy") from error
    except StoreError:
        if not rotation_directory(pki).exists():
            return None  # it ended meanwhile
        raise


class RotationStore:
    """The rotation below one ``pki`` directory. Each method is one step, under the authorities' lock."""

    def __init__(self, pki: Path, tokens: TokenKeys = TOKEN_KEYS) -> None:
        self._pki = pki
        self._tokens = tokens
        self._directory = rotation_directory(pki)
        self.authorities = AuthorityStore(pki, tokens)
        self.others = AuthorityStore(self._directory, tokens)
        """The generation that does not sign, of each authority that is replaced."""

    def read(self) -> tuple[Rotation | None, Phase]:
        """The running rotation, and its phase."""
        rotation = read_rotation(self._pki)
        kinds = () if rotation is None else rotation.generations
        return rotation, phase_of(rotation, {kind: self._signing(kind) for kind in kinds})

    def begin(
        self,
        subject: AuthorityKind,
        config: PkiConfig,
        now: dt.datetime,
        *,
        root_passphrase: bytes | None = None,
        places: Mapping[AuthorityKind, TokenUri] | None = None,
    ) -> Rotation:
        """Create the new authorities; from then on both generations are trusted.

        Args:
            subject: what to replace; the root together with what it has signed.
            config: the settings of the new authorities.
            now: from when on they are valid.
            root_passphrase: opens the root's key, or encrypts that of a new root.
            places: tokens in which to create keys. Otherwise a key is created where its predecessor is: in the same
                token, or in a file.

        Raises:
            RotationRefused: a rotation is running, or the new root would be less protected than the old.
            StoreError: the root's key is needed and not here.
        """
        kinds = tuple(AuthorityKind) if subject is AuthorityKind.ROOT else (subject,)
        with self._locked():
            if self._directory.exists():
                raise RotationRefused("a rotation is under way", "see `sluice pki rotate --status`")
            for kind in kinds:
                self.authorities.check(kind, config)
            if subject is AuthorityKind.ROOT and root_passphrase is None and self.authorities.is_encrypted(subject):
                raise RotationRefused(
                    "the root's key has a passphrase, and the new one would have none",
                    "give one with --root-passphrase-file",
                )
            if foreign := set(places or ()) - set(kinds):
                raise RotationRefused(f"a key for the {min(foreign)} authority, which is not replaced", "leave it out")
            chosen = self._same_tokens(kinds) | dict(places or {})
            if root_passphrase is not None and AuthorityKind.ROOT in chosen:
                raise RotationRefused("a key in a token has no passphrase", "leave out --root-passphrase-file")
            staging = self._pki / staged_name(self._directory.name)
            try:
                with contextlib.ExitStack() as making:
                    rotation = self._fill(staging, subject, kinds, config, now, root_passphrase, chosen, making)
                    staging.rename(self._directory)
            except OSError as error:
                raise StoreError(f"cannot write {self._directory}: {error.strerror or error}") from error
            finally:
                shutil.rmtree(staging, ignore_errors=True)
            sync_directory(self._pki)
        return rotation

    def switch(self, to: Keep, now: dt.datetime) -> Rotation:
        """Let the generation ``to`` sign from now on; repeat it to complete an interrupted switch."""
        with self._locked():
            rotation = self._under_way()
            if rotation.keep is not None:
                raise RotationRefused("the rotation is about to end", "see `sluice pki rotate --status`")
            behind = [kind for kind, both in rotation.generations.items() if self._signing(kind) != both.of(to)]
            for kind in behind:
                if kind in ISSUING:
                    self.others.load(kind)  # one that could not sign must not take over
            # When B may have begun to sign is written before, when A has stopped after: neither is ever too kind.
            if to is Keep.NEW and rotation.activating_at is None:
                rotation = self._change(rotation, activating_at=now)
            for kind in behind:
                exchange(self.authorities.directory(kind), self.others.directory(kind))
            if to is Keep.NEW and (rotation.activated_at is None or rotation.reverted_at is not None):
                rotation = self._change(rotation, activated_at=now, reverted_at=None)
            elif to is Keep.OLD and rotation.activating_at is not None and rotation.reverted_at is None:
                rotation = self._change(rotation, reverted_at=now)
        return rotation

    def end(self, keep: Keep) -> Rotation:
        """From now on trust only ``keep``; the other's key stays until :meth:`close`."""
        with self._locked():
            rotation = self._under_way()
            if any(self._signing(kind) != both.of(keep) for kind, both in rotation.generations.items()):
                raise RotationRefused(f"the {keep} authority does not sign", "see `sluice pki rotate --status`")
            if rotation.keep not in {None, keep}:
                raise RotationRefused(f"the {rotation.keep} authority was to stay", "see `sluice pki rotate --status`")
            return self._change(rotation, keep=keep)

    def close(self, *, retire: bool = False) -> list[Path]:
        """End the rotation: destroy the keys that are no longer needed, or keep them; returns the kept files."""
        kept: list[Path] = []
        with self._locked():
            rotation = self._under_way()
            if rotation.keep is None:
                raise RotationRefused("the rotation is not at its end", "see `sluice pki rotate --status`")
            for kind in rotation.generations:
                place = self.others.directory(kind)
                if retire and place.exists():
                    kept.append(self._retire(kind, place))
                else:
                    if self.others.in_token(kind):
                        self.others.destroy_token_key(kind)
                    _destroy(place / KEY_FILE)
            gone = self._pki / staged_name(self._directory.name)
            try:
                self._directory.rename(gone)
            except OSError as error:
                raise StoreError(f"cannot remove {self._directory}: {error.strerror or error}") from error
            sync_directory(self._pki)
            shutil.rmtree(gone, ignore_errors=True)
        return kept

    def _fill(  # noqa: PLR0917  the arguments of begin
        self,
        staging: Path,
        subject: AuthorityKind,
        kinds: tuple[AuthorityKind, ...],
        config: PkiConfig,
        now: dt.datetime,
        root_passphrase: bytes | None,
        places: Mapping[AuthorityKind, TokenUri],
        making: contextlib.ExitStack,
    ) -> Rotation:
        made = AuthorityStore(staging, self._tokens)
        # If anything fails before all is in place, the keys created in tokens are removed again.
        generate = {kind: making.enter_context(made.making(kind, config, places.get(kind))) for kind in kinds}
        if subject is AuthorityKind.ROOT:
            root = create_root(config, now, generate[subject])
            made.add(root, root_passphrase=root_passphrase)
        else:
            root = self.authorities.load(AuthorityKind.ROOT, root_passphrase)
        for kind in kinds:
            if kind is not AuthorityKind.ROOT:
                made.add(create_intermediate(kind, root, config, now, generate[kind]))
        generations = {kind: Generations(old=self._signing(kind), new=key_id(made.certificate(kind))) for kind in kinds}
        rotation = Rotation(subject=subject, generations=generations, started_at=now)
        _write(staging, rotation)
        return rotation

    def _same_tokens(self, kinds: Sequence[AuthorityKind]) -> dict[AuthorityKind, TokenUri]:
        store = self.authorities
        return {kind: store.reference(kind).place for kind in kinds if store.in_token(kind)}

    def _change(self, rotation: Rotation, **fields: object) -> Rotation:
        changed = msgspec.structs.replace(rotation, **fields)
        _write(self._directory, changed)
        return changed

    def _retire(self, kind: AuthorityKind, place: Path) -> Path:
        target = make_private_directory(self._pki / RETIRED) / f"{kind}-{key_id(self.others.certificate(kind))[:16]}"
        try:
            place.rename(target)
        except OSError as error:
            raise StoreError(f"cannot move {place} to {target}: {error.strerror or error}") from error
        sync_directory(target.parent)
        return target

    def _signing(self, kind: AuthorityKind) -> str:
        return key_id(self.authorities.certificate(kind))

    def _under_way(self) -> Rotation:
        rotation = read_rotation(self._pki)
        if rotation is None:
            raise RotationRefused("no rotation is under way", "see `sluice pki rotate --status`")
        return rotation

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with locked(self.authorities.directory(AuthorityKind.ROOT).parent):
            remove_leftovers(self._pki, self._directory.name)
            if self._directory.exists():
                remove_leftovers(self._directory)
            yield


def _write(directory: Path, rotation: Rotation) -> None:
    write_secret(directory / STATE_FILE, msgspec.json.format(msgspec.json.encode(rotation), indent=1) + b"\n")


def _destroy(path: Path) -> None:
    """Overwrite a key before its file is removed; only best effort on copy-on-write media."""
    try:
        with path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            file.write(bytes(size))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"cannot destroy {path}: {error.strerror or error}", "remove it, and repeat") from error
