"""Issuing every identity of an inventory that is missing or due, and leaving alone what is still good."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from sluice.core.errors import CertificateRejected, StoreError
from sluice.core.home import Home
from sluice.pki.authorities.signing import (
    Authority,
    sign_leaf,
    to_pem,
    trust_domain_of,
)
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.authorities.trusted_authorities import TrustStore
from sluice.pki.config import PkiConfig
from sluice.pki.identities.database import IdentityStore
from sluice.pki.identities.directory import (
    IdentityMaterial,
    read_identity,
    read_peers,
    write_identity,
)
from sluice.pki.identities.due import (
    alternative_names,
    issue_reason,
    kept_because,
    purposes_of,
)
from sluice.pki.issuing.inventory import Wish
from sluice.pki.ledger.offline_issuance import MAX_RECORDS, Notes, note_of
from sluice.pki.ledger.records import LedgerRecord, NotedKind
from sluice.pki.revocation.crl import Revocation
from sluice.pki.revocation.crl_files import install_crls
from sluice.pki.revocation.store import RevocationStore
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.keys import (
    PrivateKey,
    edge_algorithm,
    generate_key,
    key_to_pem,
)
from sluice.pki.x509.peer_identity import certified_identity
from sluice.pki.x509.profiles import (
    AuthorityKind,
    Names,
    Purpose,
    edge_server_profile,
    kept_lifetime,
    workload_profile,
)


class Action(enum.StrEnum):
    """What was done about an identity."""

    ISSUED = "issued"
    RENEWED = "renewed"
    KEPT = "kept"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One identity of the inventory: what was done, and why."""

    spiffe_id: SpiffeId
    action: Action
    reason: str
    reinstated: bool = False
    """It had been revoked, and is admitted again."""


@dataclass(frozen=True, slots=True)
class Certified:
    """A new key with its certificate."""

    key: PrivateKey = field(repr=False)
    leaf: x509.Certificate
    authority: Authority
    anchors: tuple[x509.Certificate, ...]


class Signer:
    """Makes keys and certifies them with the authorities on this machine, each read once."""

    def __init__(self, pki: Path, config: PkiConfig, clock: Callable[[], dt.datetime]) -> None:
        self._store = AuthorityStore(pki)
        self._config = config
        self._clock = clock
        self._backdate = dt.timedelta(minutes=config.backdate_minutes)
        self._authorities: dict[AuthorityKind, Authority] = {}
        self._notes = Notes(pki)
        self._noting = self._notes.wanted
        self._unnoted: list[LedgerRecord] = []
        self._trust = TrustStore(pki)
        self._anchors: dict[AuthorityKind, tuple[x509.Certificate, ...]] = {}
        self.revocations = RevocationStore(pki, config, clock=clock)

    @property
    def now(self) -> dt.datetime:
        """The present."""
        return self._clock()

    def authority(self, kind: AuthorityKind) -> Authority:
        """The authority ``kind``, of the configured trust domain, with its key."""
        if kind not in self._authorities:
            authority = self._store.load(kind)
            if (domain := trust_domain_of(authority.certificate)) != self._config.trust_domain:
                raise CertificateRejected(
                    f"the {kind} authority is of trust domain {domain}, not {self._config.trust_domain}",
                    "set pki.trust_domain back, or use another home",
                )
            self._authorities[kind] = authority
        return self._authorities[kind]

    def check(self, wish: Wish) -> None:
        """Refuse an identity of another trust domain, and one whose authority cannot sign here."""
        if wish.names.spiffe_id.trust_domain != self._config.trust_domain:
            raise CertificateRejected(
                f"{wish.names.spiffe_id} is not of trust domain {self._config.trust_domain}",
                "use an identity of this domain",
            )
        self.authority(wish.profile.authority)

    def certify(self, wish: Wish) -> Certified:
        """Make a key and the certificate that ``wish`` describes; not for an identity that was revoked."""
        self.revocations.check_not_barred(wish.profile.authority, wish.names.spiffe_id)
        return self.certify_admitted(wish)

    def certify_admitted(self, wish: Wish) -> Certified:
        """The same for an identity that was just found not to be revoked."""
        authority = self.authority(wish.profile.authority)
        algorithm = self._config.key_algorithm
        key = generate_key(edge_algorithm(algorithm) if authority.kind is AuthorityKind.EDGE else algorithm)
        leaf = sign_leaf(
            authority,
            key.public_key(),
            wish.names,
            wish.profile,
            now=self._clock(),
            backdate=self._backdate,
            lifetime=wish.lifetime,
        )
        if self._noting:
            kind: NotedKind = "edge-local" if authority.kind is AuthorityKind.EDGE else "local"
            self._unnoted.append(note_of(leaf, str(wish.names.spiffe_id), kind))
        return Certified(key, leaf, authority, self.anchors(authority.kind))

    def anchors(self, kind: AuthorityKind) -> tuple[x509.Certificate, ...]:
        """The authorities to be trusted beside what ``kind`` certifies."""
        if kind not in self._anchors:
            self._anchors[kind] = self._trust.anchors(kind)
        return self._anchors[kind]

    def note(self) -> None:
        """Have everything certified so far noted for the ledger, where there is one; before it leaves."""
        self._notes.write(self._unnoted)
        self._unnoted.clear()

    @property
    def unnoted(self) -> int:
        """How many certificates are not noted yet."""
        return len(self._unnoted)


