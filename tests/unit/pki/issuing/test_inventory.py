"""The inventory: what it may contain; all of it is checked before anything is issued."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, strategies as st

from sluice.core.errors import PkiError
from sluice.pki.config import PkiConfig
from sluice.pki.issuing.inventory import (
    MAX_INVENTORY_BYTES,
    InventoryError,
    parse_inventory,
)
from sluice.pki.issuing.leaf import LeafRequest
from sluice.pki.x509.profiles import AuthorityKind, Purpose

CONFIG = PkiConfig()


def requests(text: str) -> list[LeafRequest]:
    inventory = parse_inventory(text.encode(), CONFIG)
    found = list(inventory)
    assert len(inventory) == len(found)
    return found


def entry(*lines: str) -> str:
    return "\n".join(["[[identity]]", *lines])


def test_an_inventory_of_a_few_lines_expands_to_all_requests_of_a_cluster() -> None:
    found = requests(
        """
        trust_domain = "sluice.local"
        [defaults]
        lifetime = "12h"
        [[identity]]
        id = "jobmanager/jm-1"
        dns = ["JM-1.example"]
        ips = ["10.0.0.1"]
        lifetime = "2d"
        [[identity]]
        id = "taskmanager/tm-{n}"
        dns = ["TM-{n}.example", "tm-{n}.example"]
        accept = ["spiffe://sluice.local/job/*"]
        first = 9
        count = 3
        [[identity]]
        id = "spiffe://sluice.local/gateway/envoy"
        edge_server = true
        dns = ["cluster.example"]
        """
    )
    assert [str(request.names.spiffe_id).removeprefix("spiffe://sluice.local/") for request in found] == [
        "jobmanager/jm-1",
        "taskmanager/tm-9",
        "taskmanager/tm-10",
        "taskmanager/tm-11",
        "gateway/envoy",
    ]
    assert [request.names.dns for request in found[:3]] == [("jm-1.example",), ("tm-9.example",), ("tm-10.example",)]
    assert (found[0].lifetime, found[1].lifetime) == (dt.timedelta(days=2), dt.timedelta(hours=12))
    assert found[2].accept == ("spiffe://sluice.local/job/*",)
    assert (found[4].profile.authority, found[4].profile.purposes) == (AuthorityKind.EDGE, (Purpose.SERVER,))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("identity = [", "not valid TOML", id="not-toml"),
        pytest.param("[[identity]]\nid = 'user/\udcff'", "not valid TOML", id="not-utf-8"),
        pytest.param("", "identity", id="empty"),
        pytest.param(entry("id = 'taskmanager/a'", "dsn = []"), "dsn", id="unknown-key"),
        pytest.param(entry("id = 'boss/a'"), "entry 1 (boss/a): .*no known role", id="unknown-role"),
        pytest.param(entry("id = 'taskmanager/a'") + "\n" + entry("id = 'taskmanager/a'"), "there twice", id="twice"),
        pytest.param(
            entry("id = 'taskmanager/a-2'") + "\n" + entry("id = 'taskmanager/a-{n}'", "count = 3"),
            "entry 2: taskmanager/a-2 is there twice",
            id="twice-by-number",
        ),
        pytest.param(
            entry("id = 'taskmanager/a'") + "\n" + entry("id = 'spiffe://sluice.local/taskmanager/a'"),
            "there twice",
            id="twice-in-two-ways",
        ),
        pytest.param(entry("id = 'taskmanager/a'", "count = 2"), "no {n} in its id", id="count-without-n"),
        pytest.param(entry("id = 'taskmanager/{n}'"), "without a count", id="n-without-count"),
        pytest.param(entry("id = 'taskmanager/{n}'", "count = 0"), "0 identities", id="none"),
        pytest.param(entry("id = 'taskmanager/{n}'", "count = -5"), "-5 identities", id="negative"),
        pytest.param(entry("id = 'taskmanager/{n}'", "count = 100001"), "100001", id="too-many"),
        pytest.param(
            entry("id = 'taskmanager/a{n}'", "count = 90000") + "\n" + entry("id = 'user/b{n}'", "count = 90000"),
            "180000 identities are more than",
            id="too-many-together",
        ),
        pytest.param(entry("id = 'taskmanager/a'", "dns = ['no name']"), "not a DNS name", id="bad-name"),
        pytest.param(
            entry("id = 'taskmanager/{n}'", f"dns = ['{'a' * 62}{{n}}']", "count = 10"), "DNS name", id="last-too-long"
        ),
        pytest.param(entry("id = 'taskmanager/a'", "ips = ['10.0.0.256']"), "not an IP address", id="bad-address"),
        pytest.param(entry("id = 'taskmanager/a'", "lifetime = 'long'"), "90m, 12h, 30d", id="bad-lifetime"),
        pytest.param(entry("id = 'taskmanager/a'", "lifetime = '900d'"), "not possible", id="too-long-a-life"),
        pytest.param(entry("id = 'taskmanager/a'", "edge_server = true", "dns = ['a']"), "gateway", id="not-public"),
        pytest.param(entry("id = 'gateway/a'", "edge_server = true"), "host name", id="public-without-a-name"),
        pytest.param(entry("id = 'spiffe://other/user/a'"), "not of trust domain", id="foreign"),
        pytest.param("trust_domain = 'other'\n" + entry("id = 'user/a'"), "trust domain 'other'", id="all-foreign"),
        pytest.param("#" * (MAX_INVENTORY_BYTES + 1), "larger than", id="huge"),
    ],
)
def test_a_mistake_in_an_inventory_is_named_in_the_error(text: str, says: str) -> None:
    with pytest.raises(InventoryError, match=says.replace("(", r"\(").replace(")", r"\)").replace("{n}", r"\{n\}")):
        parse_inventory(text.encode("utf-8", "surrogateescape"), CONFIG)


@given(st.text(max_size=200) | st.builds(entry, st.text(max_size=40), st.text(max_size=40)))
def test_any_text_is_parsed_as_an_inventory_or_raises_a_pki_error(text: str) -> None:
    try:
        found = parse_inventory(text.encode("utf-8", "surrogatepass"), CONFIG)
    except PkiError:
        return
    assert len(list(found)) == len(found)
