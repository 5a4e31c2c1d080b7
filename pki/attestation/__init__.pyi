from .attestor import Attested as Attested, Attestor as Attestor
from .config import PodAttestationConfig as PodAttestationConfig
from .kubernetes import KUBERNETES as KUBERNETES, PodAttestor as PodAttestor, api_of as api_of
from .pods import MAX_POD_TOKEN_BYTES as MAX_POD_TOKEN_BYTES
from .trust_config_map import TrustConfigMap as TrustConfigMap
