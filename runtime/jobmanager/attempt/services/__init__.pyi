from .driver import Driver as Driver
from .job_identities import JobIdentities as JobIdentities
from .job_secrets import JobSecrets as JobSecrets, Record as Record
from .job_tokens import JobTokens as JobTokens
from .remote_driver import RemoteDrivers as RemoteDrivers
from .services import JobServices as JobServices
