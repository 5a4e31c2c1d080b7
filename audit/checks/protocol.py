"""The TLS that a listener speaks: versions, cipher suites, groups, signatures, features that TLS 1.3 removed."""

from __future__ import annotations

from sluice.audit.check import Check
from sluice.audit.checks import references as ref
from sluice.audit.model import Evidence, Foreign, Kind, Severity, finding, not_examined, passed
from sluice.audit.subject import Subject
from sluice.audit.wire import (
    DEFLATE,
    GOOD_TLS12_SUITES,
    GROUPS,
    SIGNATURES,
    SUITES,
    WEAK_GROUPS,
    WEAK_SIGNATURES,
    WEAK_TLS12_SUITES,
    ClientHello,
    ConnectionEnded,
    Extension,
    Flight,
    NotTls,
    ServerHello,
    Version,
    name_of,
)
from sluice.pki import Channel

_OLD_SUITES = (*GOOD_TLS12_SUITES, *WEAK_TLS12_SUITES)
_OLD_GROUPS = (0x0017, 0x0018, 0x001D, 0x0019)
_UNKNOWN_PROTOCOL = "sluice-audit/0"
_STRANGE_NAMES = (b"audit.invalid", b"127.0.0.1", b"a" * 255, b"nul\x00.invalid", b"*.invalid", b"..", b"-")


def _modern(subject: Subject) -> Evidence:
    done = "offered TLS 1.3 alone"
    if subject.handshake is not None:
        return passed(done, "a complete handshake")
    answer = subject.offer(ClientHello())
    if isinstance(answer, NotTls):
        return not_examined("what it answers is not TLS at all")
    old = subject.offer(_tls12())
    if isinstance(old, ServerHello):
        milder = Severity.LOW if subject.listener.foreign else None
        return finding(done, f"{answer}; offered TLS 1.2: accepted", severity=milder)
    return finding(done, f"{answer}; no TLS handshake is possible")


def _obsolete(subject: Subject) -> Evidence:
    versions = (Version.SSL3, Version.TLS10, Version.TLS11)
    done = "offered, one at a time: " + ", ".join(version.label for version in versions)
    taken = [version for version in versions if _takes(subject, _tls12(versions=(version,)), version)]
    if not taken:
        return passed(done, "all refused")
    # The attack on SSL 3.0 (POODLE) is practical, those on TLS 1.0 and 1.1 are not by themselves.
    milder = Severity.MEDIUM if subject.listener.foreign and Version.SSL3 not in taken else None
    return finding(done, f"accepted: {', '.join(version.label for version in taken)}", severity=milder)


def _tls12_refused(subject: Subject) -> Evidence:
    if subject.handshake is None:
        return not_examined("TLS 1.3 is not to be had either")
    answer = subject.offer(_tls12())
    done = "offered TLS 1.2 alone, with every suite there is"
    if isinstance(answer, ServerHello):
        return finding(done, f"accepted, with {name_of(SUITES, answer.suite)}")
    return passed(done, f"refused: {answer}")


def _groups(subject: Subject) -> Evidence:
    done = f"offered only groups that TLS 1.3 took out ({len(WEAK_GROUPS)} of them, up to 112 bits), in TLS 1.3 and 1.2"
    answer = subject.offer(ClientHello(groups=WEAK_GROUPS))
    if isinstance(answer, ServerHello) and answer.group in WEAK_GROUPS:
        return finding(done, f"{name_of(GROUPS, answer.group)} taken in TLS 1.3")
    # In TLS 1.2 the curve of the server's certificate must be among the groups, so a good one is offered last.
    flight = subject.old_flight(_tls12(groups=(*WEAK_GROUPS, *_OLD_GROUPS), suites=GOOD_TLS12_SUITES))
    if isinstance(flight, Flight) and flight.group in WEAK_GROUPS:
        return finding(done, f"{name_of(GROUPS, flight.group)} taken in TLS 1.2")
    return passed(done, f"not taken: {answer}")


def _compression(subject: Subject) -> Evidence:
    done = "offered DEFLATE compression, in TLS 1.2 and 1.3"
    for version in (Version.TLS12, Version.TLS13):
        suites = (*_OLD_SUITES, *ClientHello().suites)
        answer = subject.offer(
            ClientHello(versions=(version,), suites=suites, groups=_OLD_GROUPS, compression=(DEFLATE, 0))
        )
        if isinstance(answer, ServerHello) and answer.compression:
            return finding(done, f"compression method {answer.compression} taken in {version.label}")
    return passed(done, "not taken")


def _renegotiation(subject: Subject) -> Evidence:
    done = "offered TLS 1.2 with an empty renegotiation_info"
    answer = subject.offer(_tls12())
    if not isinstance(answer, ServerHello):
        return passed(done, f"refused: {answer}; TLS 1.3 has no renegotiation")
    if Extension.RENEGOTIATION_INFO not in answer.extensions:
        return finding(done, "answered without renegotiation_info: insecure renegotiation cannot be told apart")
    return passed(done, "answered with renegotiation_info")


