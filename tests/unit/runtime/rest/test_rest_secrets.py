"""Secrets over REST: values can be stored, and no part of a value is ever returned."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from sluice.runtime.jobmanager.secrets import MAX_VALUE_BYTES
from tests.unit.runtime.rest.test_rest import Rest, form, rest

__all__ = ["rest"]

VALUE = b"correct horse battery staple"
KEEPER = ("kim", "admin")
BINARY = {"content-type": "application/octet-stream"}
TO_ALICE = {"kind": "user", "name": "alice"}


async def put(rest: Rest, name: str = "db", value: bytes = VALUE) -> tuple[int, Any]:
    return await rest.call("POST", f"/v1/secrets/{name}/versions", by=KEEPER, data=value, headers=dict(BINARY))


async def test_a_secret_is_stored_granted_listed_and_removed(rest: Rest) -> None:
    status, view = await put(rest)
    assert (status, view["name"], view["grants"]) == (201, "db", [])
    assert view["versions"][0]["created_by"] == "kim"
    assert view["versions"][0]["masked"]
    assert (await rest.call("POST", "/v1/secrets/db/grants", by=KEEPER, json=TO_ALICE))[1]["grants"] == [TO_ALICE]
    answers = [await rest.call("GET", path, by=KEEPER) for path in ("/v1/secrets", "/v1/secrets/db")]
    assert [status for status, _ in answers] == [200, 200]
    assert VALUE.decode() not in json.dumps(answers)
    status, rotated = await rest.call("POST", "/v1/secret-keys/rotation", by=("root", "admin"), json={})
    assert (status, rotated["rewrapped"]) == (200, 1)
    status, view = await rest.call("DELETE", "/v1/secrets/db/grants?kind=user&name=alice", by=KEEPER)
    assert (status, view["grants"]) == (200, [])
    assert (await rest.call("DELETE", "/v1/secrets/db?version=1", by=KEEPER))[0] == 200
    assert (await rest.call("DELETE", "/v1/secrets/db", by=KEEPER))[0] == 200
    assert (await rest.call("GET", "/v1/secrets", by=KEEPER))[1] == {"secrets": []}


@pytest.mark.parametrize("path", ["", "/versions", "/versions/1", "/value"])
async def test_no_route_returns_the_value_of_a_secret(rest: Rest, path: str) -> None:
    await put(rest)
    async with rest.session.get(
        f"http://rest/v1/secrets/db{path}", headers=rest.gateway.headers("GET", "/v1/secrets/db", "root", "admin")
    ) as answer:
        assert VALUE not in await answer.read()


@pytest.mark.parametrize("name", ["..", "a%2Fb", "%2e%2e%2fhome", "-x", "a" * 65, "%00"])
async def test_a_secret_name_that_is_not_plain_is_refused(rest: Rest, name: str) -> None:
    async with rest.session.post(
        f"http://rest/v1/secrets/{name}/versions",
        data=VALUE,
        headers=rest.gateway.headers("POST", f"/v1/secrets/{name}/versions", *KEEPER) | BINARY,
    ) as answer:
        assert answer.status in {400, 401, 404}
    assert (await rest.call("GET", "/v1/secrets", by=KEEPER))[1] == {"secrets": []}


async def test_secret_values_are_bounded_in_size_and_must_be_bytes(rest: Rest) -> None:
    assert (await put(rest, value=b""))[0] == 400
    assert (await put(rest, value=b"x" * (MAX_VALUE_BYTES + 1)))[0] == 400
    assert (await rest.call("POST", "/v1/secrets/db/versions", by=KEEPER, json={"value": "x"}))[0] == 400
    assert (await put(rest, value=b"x" * MAX_VALUE_BYTES))[0] == 201


async def test_a_grant_to_a_job_name_without_its_owner_is_refused(rest: Rest) -> None:
    await put(rest)
    status, problem = await rest.call("POST", "/v1/secrets/db/grants", by=KEEPER, json={"kind": "job", "name": "load"})
    assert status == 400
    assert "everybody may give a job any name" in problem["detail"]


def wanting(*secrets: Mapping[str, object]) -> aiohttp.FormData:
    return form({"secrets": list(secrets)})


async def test_a_submission_can_name_only_granted_secrets(rest: Rest) -> None:
    await put(rest)
    reference = {"name": "db", "file": "password"}
    refused = await rest.call("POST", "/v1/jobs", data=wanting(reference))
    unknown = await rest.call("POST", "/v1/jobs", data=wanting({"name": "dc"}))
    assert refused[0] == unknown[0] == 403
    # Whoever asks does not learn whether there is such a secret.
    assert refused[1]["detail"].replace("secret db", "secret dc") == unknown[1]["detail"]
    assert rest.stored() == []
    await rest.call("POST", "/v1/secrets/db/grants", by=KEEPER, json=TO_ALICE)
    status, answer = await rest.call("POST", "/v1/jobs", data=wanting(reference))
    assert status == 202
    submission = rest.dispatcher.submitted[answer["job_id"]]
    assert [(each.name, each.file) for each in submission.secrets] == [("db", "password")]
    assert (await rest.call("POST", "/v1/jobs", by=("bob", "submitter"), data=wanting(reference)))[0] == 403
    assert (await rest.call("POST", "/v1/jobs", data=wanting({"name": "db", "version": 7})))[0] == 403


@pytest.mark.parametrize("file", ["../x", "/etc/passwd", "a/b", ".", ".."])
async def test_a_secret_file_name_that_is_not_plain_is_refused(rest: Rest, file: str) -> None:
    await put(rest)
    await rest.call("POST", "/v1/secrets/db/grants", by=KEEPER, json=TO_ALICE)
    assert (await rest.call("POST", "/v1/jobs", data=wanting({"name": "db", "file": file})))[0] == 400


async def test_a_spark_connect_session_can_name_only_granted_secrets_when_it_starts(rest: Rest) -> None:
    await put(rest)
    reference = {"name": "db", "executors": True}
    refused = await rest.call("POST", "/v1/connect/sessions", json={"secrets": [reference]})
    assert refused[0] == 403
    assert rest.dispatcher.submitted == {}
    await rest.call("POST", "/v1/secrets/db/grants", by=KEEPER, json=TO_ALICE)
    assert (await rest.call("POST", "/v1/connect/sessions", json={"secrets": [{"name": "../db"}]}))[0] == 400
    assert (await rest.call("POST", "/v1/connect/sessions", json={"secrets": [reference, reference]}))[0] == 400
    status, session = await rest.call("POST", "/v1/connect/sessions", json={"secrets": [reference]})
    assert status in {200, 202}
    submission = rest.dispatcher.submitted[session["job_id"]]
    assert [(each.name, each.executors) for each in submission.secrets] == [("db", True)]
    # Queries find this session; it gets nothing else any more.
    assert (await rest.call("POST", "/v1/connect/session"))[1]["job_id"] == session["job_id"]
    status, problem = await rest.call("POST", "/v1/connect/sessions", json={"secrets": [reference]})
    assert (status, session["job_id"] in problem["detail"]) == (409, True)
    assert len(rest.dispatcher.submitted) == 1
