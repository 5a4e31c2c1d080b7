"""The files of a local cluster, as far as they decide what its listeners are worth. Reads, and changes nothing.

Kept small on purpose: whoever has more to say about a home adds checks for :attr:`audit.model.Kind.HOME`.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509

from audit.checks import references as ref
from audit.model import Check, Evidence, Kind, Severity, finding, not_examined, passed
from audit.subject import Subject
from pki.crl import load_crls
from pki.crl_files import CRL_FILE, identity_directories
from pki.errors import PkiError
from pki.files import read_bounded
from pki.home import Home
from pki.identity_files import CHAIN_FILE, read_certificates

MAX_FILES = 100_000
MAX_TOLD = 5
_SECRET_NAMES = frozenset({"key.pem", "token", "tokens.json", "edge.json"})
_SECRET_SUFFIXES = frozenset({".p12", ".pass", ".jks", ".key"})
_HOME = frozenset({Kind.HOME})


def _home(subject: Subject) -> Home:
    return Home.at(Path(subject.listener.path))


def _secrets(root: Path) -> Iterator[Path]:
    for number, path in enumerate(root.rglob("*")):
        if number >= MAX_FILES:
            raise OSError(f"more than {MAX_FILES} files below {root}")
        if (path.name in _SECRET_NAMES or path.suffix in _SECRET_SUFFIXES) and path.is_file():
            yield path


def _secrets_private(subject: Subject) -> Evidence:
    root = _home(subject).root
    done = f"looked at the mode of every key, keystore, password and token below {root}"
    count, bad = 0, []
    for path in _secrets(root):
        count += 1
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            bad.append(f"{path.relative_to(root)} ({mode:04o})")
    if bad:
        more = f" and {len(bad) - MAX_TOLD} more" if len(bad) > MAX_TOLD else ""
        return finding(done, f"others can read {', '.join(sorted(bad)[:MAX_TOLD])}{more}")
    return passed(done, f"{count} files, each for its owner alone")


def _leaves(home: Home) -> Iterator[tuple[Path, x509.Certificate]]:
    for directory in identity_directories(home):
        yield directory, read_certificates(directory / CHAIN_FILE)[0]


def _leaves_short_lived(subject: Subject) -> Evidence:
    home, longest = _home(subject), subject.options.max_leaf_lifetime
    done = f"read the certificate in every identity directory; at most {longest.total_seconds() / 86400:.1f} days"
    count = 0
    try:
        for directory, leaf in _leaves(home):
            count += 1
            lifetime = leaf.not_valid_after_utc - leaf.not_valid_before_utc
            if lifetime > longest:
                return finding(done, f"{directory.relative_to(home.root)}: {lifetime.total_seconds() / 86400:.1f} days")
            if leaf.not_valid_after_utc < subject.options.clock():
                return finding(done, f"{directory.relative_to(home.root)} expired on {leaf.not_valid_after_utc}")
    except PkiError as error:
        return finding(done, str(error))
    return passed(done, f"{count} identities")


def _lists_fresh(subject: Subject) -> Evidence:
    home, now = _home(subject), subject.options.clock()
    done = "read the revocation list in every identity directory"
    count = 0
    for directory in identity_directories(home):
        path = directory / CRL_FILE
        where = directory.relative_to(home.root)
        if not path.exists():
            return finding(done, f"{where} has none: it would learn of no revocation")
        try:
            lists = load_crls(read_bounded(path))
        except PkiError as error:
            return finding(done, f"{where}: {error}")
        for each in lists:
            count += 1
            if each.next_update_utc is None or each.next_update_utc < now:
                return finding(done, f"{where}: expired on {each.next_update_utc}")
    return passed(done, f"{count} lists, none expired")


def _fails_closed(subject: Subject) -> Evidence:
    path = _home(subject).run / "envoy" / "configuration.json"
    done = f"looked for failure_mode_allow in {path}"
    if not path.exists():
        return not_examined("there is no Envoy here")
    try:
        values = list(_values(json.loads(read_bounded(path)), "failure_mode_allow"))
    except (ValueError, PkiError) as error:
        return finding(done, f"cannot be read: {error}")
    if not values or any(value is not False for value in values):
        return finding(done, "not switched off: without the auth service, requests would pass unasked")
    return passed(done, "false")


def _values(node: object, name: str) -> Iterator[object]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == name:
                yield value
            yield from _values(value, name)
    elif isinstance(node, list):
        for value in node:
            yield from _values(value, name)


def _all_processes_read(subject: Subject) -> Evidence:
    done = "read the sockets of every process of the cluster from the kernel's table"
    if subject.unreadable:
        return finding(done, f"not permitted for {', '.join(subject.unreadable)}")
    return passed(done, "all were shown")


CHECKS = (
    Check(
        id="HOM-01",
        title="Secrets are for their owner alone",
        severity=Severity.HIGH,
        kinds=_HOME,
        expected="mode 0600 or less",
        references=(ref.ASVS_SECRETS,),
        remedy="chmod 600 the file, and issue the identity again: somebody may have read it.",
        run=_secrets_private,
    ),
    Check(
        id="HOM-02",
        title="Identities on disk are short-lived and valid",
        severity=Severity.MEDIUM,
        kinds=_HOME,
        expected="a lifetime of at most --max-leaf-days, and not expired",
        references=(ref.NIST_CERTIFICATES, ref.X509_SVID),
        remedy="Lower [pki] leaf_hours and issue the identity again: `sluice pki issue --force`.",
        run=_leaves_short_lived,
    ),
    Check(
        id="HOM-03",
        title="Revocation lists are there and fresh",
        severity=Severity.HIGH,
        kinds=_HOME,
        expected="a list in each identity directory, its nextUpdate ahead",
        references=("RFC 5280, 5.1.2.5 (nextUpdate)", ref.ASVS_REVOCATION),
        remedy="Sign them anew: `sluice pki crl refresh`; keep `sluice up` or a timer running that does.",
        run=_lists_fresh,
    ),
    Check(
        id="HOM-04",
        title="The gateway fails closed",
        severity=Severity.CRITICAL,
        kinds=_HOME,
        expected="failure_mode_allow is false",
        references=(ref.ASVS_ACCESS,),
        remedy="Set failure_mode_allow to false in the ext_authz filter.",
        run=_fails_closed,
    ),
    Check(
        id="HOM-05",
        title="The sockets of every process could be read",
        severity=Severity.MEDIUM,
        kinds=_HOME,
        expected="the kernel shows the sockets of all of the cluster's processes",
        references=(ref.ASVS_SURFACE,),
        remedy="Run the audit as the user of the cluster, or as root.",
        run=_all_processes_read,
    ),
)
