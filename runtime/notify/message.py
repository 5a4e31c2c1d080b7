"""A message of several events to one receiver, as mail and as JSON. No I/O."""

from __future__ import annotations

import datetime as dt
import email.policy
import email.utils
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import EmailMessage

import msgspec

from sluice.core import rfc3339
from sluice.runtime.notify.events import Event, safe_text

MAX_EVENTS = 50
"""Maximum number of events in one message."""
MAX_SUBJECT_CHARACTERS = 150
_MAIL_POLICY = email.policy.SMTP.clone(raise_on_defect=True)


@dataclass(frozen=True, slots=True)
class Message:
    """A message.

    Attributes:
        cluster: the trust domain of the cluster that sends it.
        events: at most :data:`MAX_EVENTS` events.
        more: how many events wait for the next message.
        at: when it was written, in seconds since the epoch.
    """

    cluster: str
    events: Sequence[Event]
    at: float
    more: int = 0

    @property
    def title(self) -> str:
        """A one-line summary."""
        kinds = Counter(str(each.kind) for each in self.events)
        counts = ", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in kinds.items())
        return f"[sluice] {safe_text(f'{self.cluster}: {counts}')}"[:MAX_SUBJECT_CHARACTERS]

    @property
    def text(self) -> str:
        """The message as text, with a paragraph for each event."""
        paragraphs = [f"{each.what}\n{each.action}\n({_time(each.at)}, {each.subject})" for each in self.events]
        if self.more:
            paragraphs.append(f"{self.more} more follow.")
        return "\n\n".join([self.title, *paragraphs]) + "\n"

    def json(self) -> bytes:
        """The body of a webhook request; chat servers show its ``text``."""
        notifications = [
            {
                "kind": each.kind,
                "key": each.key,
                "subject": each.subject,
                "what": each.what,
                "action": each.action,
                "at": _time(each.at),
            }
            for each in self.events
        ]
        return msgspec.json.encode(
            {
                "text": self.text,
                "title": self.title,
                "cluster": self.cluster,
                "at": _time(self.at),
                "notifications": notifications,
                "more": self.more,
            }
        )

    def mail(self, sender: str, to: Sequence[str]) -> EmailMessage:
        """The message as an e-mail, marked as generated so that it gets no automatic replies (RFC 3834)."""
        mail = EmailMessage(_MAIL_POLICY)
        mail["From"] = sender
        mail["To"] = ", ".join(to)
        mail["Subject"] = self.title
        mail["Date"] = email.utils.format_datetime(dt.datetime.fromtimestamp(self.at, dt.UTC))
        mail["Message-ID"] = email.utils.make_msgid(domain=sender.rpartition("@")[2])
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(self.text)
        return mail


def _time(at: float) -> str:
    return rfc3339(dt.datetime.fromtimestamp(at, dt.UTC))
