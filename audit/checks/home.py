"""The files of a local cluster that its listeners' security depends on. Read only.

The doctor (``pki.inspect.doctor``) finds problems of files: its findings are evidence here, each for its check. Checks
beyond that are defined here.
"""

from __future__ import annotations

import contextlib
import json
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from sluice.audit.check import Check
from sluice.audit.checks import references as ref
from sluice.audit.model import Evidence, Kind, Severity, finding, not_examined, passed
from sluice.audit.subject import Subject
from sluice.core import Home, PkiError, files_below, read_bounded
from sluice.pki.identities import CHAIN_FILE, read_certificates
from sluice.pki.inspect import Finding, Severity as FindingSeverity
from sluice.pki.inspect.doctor import judge, read_home
from sluice.pki.revocation import CRL_FILE, identity_directories

MAX_FILES = 100_000
MAX_TOLD = 5
SETTLING_SECONDS = 2.0
"""How long after a new identity has appeared its CRL may follow."""
_SECRET_NAMES = frozenset({"key.pem", "token", "tokens.json", "edge.json"})
_SECRET_SUFFIXES = frozenset({".p12", ".pass", ".jks", ".key"})
# Codes of the doctor, by the check that they belong to.
_OUT_OF_TIME = frozenset({"expired", "not-yet-valid", "not-renewed", "clock-skew"})
_OF_LISTS = frozenset({"list-bad", "list-expired", "list-not-renewed"})
_OF_MODES = frozenset({"directory-open", "file-writable", "foreign-owner"})


def _home(subject: Subject) -> Home:
    return Home.at(Path(subject.listener.path))


def _secrets(root: Path) -> Iterator[Path]:
    seen = 0
    for folder, folders, names in files_below(root):
        seen += len(folders) + len(names)
        if seen > MAX_FILES:
            raise OSError(f"more than {MAX_FILES} files below {root}")
        for path in (folder / name for name in names):
            if (path.name in _SECRET_NAMES or path.suffix in _SECRET_SUFFIXES) and path.is_file():
                yield path


def _secrets_private(subject: Subject) -> Evidence:
    root = _home(subject).root
    done = f"looked at the mode of every key, keystore, password and token below {root}"
    count, bad = 0, []
    for path in _secrets(root):
        with contextlib.suppress(FileNotFoundError):  # of a job that has ended meanwhile
            mode = stat.S_IMODE(path.stat().st_mode)
            count += 1
            if mode & 0o077:
                bad.append(f"{path.relative_to(root)} ({mode:04o})")
    told = {str(root / each.rpartition(" (")[0]) for each in bad}
    readable = [each for each in _doctor(subject) if each.code == "key-readable" and each.path not in told]
    bad += [f"{_relative(each.path, root)} ({stat.S_IMODE(Path(each.path).stat().st_mode):04o})" for each in readable]
    if bad:
        more = f" and {len(bad) - MAX_TOLD} more" if len(bad) > MAX_TOLD else ""
        return finding(done, f"others can read {', '.join(sorted(bad)[:MAX_TOLD])}{more}")
    return passed(done, f"{count} files, each for its owner alone")


def _doctor(subject: Subject) -> list[Finding]:
    """The doctor's findings about the files."""
    facts = read_home(_home(subject), running=True)
    return [
        problem for problem in judge(facts, subject.options.clock()) if problem.severity is not FindingSeverity.NOTE
    ]


def _told(problems: Sequence[Finding], root: Path) -> str:
    told = [f"{_relative(each.path, root)}: {each.what}" for each in problems[:MAX_TOLD]]
    more = f"; and {len(problems) - MAX_TOLD} more" if len(problems) > MAX_TOLD else ""
    return "; ".join(told) + more


def _relative(path: str, root: Path) -> str:
    return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path


def _diagnosed(done: str, codes: frozenset[str], well: str) -> Callable[[Subject], Evidence]:
    """A check that the doctor has no finding with one of ``codes``."""

    def run(subject: Subject) -> Evidence:
        found = [problem for problem in _doctor(subject) if problem.code in codes]
        return finding(done, _told(found, _home(subject).root)) if found else passed(done, well)

    return run


def _leaves_short_lived(subject: Subject) -> Evidence:
    home, longest = _home(subject), subject.options.max_leaf_lifetime
    done = f"read the certificate in every identity directory; at most {longest.total_seconds() / 86400:.1f} days"
    count = 0
    for directory in identity_directories(home):
        try:
            leaf = read_certificates(directory / CHAIN_FILE)[0]
        except PkiError as error:
            if not (directory / CHAIN_FILE).exists():
                continue  # of a job that has ended meanwhile
            return finding(done, str(error))
        count += 1
        lifetime = leaf.not_valid_after_utc - leaf.not_valid_before_utc
        if lifetime > longest:
            return finding(done, f"{directory.relative_to(home.root)}: {lifetime.total_seconds() / 86400:.1f} days")
    late = [problem for problem in _doctor(subject) if problem.code in _OUT_OF_TIME]
    return finding(done, _told(late, home.root)) if late else passed(done, f"{count} identities")


