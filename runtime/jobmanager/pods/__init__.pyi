from .errors import PodsMisconfigured as PodsMisconfigured
from .names import is_of_term as is_of_term
from .provider import PodProvider as PodProvider, pod_provider as pod_provider
