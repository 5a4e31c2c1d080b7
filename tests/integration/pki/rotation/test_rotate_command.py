"""``sluice pki rotate`` as people and scripts use it."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from sluice.client.access import edge_bundle
from sluice.core.errors import StoreError
from sluice.core.home import Home
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.protocol import TrustRequest
from sluice.pki.ca.subscriber_file import SubscriberFile
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import (
    CHAIN_FILE,
    KEY_FILE,
    read_certificates,
    read_identity,
)
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.tls.edge_client import EdgeTrust
from sluice.pki.trust.reports import TrustReport
from sluice.pki.x509.key_identifiers import issuer_id, key_id
from sluice.pki.x509.profiles import AuthorityKind
from tests.hostile import TRUST_DOMAIN
from tests.integration.pki.test_command import Command, sluice_pki

__all__ = ["sluice_pki"]

GATEWAY = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "envoy")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with a TaskManager and the gateway's certificate."""
    home = Home.at(tmp_path / "home")
    issuer = LocalIssuer(home, PkiConfig())
    issuer.ensure_authorities()
    issuer.issue_to(home.identity(Role.TASKMANAGER, "tm-1"), SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1"))
    issuer.issue_edge_server(home.identity(Role.GATEWAY, "envoy"), GATEWAY, dns=["localhost"], ips=["127.0.0.1"])
    return home


def status(sluice_pki: Command) -> Any:
    done = sluice_pki("rotate", "--status", "--json")
    assert done.code == 0
    return json.loads(done.out)


@pytest.mark.usefixtures("home")
def test_prepare_activate_and_finish_replace_the_internal_authority(sluice_pki: Command) -> None:
    assert status(sluice_pki)["phase"] == "A"
    before = status(sluice_pki)["trusted"]["internal"][0]["key"]
    assert json.loads(sluice_pki("rotate", "prepare", "internal", "--json").out)["phase"] == "A+B"
    document = status(sluice_pki)
    assert (document["rotating"], document["phase"], document["waiting_for"]) == ("internal", "A+B", [])
    assert [each["generation"] for each in document["trusted"]["internal"]] == ["internal A", "internal B"]
    assert json.loads(sluice_pki("rotate", "activate", "internal", "--json").out)["phase"] == "B+A"
    document = status(sluice_pki)
    worker = next(each for each in document["holders"] if each["identity"].endswith("/taskmanager/tm-1"))
    assert (worker["presents"], worker["trusts"]) == ("internal B", ["internal B", "internal A"])
    assert json.loads(sluice_pki("rotate", "finish", "internal", "--json").out)["phase"] == "A"
    assert status(sluice_pki)["trusted"]["internal"][0]["key"] != before
    assert "no rotation is under way" in sluice_pki("rotate", "--status").out


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("verbs", "refused", "why"),
    [
        pytest.param([], ["activate", "internal"], "nothing to activate", id="activate without prepare"),
        pytest.param([], ["finish", "internal"], "nothing to finish", id="finish without prepare"),
        pytest.param([], ["abort", "internal"], "nothing to abort", id="abort without prepare"),
        pytest.param(["prepare"], ["prepare", "internal"], "trusted everywhere already", id="prepare twice"),
        pytest.param(["prepare"], ["finish", "internal"], "nothing to finish", id="finish without activate"),
        pytest.param(["prepare"], ["prepare", "edge"], "one at a time", id="two at once"),
        pytest.param(["prepare"], ["activate", "edge"], "one at a time", id="the wrong one"),
        pytest.param(
            ["prepare"],
            ["activate", "internal", "--force", "taskmanager/tm-9"],
            "there is no identity",
            id="unknown name",
        ),
        pytest.param(["prepare", "activate"], ["prepare", "internal"], "nothing to prepare", id="prepare too late"),
    ],
)
def test_a_rotate_command_that_does_not_fit_the_phase_is_refused_and_changes_nothing(
    verbs: list[str], refused: list[str], why: str, sluice_pki: Command
) -> None:
    for verb in verbs:
        assert sluice_pki("rotate", verb, "internal").code == 0
    before = status(sluice_pki)
    done = sluice_pki("rotate", *refused)
    assert why in done.err
    assert done.code != 0
    assert status(sluice_pki) == before


def test_rotate_names_a_lagging_identity_and_force_leaves_it_out(home: Home, sluice_pki: Command) -> None:
    """A directory copied here from another home: it is not known which authorities it trusts."""
    other = Home.at(home.root.parent / "other")
    issuer = LocalIssuer(other, PkiConfig())
    issuer.ensure_authorities()
    stranger = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "stranger")
    issuer.issue_to(home.identity(Role.TASKMANAGER, "stranger"), stranger)
    done = sluice_pki("rotate", "prepare", "internal")
    assert f"{stranger}: neither its certificate nor its trust" in done.out
    done = sluice_pki("rotate", "activate", "internal", "--wait", "0.6")
    assert done.code == 1
    assert "waiting for 1, such as" in done.err
    assert "cannot be activated: 1 lags" in done.err
    assert sluice_pki("rotate", "activate", "internal", "--force", "taskmanager/stranger").code == 0


