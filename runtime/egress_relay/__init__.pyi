from .errors import RelayFailed as RelayFailed
from .preamble import RelayRoute as RelayRoute, preamble as preamble
from .relay import EgressRelay as EgressRelay
