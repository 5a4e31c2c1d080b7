from .bridge import (
    Bridge as Bridge,
    BridgeEvent as BridgeEvent,
    LocateShuffle as LocateShuffle,
    RegisterShuffle as RegisterShuffle,
    ShuffleAnswer as ShuffleAnswer,
    SparkStopped as SparkStopped,
    UnregisterShuffle as UnregisterShuffle,
)
from .spec import BEGIN as BEGIN, EXIT_WAITED_IN_VAIN as EXIT_WAITED_IN_VAIN, DriverSpec as DriverSpec
from .waiting import AGENT_READY as AGENT_READY, WAITING_LOGS as WAITING_LOGS, WaitingSpec as WaitingSpec
