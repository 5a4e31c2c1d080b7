"""The URLs of the ACME server, made and recognised. No I/O."""

from __future__ import annotations

import re

PREFIX = "/acme"
DIRECTORY_PATH = f"{PREFIX}/directory"
NEW_NONCE_PATH = f"{PREFIX}/new-nonce"
NEW_ACCOUNT_PATH = f"{PREFIX}/new-account"
NEW_ORDER_PATH = f"{PREFIX}/new-order"
REVOKE_PATH = f"{PREFIX}/revoke-cert"
KEY_CHANGE_PATH = f"{PREFIX}/key-change"

ACCOUNT = re.compile(rf"{PREFIX}/account/([A-Za-z0-9_-]{{1,64}})")
ACCOUNT_ORDERS = re.compile(rf"{PREFIX}/account/([A-Za-z0-9_-]{{1,64}})/orders")
ORDER = re.compile(rf"{PREFIX}/order/([A-Za-z0-9_-]{{1,64}})")
FINALIZE = re.compile(rf"{PREFIX}/order/([A-Za-z0-9_-]{{1,64}})/finalize")
AUTHORIZATION = re.compile(rf"{PREFIX}/authorization/([A-Za-z0-9_-]{{1,64}})/([0-9]{{1,3}})")
CHALLENGE = re.compile(rf"{PREFIX}/challenge/([A-Za-z0-9_-]{{1,64}})/([0-9]{{1,3}})/(http-01|tls-alpn-01|dns-01)")
CERTIFICATE = re.compile(rf"{PREFIX}/certificate/([0-9a-f]{{1,40}})")


class Urls:
    """The absolute URLs below ``base``, which has no slash at its end."""

    def __init__(self, base: str) -> None:
        self.base = base

    def at(self, path: str) -> str:
        """The URL of a path."""
        return self.base + path

    def directory(self) -> dict[str, object]:
        """The directory with the URLs that a client starts from (RFC 8555, 7.1.1)."""
        return {
            "newNonce": self.at(NEW_NONCE_PATH),
            "newAccount": self.at(NEW_ACCOUNT_PATH),
            "newOrder": self.at(NEW_ORDER_PATH),
            "revokeCert": self.at(REVOKE_PATH),
            "keyChange": self.at(KEY_CHANGE_PATH),
        }

    def account(self, account: str) -> str:
        """The URL of an account, which is also its key id."""
        return self.at(f"{PREFIX}/account/{account}")

    def account_of(self, kid: str) -> str:
        """The id of the account that a key id names; empty if it is not of this server."""
        if not kid.startswith(self.base):
            return ""
        found = ACCOUNT.fullmatch(kid[len(self.base) :])
        return found[1] if found else ""

    def orders(self, account: str) -> str:
        """The URL of an account's list of orders."""
        return f"{self.account(account)}/orders"

    def order(self, order: str) -> str:
        """The URL of an order."""
        return self.at(f"{PREFIX}/order/{order}")

    def finalize(self, order: str) -> str:
        """The URL that finalizes an order."""
        return f"{self.order(order)}/finalize"

    def authorization(self, order: str, index: int) -> str:
        """The URL of the authorization of one name of an order."""
        return self.at(f"{PREFIX}/authorization/{order}/{index}")

    def challenge(self, order: str, index: int, kind: str) -> str:
        """The URL of one of its challenges."""
        return self.at(f"{PREFIX}/challenge/{order}/{index}/{kind}")

    def certificate(self, serial: str) -> str:
        """The URL of a certificate."""
        return self.at(f"{PREFIX}/certificate/{serial}")
