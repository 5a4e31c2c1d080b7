from .fetching import FetchBlob as FetchBlob, with_failover as with_failover
from .places import DriverPlaces as DriverPlaces
from .process import DriverProcess as DriverProcess
from .program import Program as Program
from .waiting import (
    AGENT_READY as AGENT_READY,
    WAITING_LOGS as WAITING_LOGS,
    WaitingDriver as WaitingDriver,
    WaitingSpec as WaitingSpec,
)
