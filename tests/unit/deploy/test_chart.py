"""The Helm chart's data: its connections match the channel table, and its values match their schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from sluice.pki.channels import MAY_CONNECT, MAY_LISTEN, Channel
from sluice.pki.spiffe_id import Role

CHART = Path(__file__).parents[3] / "deploy" / "helm" / "sluice"
TABLE: dict[str, Any] = yaml.safe_load((CHART / "edges.yaml").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
ROLES = {
    "ca": {Role.CA},
    "auth": {Role.AUTH},
    "gateway": {Role.GATEWAY},
    "jobmanager": {Role.JOBMANAGER},
    "shuffle-manager": {Role.SHUFFLE_MANAGER},
    "shuffle-worker": {Role.SHUFFLE_WORKER},
    "taskmanager": {Role.TASKMANAGER, Role.DRIVER, Role.EXECUTOR},
}
"""Who is in the pods of a component."""
NOT_DEPLOYED = {
    Channel.CONNECT: "the relay for Spark Connect is not in the chart",
    Channel.ZOOKEEPER: "Leases elect",
    Channel.EDGE: "users are outside: its own entry",
}
NO_LISTENER = {(Channel.RPC, "taskmanager"), (Channel.RPC, "shuffle-worker")}
"""ADR 4."""
NOT_USED = {
    (Channel.RPC, "jobmanager", "jobmanager"),  # a standby forwards REST
    (Channel.RPC, "jobmanager", "shuffle-manager"),
    (Channel.RPC, "jobmanager", "shuffle-worker"),
    (Channel.RPC, "shuffle-manager", "shuffle-manager"),
    (Channel.RPC, "shuffle-manager", "taskmanager"),
    (Channel.DATA, "taskmanager", "shuffle-worker"),  # workers connect to workers
}
"""Listener and connector whom the role alone would admit, and who have nothing to say to each other."""


def edges() -> set[tuple[Channel, str, str]]:
    """Return channel, listener and connector of every connection that the chart allows."""
    return {(Channel(each["channel"]), each["to"], one) for each in TABLE["edges"] for one in each["from"]}


def may_connect(channel: Channel) -> frozenset[Role]:
    """Return the roles that may connect to a channel.

    Clients of the enrolment port show a credential instead of a certificate. Their roles are those
    that later renew over the CA channel.
    """
    return MAY_CONNECT[Channel.CA if channel is Channel.ENROLMENT else channel]


def test_every_edge_of_the_chart_is_in_the_channel_table() -> None:
    for channel, listener, connector in edges():
        assert ROLES[listener] & MAY_LISTEN[channel], (channel, listener)
        assert ROLES[connector] & may_connect(channel), (channel, connector)
    assert (TABLE["edge"]["channel"], TABLE["edge"]["to"]) == ("edge", "gateway")


def test_every_entry_of_the_channel_table_is_an_edge_of_the_chart_or_excepted() -> None:
    found = {
        (channel, listener, connector)
        for channel in set(Channel) - set(NOT_DEPLOYED)
        for listener in ROLES
        if ROLES[listener] & MAY_LISTEN[channel] and (channel, listener) not in NO_LISTENER
        for connector in ROLES
        if ROLES[connector] & may_connect(channel)
    }
    assert found - NOT_USED == edges()
    assert found >= NOT_USED, "nothing is excused that the table does not allow"


def test_only_data_between_executors_has_no_fixed_port() -> None:
    assert [(each["channel"], each["to"], each["from"]) for each in TABLE["edges"] if not each["port"]] == [
        ("data", "taskmanager", ["taskmanager"])
    ]


def test_the_defaults_fit_the_schema() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)


def test_schema_and_default_values_have_the_same_keys() -> None:
    def walk(values: dict[str, Any], schema: dict[str, Any], where: str) -> None:
        if "properties" not in schema or where.endswith("resources"):
            return
        assert schema.get("additionalProperties") is False, where
        assert set(values) | {"global"} >= set(schema["properties"]) or where.endswith("extraEgress"), where
        for key, value in values.items():
            assert key in schema["properties"], f"{where}.{key}"
            if isinstance(value, dict):
                walk(value, schema["properties"][key], f"{where}.{key}")

    walk(VALUES, SCHEMA, "values")


@pytest.mark.parametrize(
    "change",
    [
        {"isolation": {"level": "half"}},
        {"isolation": {"seccompProfile": "../../etc/passwd"}},
        {"gateway": {"serverNames": []}},
        {"gateway": {"serverNames": ['x"]\n[ca]\nhost="']}},
        {"gateway": {"certificateSecret": "../secret"}},
        {"trustDomain": 'td"\n'},
        {"ha": {"cluster": "a/b"}},
        {"ha": {"lease": 1}},
        {"jobmanager": {"replicas": 0}},
        {"nothing": 1},
        {"networkPolicy": {"apiServer": {"cidr": "kube"}}},
    ],
)
def test_the_schema_refuses_wrong_values(change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(change, SCHEMA)


def test_no_template_makes_a_secret_or_a_privileged_container() -> None:
    for path in (CHART / "templates").iterdir():
        text = path.read_text()
        assert "kind: Secret" not in text, path.name
        for word in (
            "privileged: true",
            "hostNetwork",
            "hostPID",
            "hostIPC",
            "hostPath",
            "allowPrivilegeEscalation: true",
        ):
            assert word not in text, (path.name, word)


def test_the_first_process_of_a_taskmanagers_pod_reaps_orphans() -> None:
    template = (CHART / "templates" / "_helpers.tpl").read_text().partition('define "sluice.podTemplate"')[2]
    assert '{{- if eq .component "taskmanager" }}\n  # The first' in template
    assert "\n  shareProcessNamespace: true\n" in template


def test_no_process_is_ready_by_what_an_earlier_run_has_left() -> None:
    found = 0
    for name in ("_helpers.tpl", "pods.yaml"):
        lines = (CHART / "templates" / name).read_text().splitlines()
        for before, line, after in zip(lines, lines[1:], [*lines[2:], ""], strict=False):
            if line.strip().startswith("args:") and ("[run," in line or after.strip() == "- run"):
                assert 'include "sluice.command"' in before, (name, line)
                found += 1
    assert found == 3