class Target(Protocol):
    """Where identities are kept."""

    @property
    def together(self) -> bool:
        """Whether what is put leaves only when the whole run is committed."""

    @property
    def takes_lists(self) -> bool:
        """Whether revocation lists are kept beside identities: those who do not need none read for each."""

    def check(self, wish: Wish) -> None:
        """Refuse, before anything is done, an identity that has no place here."""

    def get(self, wish: Wish) -> tuple[IdentityMaterial, tuple[str, ...]] | None:
        """What is there, with its accepted peers; None: nothing. Damage is a :class:`StoreError`."""

    def put(self, wish: Wish, certified: Certified) -> None:
        """Keep a new identity in place of the old."""

    def put_list(self, wish: Wish, crl_pem: bytes, now: dt.datetime) -> None:
        """Keep the revocation list of its side with an identity that has just been put."""


class StoreTarget:
    """All of them in one file."""

    together = True
    takes_lists = False
    """Whoever makes a directory of an identity takes the list of that day."""

    def __init__(self, store: IdentityStore) -> None:
        self._store = store
        self._empty = len(store) == 0
        self._encoded: dict[AuthorityKind, bytes] = {}

    def check(self, wish: Wish) -> None:
        """See :meth:`Target.check`: there is a place for all."""

    def get(self, wish: Wish) -> tuple[IdentityMaterial, tuple[str, ...]] | None:
        """See :meth:`Target.get`."""
        return None if self._empty else self._store.get(wish.names.spiffe_id)

    def put(self, wish: Wish, certified: Certified) -> None:
        """See :meth:`Target.put`."""
        self._store.put(
            wish.names.spiffe_id,
            key=certified.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
            leaf=certified.leaf.public_bytes(Encoding.DER),
            authority=self._authority(certified.authority),
            accept=wish.accept,
        )

    def put_list(self, wish: Wish, crl_pem: bytes, now: dt.datetime) -> None:
        """See :meth:`Target.put_list`: there is no place for it."""

    def _authority(self, authority: Authority) -> bytes:
        if authority.kind not in self._encoded:
            self._encoded[authority.kind] = authority.certificate.public_bytes(Encoding.DER)
        return self._encoded[authority.kind]


class DirectoryTarget:
    """A directory each: below the home, or one given directory for all (then for a single identity)."""

    together = False
    takes_lists = True

    def __init__(self, home: Home, directory: Path | None = None) -> None:
        self._home = home
        self._directory = directory

    def check(self, wish: Wish) -> None:
        """See :meth:`Target.check`."""
        self.place(wish.names.spiffe_id)

    def place(self, spiffe_id: SpiffeId) -> Path:
        """The directory of ``spiffe_id``; an identity of a job has none below the home."""
        if self._directory is not None:
            return self._directory
        if spiffe_id.job_id:
            raise StoreError(f"{spiffe_id} has no place below the home", "issue it by itself with --out")
        return self._home.identity(spiffe_id.role, spiffe_id.name)

    def get(self, wish: Wish) -> tuple[IdentityMaterial, tuple[str, ...]] | None:
        """See :meth:`Target.get`."""
        directory = self.place(wish.names.spiffe_id)
        if not directory.exists():
            return None
        return read_identity(directory)[0], read_peers(directory)

    def put(self, wish: Wish, certified: Certified) -> None:
        """See :meth:`Target.put`."""
        write_identity(
            self.place(wish.names.spiffe_id),
            key_pem=key_to_pem(certified.key),
            chain_pem=to_pem(certified.leaf, certified.authority.certificate),
            ca_pem=to_pem(*certified.anchors),
            accept=wish.accept,
        )

    def put_list(self, wish: Wish, crl_pem: bytes, now: dt.datetime) -> None:
        """See :meth:`Target.put_list`."""
        install_crls(self.place(wish.names.spiffe_id), crl_pem, now)


