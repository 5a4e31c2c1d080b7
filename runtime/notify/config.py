"""Settings of notifications (section ``[notify]`` of ``sluice.toml``)."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from sluice.runtime.notify.kinds import Kind

MAX_RECEIVERS = 4
"""Of both sorts together: what is known of them fits into one small entry."""
MAX_ADDRESSES = 20
SUBMISSION_PORT = 587
"""RFC 6409: with STARTTLS."""
SUBMISSIONS_PORT = 465
"""RFC 8314: TLS from the first byte."""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")
"""RFC 5321, without quoting: nothing in it can end a header."""
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")


class WebhookConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A receiver of JSON by POST over HTTPS. It gets the kinds that it names, and nothing else."""

    name: str
    """Names it in metrics and log lines: a-z, 0-9 and -."""
    kinds: tuple[Kind, ...]
    """Of superseded-renewal, certificate-not-renewed, authority-ends, audit-finding, worker-excluded, job-failed."""
    url: str = ""
    """``https://chat.example.com/hooks/sluice``"""
    url_file: str = ""
    """File (mode 0600) with the URL instead, where it is a secret."""
    ca_file: str = ""
    """Authorities (PEM) of the receiver's certificate; empty: the system's. Its host name is checked, TLS is 1.3."""
    token_file: str = ""
    """File (mode 0600) with a bearer token. Read again for each request."""

    def __post_init__(self) -> None:
        _check_receiver(self.name, self.kinds)
        if bool(self.url) == bool(self.url_file):
            raise ValueError("a webhook has either url or url_file")
        if self.url and not is_https(self.url):
            raise ValueError(f"url {self.url[:200]!r} must be as in https://chat.example.com/hooks/sluice")
        if urlsplit(self.url).query:
            raise ValueError("a url with a query is often a secret: put it into url_file")


class MailConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A receiver of e-mail by SMTP over TLS. It gets the kinds that it names, and nothing else."""

    name: str
    """Names it in metrics and log lines: a-z, 0-9 and -."""
    kinds: tuple[Kind, ...]
    """As those of a webhook."""
    host: str
    """Mail server; its certificate is checked for this name, TLS is 1.3."""
    port: int = 0
    """0: 587 with starttls, 465 with implicit."""
    tls: Literal["starttls", "implicit"] = "starttls"
    """Whether TLS begins after STARTTLS, without which nothing is sent, or with the first byte."""
    sender: str
    """Address in From."""
    to: tuple[str, ...]
    """Addresses that get each mail."""
    user: str = ""
    """Who signs in; empty: nobody."""
    password_file: str = ""
    """File (mode 0600) with the password of user. Read again for each mail."""
    ca_file: str = ""
    """Authorities (PEM) of the server's certificate; empty: the system's."""

    def __post_init__(self) -> None:
        _check_receiver(self.name, self.kinds)
        if not _HOST.fullmatch(self.host):
            raise ValueError(f"host {self.host[:200]!r} must be a host name or an IPv4 address")
        if not 0 <= self.port <= 65535:
            raise ValueError("port must be 0 to 65535")
        if not 1 <= len(self.to) <= MAX_ADDRESSES:
            raise ValueError(f"to must have 1 to {MAX_ADDRESSES} addresses")
        for address in (self.sender, *self.to):
            if not _ADDRESS.fullmatch(address):
                raise ValueError(f"{address[:100]!r} is no address as in ops@example.com")
        if bool(self.user) != bool(self.password_file):
            raise ValueError("user and password_file belong together")
        if not self.user.isprintable() or not self.user.isascii():
            raise ValueError("user must be printable ASCII")

    @property
    def server_port(self) -> int:
        """Where the server listens."""
        return self.port or (SUBMISSION_PORT if self.tls == "starttls" else SUBMISSIONS_PORT)


Receiver = WebhookConfig | MailConfig


class NotifyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who is told what needs people. Without a receiver nobody is, and nothing is looked at."""

    repeat_hours: float = 24.0
    """After so long somebody is told again of what is still so. A failed job is told of once."""
    group_minutes: float = 5.0
    """After a message, what is new is gathered for so long and sent as one."""
    webhooks: tuple[WebhookConfig, ...] = ()
    """Receivers of JSON, as tables ``[[notify.webhooks]]``."""
    mails: tuple[MailConfig, ...] = ()
    """Receivers of e-mail, as tables ``[[notify.mails]]``."""

    def __post_init__(self) -> None:
        if not 0.1 <= self.repeat_hours <= 8760:
            raise ValueError("repeat_hours must be 0.1 to 8760")
        if not 0 <= self.group_minutes <= 1440:
            raise ValueError("group_minutes must be 0 to 1440")
        names = [each.name for each in self.receivers]
        if len(set(names)) != len(names):
            raise ValueError("two receivers have the same name")
        if len(names) > MAX_RECEIVERS:
            raise ValueError(f"there can be {MAX_RECEIVERS} receivers at most")

    @property
    def receivers(self) -> tuple[Receiver, ...]:
        """All of them."""
        return (*self.webhooks, *self.mails)


def is_https(url: str) -> bool:
    """Whether ``url`` is HTTPS, with a host and without credentials in it."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and " " not in url
    return plain and parts.scheme == "https" and bool(parts.hostname) and parts.username is None and port != 0


def _check_receiver(name: str, kinds: tuple[Kind, ...]) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"name {name[:64]!r} must have 1 to 32 of a-z, 0-9 and -, with no - at an end")
    if not kinds:
        raise ValueError(f"kinds must name what {name} is told of: {', '.join(Kind)}")
