"""Settings of notifications (section ``[notify]`` of ``sluice.toml``)."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from sluice.runtime.notify.kinds import Kind

MAX_RECEIVERS = 4
"""Maximum number of webhooks and mail receivers together, so that their delivery state fits into one pointer."""
MAX_ADDRESSES = 20
SUBMISSION_PORT = 587
"""Message submission with STARTTLS (RFC 6409)."""
SUBMISSIONS_PORT = 465
"""Message submission with implicit TLS (RFC 8314)."""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")
"""An address of RFC 5321 without quoting, so it cannot end a header."""
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")


class WebhookConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A receiver of JSON by POST over HTTPS. It gets only the kinds of notifications that it lists."""

    name: str
    """Name of the receiver in metrics and log lines: a-z, 0-9 and -."""
    kinds: tuple[Kind, ...]
    """Kinds of notifications: superseded-renewal, certificate-not-renewed, authority-ends, audit-finding,
    worker-excluded, job-failed."""
    url: str = ""
    """URL of the webhook, such as ``https://chat.example.com/hooks/sluice``."""
    url_file: str = ""
    """File (mode 0600) with the URL, for a URL that is a secret."""
    ca_file: str = ""
    """CA certificates (PEM) for the receiver; empty: those of the system. TLS 1.3 with host name verification."""
    token_file: str = ""
    """File (mode 0600) with a bearer token. It is read for each request."""

    def __post_init__(self) -> None:
        _check_receiver(self.name, self.kinds)
        if bool(self.url) == bool(self.url_file):
            raise ValueError("a webhook needs either url or url_file")
        if self.url and not is_https(self.url):
            raise ValueError(f"url {self.url[:200]!r} must be like https://chat.example.com/hooks/sluice")
        if urlsplit(self.url).query:
            raise ValueError("a url with a query is often a secret: put it into url_file")


class MailConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A receiver of e-mail by SMTP over TLS. It gets only the kinds of notifications that it lists."""

    name: str
    """Name of the receiver in metrics and log lines: a-z, 0-9 and -."""
    kinds: tuple[Kind, ...]
    """Kinds of notifications, as for a webhook."""
    host: str
    """Host name of the mail server, verified against its certificate; TLS 1.3."""
    port: int = 0
    """Port of the mail server; 0: 587 with starttls, 465 with implicit."""
    tls: Literal["starttls", "implicit"] = "starttls"
    """How TLS starts: with STARTTLS, which the server must offer, or implicitly with the first byte."""
    sender: str
    """Address in the From header."""
    to: tuple[str, ...]
    """Addresses that each mail is sent to."""
    user: str = ""
    """User name for authentication at the mail server; empty: no authentication."""
    password_file: str = ""
    """File (mode 0600) with the user's password. It is read for each mail."""
    ca_file: str = ""
    """CA certificates (PEM) for the mail server; empty: those of the system."""

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
                raise ValueError(f"{address[:100]!r} is not an address such as ops@example.com")
        if bool(self.user) != bool(self.password_file):
            raise ValueError("set both user and password_file, or neither")
        if not self.user.isprintable() or not self.user.isascii():
            raise ValueError("user must be printable ASCII")

    @property
    def server_port(self) -> int:
        """The port to connect to."""
        return self.port or (SUBMISSION_PORT if self.tls == "starttls" else SUBMISSIONS_PORT)


Receiver = WebhookConfig | MailConfig


class NotifyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who is notified of events that need action. Without receivers, no events are collected."""

    repeat_hours: float = 24.0
    """Hours after which a condition that still holds is notified again. A failed job is notified only once."""
    group_minutes: float = 5.0
    """Minutes after a message in which new events are collected and then sent as one message."""
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
        """All receivers: webhooks, then mail receivers."""
        return (*self.webhooks, *self.mails)


def is_https(url: str) -> bool:
    """Whether ``url`` is an HTTPS URL with a host and without credentials."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and " " not in url
    return plain and parts.scheme == "https" and bool(parts.hostname) and parts.username is None and port != 0


def _check_receiver(name: str, kinds: tuple[Kind, ...]) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"name {name[:64]!r} must have 1 to 32 of a-z, 0-9 and -, and must not begin or end with -")
    if not kinds:
        raise ValueError(f"kinds of {name} must list at least one of {', '.join(Kind)}")
