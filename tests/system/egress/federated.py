"""A job that authenticates to other services with its tokens, using unchanged clients.

Arguments: the directory shared with the test, and the name of a series of steps.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet
import requests
from pyarrow import fs
from pyspark.sql import SparkSession
from spiffe import SpiffeId, WorkloadApiClient

SECONDS = 60


def session(told: dict[str, Any]) -> Any:
    """Return a boto3 session; it finds role and token by itself.

    The environment tells it where S3 and STS are, as users of boto3 do.
    """
    sys.path.append(told["packages"])
    os.environ |= {
        "AWS_ENDPOINT_URL": told["s3"],
        "AWS_CA_BUNDLE": told["ca"],
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }
    return importlib.import_module("boto3").Session()


def token(name: str) -> str:
    return (Path(os.environ["SLUICE_TOKEN_DIRECTORY"]) / name).read_text()


def by_boto3(told: dict[str, Any]) -> str:
    client = session(told).client("s3")
    client.put_object(Bucket=told["bucket"], Key="today", Body=b"written by a job")
    return str(client.get_object(Bucket=told["bucket"], Key="today")["Body"].read().decode())


def by_boto3_in_executors(told: dict[str, Any]) -> str:
    bucket = told["bucket"]

    def write(number: int) -> str:
        client = session(told).client("s3")
        client.put_object(Bucket=bucket, Key=f"part-{number}", Body=str(number).encode())
        return str(client.get_object(Bucket=bucket, Key=f"part-{number}")["Body"].read().decode())

    found = SparkSession.builder.getOrCreate().sparkContext.parallelize(range(4), 2).map(write).collect()
    return ",".join(found)


def by_pyarrow(told: dict[str, Any]) -> str:
    """Write and read a Parquet data set with the credentials that boto3 got for the role."""
    got = session(told).get_credentials().get_frozen_credentials()
    place = urlsplit(told["s3"])
    connect: Any = fs.S3FileSystem  # its types are of an older version
    s3 = connect(
        access_key=got.access_key,
        secret_key=got.secret_key,
        session_token=got.token,
        endpoint_override=place.netloc,
        scheme=place.scheme,
        region="us-east-1",
        tls_ca_file_path=told["ca"],
    )
    folder = f"{told['bucket']}/table"
    for number in range(3):
        rows = pa.table({"n": list(range(number * 100_000, (number + 1) * 100_000))})
        pyarrow.parquet.write_table(rows, f"{folder}/{number}.parquet", filesystem=s3)
    read = pyarrow.dataset.dataset(folder, filesystem=s3, format="parquet").to_table()
    return str(pyarrow.compute.sum(read.column("n")).as_py())


def assumed(told: dict[str, Any], audience: str, role: str) -> str:
    """Try to assume ``role`` with the token for ``audience``; return STS's answer."""
    client = session(told).client("sts")
    try:
        client.assume_role_with_web_identity(
            RoleArn=told["roles"][role], RoleSessionName="job", WebIdentityToken=token(audience)
        )
    except client.exceptions.ClientError as error:
        return f"refused with {error.response['ResponseMetadata']['HTTPStatusCode']}"
    return "taken"


def roles(told: dict[str, Any]) -> str:
    """Try each token with each role; each token may take only its own."""
    return json.dumps(
        {
            f"{audience} {role}": assumed(told, audience, role)
            for audience in told["audiences"]
            for role in told["roles"]
        }
    )


def workload_api(told: dict[str, Any]) -> str:
    """Ask the Workload API socket for tokens.

    It gives only tokens of this process, and only for audiences in the policy.
    """

    def asked(audience: str, subject: str = "") -> str:
        with WorkloadApiClient() as client:
            try:
                return str(client.fetch_jwt_svid({audience}, SpiffeId(subject) if subject else None).spiffe_id)
            except Exception as raised:  # noqa: BLE001  whatever the library makes of it
                return f"refused: {raised}"

    return json.dumps({"own": asked("api"), "audience": asked("not-in-policy"), "subject": asked("api", told["other"])})


def service(told: dict[str, Any]) -> str:
    """Return the answers to several tokens from a service behind an Envoy that verifies tokens."""

    def answer(headers: dict[str, str]) -> str:
        got = requests.get(told["service"], headers=headers, timeout=SECONDS, verify=told["ca"])
        return f"{got.status_code} {got.text}"

    def bearer(text: str) -> dict[str, str]:
        return {"authorization": f"Bearer {text}"}

    own = token("api")
    head, payload, signature = own.split(".")
    forged = f"{head}.{payload}.{signature[:-8]}{'A' * 8}"
    answers = {"own": bearer(own), "audience": bearer(token("payroll")), "forged": bearer(forged), "none": {}}
    return json.dumps({name: answer(headers) for name, headers in answers.items()})


def stolen(told: dict[str, Any]) -> str:
    """Copy a token to a shared file, as a thief would; the copy is valid as long as the token."""
    target = Path(told["shared"]) / "stolen"
    target.write_text(token("s3-reports"))
    target.chmod(0o644)
    return assumed(told, "s3-reports", "s3-reports")


STEPS: dict[str, tuple[Callable[[dict[str, Any]], str], ...]] = {
    "owner": (by_boto3, by_boto3_in_executors, by_pyarrow, roles, workload_api, service, stolen),
    "other": (service,),
}


def main() -> None:
    """Wait until the test has written the settings; then print a line of JSON for each step."""
    shared, which = Path(sys.argv[1]), sys.argv[2]
    while not (shared / "told").exists():
        time.sleep(0.1)
    told = json.loads((shared / "told").read_text())
    for step in STEPS[which]:
        try:
            result, error = step(told), ""
        except Exception as raised:  # noqa: BLE001  whatever the library makes of it is what is looked at
            result, error = "", f"{type(raised).__name__}: {raised}"[:600]
        print("STEP", json.dumps([step.__name__, result, error]), flush=True)  # noqa: T201  a pipeline prints


if __name__ == "__main__":
    main()