def _lists_fresh(subject: Subject) -> Evidence:
    home = _home(subject)
    done = "read the revocation list in every identity directory, and those of the authorities"
    bare = [directory for directory in identity_directories(home) if not (directory / CRL_FILE).exists()]
    if bare:  # the CRL of a new identity follows it, and the identity of an ended job goes file by file
        time.sleep(SETTLING_SECONDS)
    for directory in bare:
        if (directory / CHAIN_FILE).exists() and not (directory / CRL_FILE).exists():
            return finding(done, f"{directory.relative_to(home.root)} has none: it would learn of no revocation")
    found = [problem for problem in _doctor(subject) if problem.code in _OF_LISTS]
    return finding(done, _told(found, home.root)) if found else passed(done, "all signed by their authority, none late")


def _sound(subject: Subject) -> Evidence:
    done = "had the doctor examine identities, keystores, authorities and the ledger (sluice pki doctor --offline)"
    found = [
        each for each in _doctor(subject) if each.code not in _OUT_OF_TIME | _OF_LISTS | _OF_MODES | {"key-readable"}
    ]
    return finding(done, _told(found, _home(subject).root)) if found else passed(done, "it finds nothing else")


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


_of_a_home = partial(Check, kinds=frozenset({Kind.HOME}))
"""A question about the files."""

CHECKS = (
    _of_a_home(
        id="HOM-01",
        title="Only their owner can read secrets",
        problem="secret readable by others",
        severity=Severity.HIGH,
        expected="mode 0600 or less",
        references=(ref.ASVS_SECRETS,),
        remedy="chmod 600 the file, and issue the identity again: somebody may have read it.",
        run=_secrets_private,
    ),
    _of_a_home(
        id="HOM-02",
        title="Identities on disk are short-lived and valid",
        problem="identity on disk expired or too long-lived",
        severity=Severity.MEDIUM,
        expected="a lifetime of at most --max-leaf-days, and not expired",
        references=(ref.NIST_CERTIFICATES, ref.X509_SVID),
        remedy="Lower [pki] leaf_hours and issue the identity again: `sluice pki issue --force`.",
        run=_leaves_short_lived,
    ),
    _of_a_home(
        id="HOM-03",
        title="CRLs are present and fresh",
        problem="CRL missing or out of date",
        severity=Severity.HIGH,
        expected="a CRL in each identity directory, its nextUpdate in the future",
        references=("RFC 5280, 5.1.2.5 (nextUpdate)", ref.ASVS_REVOCATION),
        remedy="Sign new ones with `sluice pki crl refresh`; keep `sluice up` or a timer running that does so.",
        run=_lists_fresh,
    ),
    _of_a_home(
        id="HOM-06",
        title="Only its owner can read and change the home",
        problem="home accessible to others",
        severity=Severity.HIGH,
        expected="directories of mode 0700, no file that others can write, everything of one owner",
        references=(ref.ASVS_SECRETS, ref.ASVS_ACCESS),
        remedy="chmod 700 the directory, chmod go-w the file; `sluice pki doctor` says which.",
        run=_diagnosed(
            "had the doctor look at modes and owners in the home", _OF_MODES, "the home is its owner's alone"
        ),
    ),
    _of_a_home(
        id="HOM-07",
        title="Identities and authorities on disk are sound",
        problem="damaged identity or authority on disk",
        severity=Severity.MEDIUM,
        expected="nothing damaged, mismatched, orphaned or signed by a foreign authority",
        references=(ref.RFC5280, ref.X509_SVID),
        remedy="`sluice pki doctor` names each with its own remedy.",
        run=_sound,
    ),
    _of_a_home(
        id="HOM-04",
        title="The gateway fails closed",
        problem="gateway does not fail closed",
        severity=Severity.CRITICAL,
        expected="failure_mode_allow is false",
        references=(ref.ASVS_ACCESS,),
        remedy="Set failure_mode_allow to false in the ext_authz filter.",
        run=_fails_closed,
    ),
    _of_a_home(
        id="HOM-05",
        title="The audit could read the sockets of every process",
        problem="sockets of some processes unreadable",
        severity=Severity.MEDIUM,
        expected="the kernel shows the sockets of all of the cluster's processes",
        references=(ref.ASVS_SURFACE,),
        remedy="Run the audit as the user of the cluster, or as root.",
        run=_all_processes_read,
    ),
)
