from .attachments import (
    AttachmentClient as AttachmentClient,
    AttachmentFailed as AttachmentFailed,
    AttachmentServer as AttachmentServer,
    ReceivedAttachment as ReceivedAttachment,
    attachment_sockets as attachment_sockets,
)
from .egress_rules import EgressRules as EgressRules, WouldRefuse as WouldRefuse
from .job_network import JobNetwork as JobNetwork
from .known_listeners import AskHosts as AskHosts, KnownListeners as KnownListeners
from .relayed_egress import RelayedEgress as RelayedEgress
from .reserved_ports import PortsNotReserved as PortsNotReserved, ReservedPorts as ReservedPorts
from .rules import JobRules as JobRules
from .waiting import WaitingNetwork as WaitingNetwork
