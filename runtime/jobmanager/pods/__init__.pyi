from .names import is_of_term as is_of_term
from .provider import check_pods as check_pods, pod_provider as pod_provider
