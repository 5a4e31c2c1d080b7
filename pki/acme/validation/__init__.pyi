from .reach import Reach as Reach
from .resolver import DnsResolver as DnsResolver
from .validator import Check as Check, Validator as Validator, challenge_check as challenge_check
