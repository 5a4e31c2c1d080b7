from .job_network import JobNetwork as JobNetwork
from .known_listeners import AskHosts as AskHosts, KnownListeners as KnownListeners
from .outward import Outward as Outward, WouldRefuse as WouldRefuse
from .relayed import Relayed as Relayed
from .reserved_ports import PortsNotReserved as PortsNotReserved, ReservedPorts as ReservedPorts
from .rules import JobRules as JobRules
from .seats import (
    GivenSeat as GivenSeat,
    NoSeat as NoSeat,
    SeatGiver as SeatGiver,
    SeatTaker as SeatTaker,
    pair_of_seats as pair_of_seats,
)
from .through_relay import ThroughRelay as ThroughRelay
from .waiting import WaitingNetwork as WaitingNetwork
