from .authorization import CHECK as CHECK, authorization as authorization
from .checks import EgressAnswer as EgressAnswer, EgressChecks as EgressChecks, EgressRequest as EgressRequest
from .job_owners import JobOwners as JobOwners, JobUnknown as JobUnknown, RestJobs as RestJobs
from .resolver import DnsResolver as DnsResolver, Resolver as Resolver, resolving as resolving
