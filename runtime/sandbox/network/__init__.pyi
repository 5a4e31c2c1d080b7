from .connecting import DECISION_SECONDS as DECISION_SECONDS
from .events import (
    Address as Address,
    Answer as Answer,
    Connect as Connect,
    Connection as Connection,
    Decision as Decision,
    Gate as Gate,
    HostAddress as HostAddress,
    Inside as Inside,
    Refusal as Refusal,
    Refuse as Refuse,
    Rows as Rows,
    Rules as Rules,
    Traffic as Traffic,
)
from .network import Network as Network, Seat as Seat
from .trial import try_network as try_network