def wish_like(
    leaf: x509.Certificate,
    accept: tuple[str, ...],
    config: PkiConfig,
    *,
    lifetime: dt.timedelta | None = None,
    authority_ends: Collection[dt.datetime] = (),
) -> Wish:
    """What to issue in place of ``leaf``: the same names, purposes and (without ``lifetime``) lifetime.

    ``authority_ends``: see :func:`sluice.pki.x509.profiles.kept_lifetime`.
    """
    dns, ips = alternative_names(leaf)
    spiffe_id = certified_identity(leaf)
    names = Names.checked(spiffe_id, dns, ips)
    edge_server = spiffe_id.role is Role.GATEWAY and purposes_of(leaf) == (Purpose.SERVER,)
    profile = (edge_server_profile if edge_server else workload_profile)(spiffe_id.role, config)
    if lifetime is None:
        backdate = dt.timedelta(minutes=config.backdate_minutes)
        kept = kept_lifetime(leaf, profile, backdate=backdate, authority_ends=authority_ends)
        lifetime = None if kept == profile.lifetime else kept
    return Wish(names, profile, lifetime, accept, edge_server)


def prepare(wishes: Iterable[Wish], target: Target, signer: Signer) -> None:
    """Refuse what cannot be carried out before anything is; ``wishes`` may be samples, one of each kind."""
    for wish in wishes:
        signer.check(wish)
        target.check(wish)


def issue_all(
    wishes: Iterable[Wish], target: Target, signer: Signer, *, force: bool = False, reinstate: bool = False
) -> Iterator[Outcome]:
    """Bring ``target`` to what ``wishes`` say, one identity after the other, telling of each what was done.

    What is whole, says what it should, has not been revoked and has more than half of its life left is kept, unless
    ``force``. An identity that was revoked is refused and left as it is; with ``reinstate`` it is admitted again, with
    its new certificate only.
    """
    admitted: list[Wish] = []
    for wish in wishes:
        barred = signer.revocations.barred(wish.profile.authority, wish.names.spiffe_id)
        if barred is None:
            action, reason = _judge(wish, target, signer, force=force)
        elif reinstate:
            action, _ = _judge(wish, target, signer, force=True)
            reason = f"{_was_revoked(barred)} and is admitted again"
        else:
            action, reason = Action.REFUSED, _was_revoked(barred)
        if action in {Action.ISSUED, Action.RENEWED}:
            certified = signer.certify_admitted(wish)
            if barred is not None:
                admitted.append(wish)
                # Only now: what cannot be certified lifts no revocation.
                if not target.together:
                    _reinstate(admitted, signer)
            _put(wish, certified, target, signer)
        yield Outcome(wish.names.spiffe_id, action, reason, barred is not None and reinstate)
    # What leaves together is admitted together: a run that fails on the way lifts nothing.
    _reinstate(admitted, signer)
    signer.note()


def _reinstate(wishes: list[Wish], signer: Signer) -> None:
    for wish in wishes:
        signer.revocations.reinstate(wish.profile.authority, wish.names.spiffe_id)
    wishes.clear()


def _put(wish: Wish, certified: Certified, target: Target, signer: Signer) -> None:
    if not target.together or signer.unnoted >= MAX_RECORDS:
        signer.note()
    target.put(wish, certified)
    if not target.takes_lists:
        return
    # Read after the identity is in place: whoever revokes meanwhile either finds it, or is found here.
    if crl_pem := signer.revocations.pem_for_issuing(certified.authority, certified.anchors):
        target.put_list(wish, crl_pem, signer.now)


def _was_revoked(entry: Revocation) -> str:
    return f"it was revoked at {entry.revoked_at:%Y-%m-%d %H:%M:%S} UTC ({entry.reason})"


def _judge(wish: Wish, target: Target, signer: Signer, *, force: bool) -> tuple[Action, str]:
    try:
        found = target.get(wish)
    except StoreError as error:
        return Action.RENEWED, error.what
    if found is None:
        return Action.ISSUED, "it was not there"
    material, accept = found
    kind = wish.profile.authority
    reason = issue_reason(
        material,
        wish.names,
        wish.profile,
        signer.authority(kind).certificate,
        signer.now,
        revoked=signer.revocations.is_revoked(kind, material.leaf.serial_number),
    )
    if not reason and accept != wish.accept:
        reason = "it accepts other peers"
    if not reason and force:
        reason = "it was asked for"
    return (Action.RENEWED, reason) if reason else (Action.KEPT, kept_because(material))
