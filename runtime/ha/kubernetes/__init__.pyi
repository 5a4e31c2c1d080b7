from .client import KubernetesClient as KubernetesClient
from .election import KubernetesElection as KubernetesElection
