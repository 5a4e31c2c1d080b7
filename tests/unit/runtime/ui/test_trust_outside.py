"""The lane for outside connections in a job's trust map."""

from __future__ import annotations

import msgspec

from sluice.core.egress_evidence import EgressRow, EgressVerdict
from sluice.runtime.ui import trust_outside as module
from sluice.runtime.ui.trust_map import trust_map
from sluice.runtime.ui.trust_outside import egress_destinations
from sluice.runtime.ui.trust_picture import draw
from tests.simulated_cluster import TRUST_DOMAIN, spiffe

JOB = "a" * 32


def row(number: int, host: str = "api.example.com", **more: object) -> EgressRow:
    made = EgressRow(
        id=f"{number:032x}",
        job_id=JOB,
        attempt=1,
        process="driver",
        protocol="tcp",
        host=host,
        address="",
        port=443,
        verdict=EgressVerdict.ALLOWED,
        opened_at=float(number),
        bytes_up=1,
        bytes_down=2,
    )
    return msgspec.structs.replace(made, **more)


def test_connections_of_a_process_to_a_destination_are_gathered_into_one_entry() -> None:
    refused = row(2, verdict=EgressVerdict.REFUSED, reason="not_allowed", count=5)
    rows = [row(1), refused, row(3, process="executor/1")]
    found = {
        (destination.process, destination.destination): destination for destination in egress_destinations(rows, "td")
    }
    destination = found[f"spiffe://td/job/{JOB}/driver", "api.example.com:443"]
    assert (destination.count, destination.bytes_up, destination.bytes_down, destination.latest) == (6, 2, 4, 2.0)
    assert (destination.verdict, destination.tone, destination.reasons) == (
        EgressVerdict.REFUSED,
        "bad",
        ("not_allowed",),
    )
    assert found[f"spiffe://td/job/{JOB}/executor/1", "api.example.com:443"].tone == "ok"


def test_only_the_latest_destinations_are_shown() -> None:
    many = [row(number, f"h{number}.example.com") for number in range(module.MAX_DESTINATIONS + 5)]
    shown = {destination.destination for destination in egress_destinations(many, "td")}
    assert len(shown) == module.MAX_DESTINATIONS
    assert "h0.example.com:443" not in shown


def test_destinations_have_a_lane_of_their_own() -> None:
    rows = [row(1), row(2, "evil.example.com", verdict=EgressVerdict.REFUSED, reason="not_allowed")]
    found = trust_map((), now=10.0, outside=egress_destinations(rows, TRUST_DOMAIN))
    links = {found.groups[link.listener].title: link for link in found.links}
    assert {title: (link.tone, link.verdict, link.channel) for title, link in links.items()} == {
        "api.example.com:443": ("ok", "allowed", "egress"),
        "evil.example.com:443": ("bad", "refused", "egress"),
    }
    assert links["evil.example.com:443"].concerns == ("evil.example.com:443 refused: not_allowed",)
    picture = draw(found, of_a_job=True)
    assert [tier.title for tier in picture.tiers] == ["Control", "Outside"]
    assert len(picture.lines) == 2


def test_many_destinations_are_one_box() -> None:
    rows = [row(number, f"h{number}.example.com") for number in range(20)]
    found = trust_map((), now=30.0, outside=egress_destinations(rows, TRUST_DOMAIN))
    (link,) = found.links
    assert found.groups[link.listener].title == "20 destinations"
    assert (link.pairs, link.count, len(link.out)) == (20, 20, 20)


def test_a_destination_with_a_spiffe_id_as_its_name_is_not_drawn_as_a_process() -> None:
    rows = [row(1, spiffe("jobmanager/jm-1"))]
    found = trust_map((), now=10.0, outside=egress_destinations(rows, TRUST_DOMAIN))
    assert {each.role for each in found.processes} == {"driver", "outside"}
