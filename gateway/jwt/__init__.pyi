from .fetch import Fetcher as Fetcher
from .issuers import unverified_issuer as unverified_issuer, verify_with_cache as verify_with_cache
from .jwks import KeyCache as KeyCache, KeyNotKnown as KeyNotKnown
