from .broker import BoxCalls as BoxCalls, Broker as Broker
from .connecting import (
    DECISION_SECONDS as DECISION_SECONDS,
    CallHandler as CallHandler,
    NetworkContext as NetworkContext,
)
from .tracker import Tracker as Tracker