def _client_renegotiation(subject: Subject) -> Evidence:
    done = "completed a TLS 1.2 handshake and asked for another one within it"
    answer = subject.offer(_tls12())
    if not isinstance(answer, ServerHello):
        return passed("offered TLS 1.2", f"refused: {answer}; TLS 1.3 has no renegotiation")
    with subject.old_client(subject.welcome) as client:
        try:
            client.connect()
        except ConnectionEnded as ended:
            return not_examined(f"the audit is not admitted to a TLS 1.2 handshake here: {ended.ending}")
        try:
            client.renegotiate(subject.options.listen)
        except ConnectionEnded as ended:
            return passed(done, f"refused: {ended.ending}")
    return finding(done, "the server took part: a client can make it compute handshakes without end")


def _signatures(subject: Subject) -> Evidence:
    if subject.handshake is None:
        return not_examined("no TLS 1.3 handshake is possible here")
    done = "TLS 1.3 handshake in which the server may sign with SHA-1 only"
    with subject.client(signatures=WEAK_SIGNATURES) as client:
        try:
            shown = client.connect()
        except ConnectionEnded as ended:
            return passed(done, f"refused: {ended.ending}")
    name = name_of(SIGNATURES, shown.signature)
    if shown.signature in WEAK_SIGNATURES:
        return finding(done, f"signed with {name}")
    return passed(done, f"signed with {name} all the same, which such a client refuses")


def _names(subject: Subject) -> Evidence:
    if subject.handshake is None or subject.leaf is None:
        return not_examined("no TLS 1.3 handshake is possible here")
    done = f"asked for {len(_STRANGE_NAMES)} strange server names (unknown, an address, 255 bytes, with NUL, wildcard)"
    refused = 0
    for name in _STRANGE_NAMES:
        with subject.client(server_name=name) as client:
            try:
                shown = client.connect()
            except ConnectionEnded:
                refused += 1
                continue
        if shown.certificates[:1] != (subject.leaf,):
            other = shown.certificates[0].subject.rfc4514_string() if shown.certificates else "nothing"
            return finding(done, f"for {name[:32]!r} another certificate is shown: {other}")
    return passed(done, f"{refused} refused, the others got the same certificate")


def _protocols(subject: Subject) -> Evidence:
    if subject.handshake is None:
        return not_examined("no TLS 1.3 handshake is possible here")
    done = f"offered {_UNKNOWN_PROTOCOL!r} as the only application protocol"
    credential = subject.welcome
    with subject.client(credential, alpn=(_UNKNOWN_PROTOCOL,)) as client:
        try:
            shown = client.connect()
        except ConnectionEnded as ended:
            return passed(done, f"refused: {ended.ending}")
        if shown.alpn:
            known = "it cannot know" if shown.alpn == _UNKNOWN_PROTOCOL else "was not offered"
            return finding(done, f"the server chose {shown.alpn!r}, which {known}")
        verdict = client.verdict(subject.options.patience)
    # A public server may go on without a protocol; behind mutual TLS both sides know theirs. Envoy then speaks
    # HTTP/1.1, and lets nothing through before the auth service has decided about the request.
    lenient = subject.listener.kind is Kind.SERVER or subject.listener.channel is Channel.EGRESS
    if verdict.refused or credential is None or not subject.handshake.alpn or lenient:
        return passed(done, f"the server chose none: {verdict}")
    return finding(done, f"a client that speaks none of its protocols is admitted: {verdict}")


def _alive(subject: Subject) -> Evidence:
    done = "offered TLS 1.3 once more, after everything else"
    if subject.handshake is None:
        return not_examined("no TLS 1.3 handshake was possible before either")
    try:
        answer: object = subject.offer(ClientHello())
    except OSError as error:
        answer = error
    if isinstance(answer, ServerHello):
        return passed(done, "taken, as before")
    if subject.has_ended:
        return not_examined("its job has ended meanwhile")
    return finding(done, f"{answer}: something that the audit sent has stopped it")


def _tls12(
    *,
    versions: tuple[int, ...] = (Version.TLS12,),
    suites: tuple[int, ...] = _OLD_SUITES,
    groups: tuple[int, ...] = _OLD_GROUPS,
) -> ClientHello:
    return ClientHello(versions=versions, suites=suites, groups=groups)


def _takes(subject: Subject, hello: ClientHello, version: Version) -> bool:
    answer = subject.offer(hello)
    return isinstance(answer, ServerHello) and answer.version == version


