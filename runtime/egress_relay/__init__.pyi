from .errors import RelayFailed as RelayFailed
from .preamble import RelayRoute as RelayRoute
from .relay import EgressRelay as EgressRelay
