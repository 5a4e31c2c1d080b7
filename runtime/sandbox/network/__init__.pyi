from .broker import DECISION_SECONDS as DECISION_SECONDS
from .events import (
    Address as Address,
    Answer as Answer,
    Connect as Connect,
    Connection as Connection,
    ConnectionObserver as ConnectionObserver,
    Decision as Decision,
    Gate as Gate,
    HostAddress as HostAddress,
    Inside as Inside,
    Refusal as Refusal,
    Refuse as Refuse,
    Rules as Rules,
    Traffic as Traffic,
)
from .maker import new_network as new_network
from .network import Attachment as Attachment, Network as Network
from .trial import try_network as try_network