CHECKS = (
    Check(
        id="TLS-02",
        title="TLS 1.3 is spoken",
        problem="TLS 1.3 not supported",
        severity=Severity.HIGH,
        expected="a TLS 1.3 handshake is possible",
        references=(ref.NIST_VERSIONS, ref.MOZILLA),
        remedy="Switch TLS on (Flink: security.ssl.internal.enabled: true, security.ssl.rest.enabled: true; Spark: "
        "spark.ssl.rpc.enabled true), with a TLS library that speaks TLS 1.3, and allow that "
        "(minimum_version TLSv1.3).",
        run=_modern,
    ),
    Check(
        id="TLS-03",
        title="SSL 3.0, TLS 1.0 and TLS 1.1 are refused",
        problem="obsolete protocol version accepted",
        severity=Severity.HIGH,
        expected="alert protocol_version, or the end of the connection",
        references=(ref.RFC8996, ref.NIST_VERSIONS, ref.ASVS_TLS),
        remedy="Set the lowest version to TLS 1.3, or at least to TLS 1.2.",
        run=_obsolete,
    ),
    Check(
        id="TLS-04",
        title="TLS 1.2 is refused",
        problem="TLS 1.2 accepted",
        severity=Severity.MEDIUM,
        expected="alert protocol_version, or the end of the connection",
        references=(ref.MOZILLA, ref.RFC8446_CLIENT_AUTH),
        remedy="Set the lowest version to TLS 1.3: every peer in this cluster speaks it, and in TLS 1.2 client "
        "certificates travel in the clear.",
        run=_tls12_refused,
        foreign=Foreign(
            severity=Severity.INFO,
            expected="TLS 1.3 alone; TLS 1.2 with forward secrecy and AEAD is acceptable for the sake of old clients",
            remedy="Set the lowest version to TLS 1.3 once every client speaks it. In TLS 1.2 client certificates "
            "travel in the clear.",
        ),
    ),
    Check(
        id="TLS-06",
        title="Weak groups are refused",
        problem="weak key exchange group accepted",
        severity=Severity.HIGH,
        expected="no key exchange in a group that TLS 1.3 took out",
        references=(ref.RFC8446_GROUPS, ref.NIST_GROUPS),
        remedy="Allow X25519MLKEM768, x25519, secp256r1 and secp384r1 only.",
        run=_groups,
    ),
    Check(
        id="TLS-07",
        title="Compression is refused",
        problem="TLS compression accepted",
        severity=Severity.MEDIUM,
        expected="compression method null",
        references=(ref.NIST_COMPRESSION, ref.RFC8446_SUITES),
        remedy="Switch TLS compression off (OP_NO_COMPRESSION): it tells secrets by their length (CRIME).",
        run=_compression,
    ),
    Check(
        id="TLS-08",
        title="Renegotiation is secure, or there is none",
        problem="insecure renegotiation",
        severity=Severity.MEDIUM,
        expected="no TLS 1.2, or renegotiation_info in its ServerHello",
        references=(ref.RFC5746, ref.NIST_SUITES),
        remedy="Speak TLS 1.3 only, or update the TLS library.",
        run=_renegotiation,
    ),
    Check(
        id="TLS-18",
        title="Clients cannot renegotiate",
        problem="client-initiated renegotiation accepted",
        severity=Severity.MEDIUM,
        expected="no TLS 1.2, or alert no_renegotiation, silence or the end of the connection",
        references=(ref.RFC9325_RENEGOTIATION, ref.NIST_SUITES, ref.ASVS_LIMITS),
        remedy="Speak TLS 1.3 only, or refuse it (OP_NO_RENEGOTIATION; "
        "-Djdk.tls.rejectClientInitiatedRenegotiation=true in Java).",
        run=_client_renegotiation,
    ),
    Check(
        id="TLS-13",
        title="Every server name gets the same certificate",
        problem="certificate depends on the server name asked for",
        severity=Severity.LOW,
        expected="the same certificate, or a refusal",
        ours_only=True,
        references=("RFC 6066, 3 (server_name)", ref.X509_SVID),
        remedy="Give the listener one identity, whatever name is asked for.",
        run=_names,
    ),
    Check(
        id="TLS-14",
        title="ALPN selects only protocols that both sides speak",
        problem="unknown application protocol accepted",
        severity=Severity.MEDIUM,
        expected="no protocol, alert no_application_protocol, or the end of the connection",
        references=(ref.RFC7301,),
        remedy="Refuse connections whose application protocol was not agreed on.",
        run=_protocols,
    ),
    Check(
        id="TLS-15",
        title="The handshake is not signed with SHA-1",
        problem="handshake signed with SHA-1",
        severity=Severity.HIGH,
        expected="alert handshake_failure, or a better signature",
        references=(ref.RFC8446_SIGNATURES, ref.NIST_CERTIFICATES),
        remedy="Update the TLS library, or take SHA-1 from its signature schemes.",
        run=_signatures,
    ),
    Check(
        id="TLS-16",
        title="The listener still answers after the audit",
        problem="no longer serving after the audit",
        severity=Severity.HIGH,
        expected="TLS 1.3 is spoken as before",
        references=(ref.ASVS_LIMITS,),
        remedy="Look into its log: a hostile message of the audit has stopped it.",
        run=_alive,
        last=True,
    ),
)
