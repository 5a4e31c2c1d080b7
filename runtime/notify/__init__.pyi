from .config import (
    MailConfig as MailConfig,
    NotifyConfig as NotifyConfig,
    Receiver as Receiver,
    WebhookConfig as WebhookConfig,
)
from .errors import NotifyError as NotifyError
from .events import (
    Event as Event,
    audit_finding as audit_finding,
    authority_near_its_end as authority_near_its_end,
    certificate_not_renewed as certificate_not_renewed,
    certificates_in as certificates_in,
    job_failed as job_failed,
    sample_event as sample_event,
    superseded_renewal as superseded_renewal,
    worker_excluded as worker_excluded,
)
from .kinds import Kind as Kind
from .message import Message as Message
from .notifier import Notifier as Notifier, Source as Source
from .senders import sender_of as sender_of