def test_rotate_shows_and_waits_for_a_subscriber_on_another_machine(home: Home, sluice_pki: Command) -> None:
    """As this home's online authority records it; its certificate may be waited for, or given up."""
    remote = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-7")
    directory = home.root.parent / "remote"
    LocalIssuer(home, PkiConfig()).issue_to(directory, remote)
    material, _ = read_identity(directory)
    file = SubscriberFile(home.pki)
    report = TrustReport(
        pid=4711,
        started=1.0,
        identity=str(remote),
        program="taskmanager",
        leaf="0" * 64,
        issuer=issuer_id(material.leaf),
        anchors=(key_id(material.anchors[0]),),
        crls={},
        loaded_at=dt.datetime.now(dt.UTC),
    )
    file.subscribers.heard(remote, material.leaf, "192.0.2.7", TrustRequest(in_use=(report,)))
    file.keep()
    assert sluice_pki("rotate", "prepare", "internal").code == 0
    [shown] = [each for each in status(sluice_pki)["holders"] if each["source"] == "follower"]
    assert (shown["identity"], shown["place"], shown["pid"]) == (str(remote), "192.0.2.7", 4711)
    assert (shown["presents"], shown["trusts"]) == ("internal A", ["internal A"])
    behind = "it does not trust the new authority yet"
    assert shown["waits_for"] == behind
    [line] = [each for each in sluice_pki("rotate", "--status").out.splitlines() if "<-" in each]
    assert f"{remote} " in line
    assert f"taskmanager 4711 at 192.0.2.7 presents internal A, trusts internal A  <- {behind}" in line
    assert sluice_pki("rotate", "activate", "internal").code == 1
    assert sluice_pki("rotate", "activate", "internal", "--force", "taskmanager/tm-7").code == 0


def test_the_next_rotate_verb_repairs_a_half_written_identity(home: Home, sluice_pki: Command) -> None:
    """As when the renewing process was killed between writing the key and the certificate."""
    directory = home.identity(Role.TASKMANAGER, "tm-1")
    assert sluice_pki("rotate", "prepare", "internal").code == 0
    spare = home.root / "spare"
    LocalIssuer(home, PkiConfig()).issue_to(spare, SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1"))
    (spare / KEY_FILE).replace(directory / KEY_FILE)
    assert sluice_pki("rotate", "activate", "internal").code == 0
    assert sluice_pki("rotate", "finish", "internal").code == 0
    TlsIdentity(directory)


def test_rotate_needs_the_passphrase_of_an_encrypted_root(tmp_path: Path, sluice_pki: Command) -> None:
    secret, new = tmp_path / "secret", tmp_path / "new"
    for path, text in ((secret, "correct horse battery"), (new, "another passphrase")):
        path.write_text(text)
        path.chmod(0o600)
    assert sluice_pki("init", "--root-passphrase-file", secret).code == 0
    assert "encrypted" in sluice_pki("rotate", "prepare", "internal").err
    assert "has a passphrase" in sluice_pki("rotate", "prepare", "root").err
    done = sluice_pki("rotate", "prepare", "internal", "--root-passphrase-file", new)
    assert "does not open" in done.err
    assert sluice_pki("rotate", "prepare", "internal", "--root-passphrase-file", secret).code == 0
    assert sluice_pki("rotate", "abort", "internal").code == 0
    assert sluice_pki("rotate", "prepare", "root", "--root-passphrase-file", new).code == 0
    for verb in ("activate", "finish"):
        assert sluice_pki("rotate", verb, "root").code == 0
    store = AuthorityStore(tmp_path / "home" / "pki")
    store.load(AuthorityKind.ROOT, b"another passphrase")


def test_a_certificate_of_the_outgoing_authority_can_be_revoked(home: Home, sluice_pki: Command) -> None:
    leaf = read_certificates(home.identity(Role.TASKMANAGER, "tm-1") / CHAIN_FILE)[0]
    for verb in ("prepare", "activate"):
        assert sluice_pki("rotate", verb, "internal").code == 0
    done = sluice_pki("revoke", "taskmanager/tm-1", "--reason", "superseded", "--json")
    assert done.code == 0, done.err
    assert f"{leaf.serial_number:x}" in json.loads(done.out)["revoked"], "the replaced one has not expired"


def test_an_identity_renewed_by_a_rotation_can_be_revoked(home: Home, sluice_pki: Command) -> None:
    """Its former certificate is still in its directory, of an authority that is no longer trusted."""
    directory = home.identity(Role.TASKMANAGER, "tm-1")
    before = read_certificates(directory / CHAIN_FILE)[0]
    for verb in ("prepare", "activate", "finish"):
        assert sluice_pki("rotate", verb, "internal").code == 0
    leaf = read_certificates(directory / CHAIN_FILE)[0]
    assert leaf.serial_number != before.serial_number
    done = sluice_pki("revoke", "taskmanager/tm-1", "--reason", "key-compromise", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["revoked"] == [f"{leaf.serial_number:x}"]


async def test_clients_of_the_gateway_follow_an_edge_rotation(home: Home, sluice_pki: Command, tmp_path: Path) -> None:
    """They use the bundle's stable path, even if started before; a copy of the first bundle stops working."""
    sluice_pki("init")  # publishes the bundle of a home that was made without one
    bundle = edge_bundle(home)
    assert bundle == home.pki / "trust" / "edge.pem"
    copy = tmp_path / "copy.pem"
    copy.write_bytes(bundle.read_bytes())
    lasting, left_behind = EdgeTrust(bundle), EdgeTrust(copy)
    directory = home.identity(Role.GATEWAY, "envoy")

    async def reach(trust: EdgeTrust) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(directory / CHAIN_FILE, directory / KEY_FILE)
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        async with server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("localhost", port, ssl=trust.context())
            assert await reader.read() == b""
            writer.close()

    await reach(lasting)
    for verb in ("prepare", "activate", "finish"):
        assert (await asyncio.to_thread(sluice_pki, "rotate", verb, "edge")).code == 0
        await reach(lasting)
        await reach(EdgeTrust(edge_bundle(home)))
    with pytest.raises(ssl.SSLCertVerificationError):
        await reach(left_behind)
    bundle.write_text("damaged")
    await reach(lasting)
    bundle.unlink()
    await reach(lasting)
    with pytest.raises(StoreError):
        EdgeTrust(bundle)
