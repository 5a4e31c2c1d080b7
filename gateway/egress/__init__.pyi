from .authorization import authorization as authorization
from .checks import EgressChecks as EgressChecks
from .job_owners import JobOwners as JobOwners, RestJobs as RestJobs
from .resolver import resolving as resolving
