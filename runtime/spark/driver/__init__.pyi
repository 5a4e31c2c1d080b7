from .bridge import (
    Bridge as Bridge,
    BridgeEvent as BridgeEvent,
    LocateShuffle as LocateShuffle,
    RegisterShuffle as RegisterShuffle,
    ShuffleAnswer as ShuffleAnswer,
    SparkStopped as SparkStopped,
    UnregisterShuffle as UnregisterShuffle,
)
from .event_log import CUT as CUT, EVENT_LOG as EVENT_LOG
from .program import AGENT_READY as AGENT_READY, WAITING_LOGS as WAITING_LOGS, WaitingSpec as WaitingSpec
from .spec import BEGIN as BEGIN, EXIT_UNUSABLE as EXIT_UNUSABLE, SPARE as SPARE, DriverSpec as DriverSpec
from .ui_client import UI_SOCKET as UI_SOCKET, ask_ui as ask_ui
