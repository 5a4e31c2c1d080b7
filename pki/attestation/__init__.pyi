from .attestor import Attested as Attested, Attestor as Attestor, Grant as Grant
from .config import PodAttestationConfig as PodAttestationConfig, PodIdentity as PodIdentity
from .kubernetes import KUBERNETES as KUBERNETES, PodAttestor as PodAttestor, api_of as api_of
from .pods import MAX_POD_TOKEN_BYTES as MAX_POD_TOKEN_BYTES, audience as audience
from .trust_config_map import TRUST_KEY as TRUST_KEY, TrustConfigMap as TrustConfigMap
