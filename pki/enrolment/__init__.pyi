from .client import PendingKeys as PendingKeys, enrol as enrol, renew as renew, revoke as revoke
from .credential import JoinCredential as JoinCredential
from .enrolling_issuer import (
    AttestingIssuer as AttestingIssuer,
    EdgeEnrollingIssuer as EdgeEnrollingIssuer,
    EnrollingIssuer as EnrollingIssuer,
)
from .failover import Failover as Failover, Locate as Locate
from .join_token_file import JoinTokenFile as JoinTokenFile
from .mounted_trust import MountedTrust as MountedTrust
from .online_issuer import OnlineIssuer as OnlineIssuer
from .online_tokens import OnlineTokens as OnlineTokens
from .pod_token_file import PodTokenFile as PodTokenFile
from .remote_agent import joined_agent as joined_agent
from .renewal_service import (
    EnrolledIdentity as EnrolledIdentity,
    RenewalService as RenewalService,
    subscribed_trust as subscribed_trust,
)
