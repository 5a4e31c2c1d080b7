from .agent import (
    AcmeAgent as AcmeAgent,
    lifetime_in_use as lifetime_in_use,
    next_order as next_order,
    require_acme as require_acme,
)
from .envoy_resources import ChallengeResources as ChallengeResources
from .store import AcmeStore as AcmeStore, issued_files as issued_files
from .worker import renew as renew
