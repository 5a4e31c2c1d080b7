"""A job that logs in to OpenBao with its own tokens. Arguments: a directory that it shares with the test; a URL."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import requests

SECONDS = 60


def token(name: str) -> str:
    return (Path(os.environ["SLUICE_TOKEN_DIRECTORY"]) / name).read_text()


def main() -> None:
    """Wait until OpenBao is set up; then print a line of JSON with the result of each attempt."""
    shared, url = Path(sys.argv[1]), sys.argv[2]
    while not (shared / "ca.pem").exists():
        time.sleep(0.1)
    session = requests.Session()
    session.verify = str(shared / "ca.pem")

    def login(role: str, jwt: str) -> tuple[int, Any]:
        got = session.post(f"{url}/v1/auth/jwt/login", json={"role": role, "jwt": jwt}, timeout=SECONDS)
        return got.status_code, got.json()

    status, answer = login("reports", token("openbao"))
    headers = {"X-Vault-Token": answer["auth"]["client_token"]} if status == requests.codes.ok else {}

    def read(path: str) -> Any:
        got = session.get(f"{url}/v1/secret/data/{path}", headers=headers, timeout=SECONDS)
        return got.json()["data"]["data"] if got.ok else got.status_code

    own = token("openbao")
    head, payload, signature = own.split(".")
    told = {
        "login": status,
        "policies": answer["auth"]["policies"] if headers else answer,
        "reports": read("reports"),
        "payroll": read("payroll"),
        "role of others": login("payroll", own)[0],
        "other audience": login("reports", token("api"))[0],
        "forged": login("reports", f"{head}.{payload}.{signature[:-8]}{'A' * 8}")[0],
    }
    (shared / "stolen").write_text(own)
    (shared / "stolen").chmod(0o644)
    print("TOLD", json.dumps(told), flush=True)  # noqa: T201  a pipeline prints


if __name__ == "__main__":
    main()
