from .baseline import apply_baseline as apply_baseline, read_baseline as read_baseline
from .catalogue import CHECKS as CHECKS
from .check import Check as Check
from .containers import (
    Container as Container,
    containers_of as containers_of,
    listeners_of as listeners_of,
    sharing_run as sharing_run,
)
from .discovery import find as find, process_id as process_id
from .errors import AuditError as AuditError, InputError as InputError
from .identities import HomeIdentities as HomeIdentities
from .intrusion import paused as paused
from .model import Kind as Kind, Listener as Listener, Report as Report, Severity as Severity
from .network import in_network_of as in_network_of
from .runner import applicable as applicable, examine as examine, joined as joined
from .subject import EdgeAccess as EdgeAccess, Options as Options, Subject as Subject
from .targets import read_anchors as read_anchors, read_targets as read_targets
