from .network_owner import NetworkOwner as NetworkOwner
from .networks import Networks as Networks
