from .attestor import Attested as Attested, Attestor as Attestor
from .config import PodAttestationConfig as PodAttestationConfig
from .job_pods import (
    driver_pod_name as driver_pod_name,
    executor_pod_prefix as executor_pod_prefix,
    job_pod_identity as job_pod_identity,
    new_pod_job_id as new_pod_job_id,
)
from .kubernetes import KUBERNETES as KUBERNETES, PodAttestor as PodAttestor, api_of as api_of
from .pods import MAX_POD_TOKEN_BYTES as MAX_POD_TOKEN_BYTES, audience as audience
from .trust_config_map import CRL_KEY as CRL_KEY, TRUST_KEY as TRUST_KEY, TrustConfigMap as TrustConfigMap
