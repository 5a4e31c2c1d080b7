"""Do what an operator of Ceph does, with boto3.

Reads a JSON document from standard input, and prints another one. The hostname in the S3 URL resolves to
the given address, as it does for the test's jobs.
"""

from __future__ import annotations

import importlib
import json
import socket
import sys
from typing import Any
from urllib.parse import urlsplit

boto3: Any = importlib.import_module("boto3")
errors: Any = importlib.import_module("botocore.exceptions")
config: Any = importlib.import_module("botocore.config")


def client(told: dict[str, Any], service: str) -> Any:
    access, secret = told["keys"]
    return boto3.client(
        service,
        endpoint_url=told["url"],
        region_name="us-east-1",
        verify=told["ca"],
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        config=config.Config(
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"total_max_attempts": 1},
        ),
    )


def document(statement: dict[str, Any]) -> str:
    """Return a policy document without spaces, which this Ceph would read as plus signs."""
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]}, separators=(",", ":"))


def federate(told: dict[str, Any]) -> str:
    """Create a provider, a bucket, and for each audience a role that may write to the bucket."""
    issuer, audiences = told["issuer"], told["audiences"]
    iam, host = client(told, "iam"), issuer.removeprefix("https://")
    iam.create_open_id_connect_provider(Url=issuer, ClientIDList=audiences, ThumbprintList=told["thumbprints"])
    client(told, "s3").create_bucket(Bucket=told["bucket"])
    for audience in audiences:
        trust = {
            "Effect": "Allow",
            "Principal": {"Federated": [f"arn:aws:iam:::oidc-provider/{host}"]},
            "Action": ["sts:AssumeRoleWithWebIdentity"],
            "Condition": {"StringEquals": {f"{host}:app_id": audience}},
        }
        iam.create_role(RoleName=audience, AssumeRolePolicyDocument=document(trust))
        allowed = {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*"]}
        iam.put_role_policy(
            RoleName=audience,
            PolicyName="s3",
            PolicyDocument=document(allowed),
        )
    return "federated"


def assume(told: dict[str, Any]) -> str:
    """Try to assume a role with a token; return ``taken`` or the refusal with its HTTP status."""
    wanted = told["assume"]
    try:
        client(told, "sts").assume_role_with_web_identity(
            RoleArn=wanted["role"], RoleSessionName="somebody", WebIdentityToken=wanted["token"]
        )
    except errors.ClientError as error:
        return f"refused with {error.response['ResponseMetadata']['HTTPStatusCode']}"
    return "taken"


def main() -> None:
    told = json.loads(sys.stdin.read())
    asked = socket.getaddrinfo
    name = urlsplit(told["url"]).hostname

    def resolve(host: Any, *rest: Any, **more: Any) -> Any:
        return asked(told["address"] if host == name else host, *rest, **more)

    socket.getaddrinfo = resolve
    answer = assume(told) if "assume" in told else federate(told)
    print(json.dumps(answer))  # noqa: T201  the test reads it


if __name__ == "__main__":
    main()
