from .accounts import make_external_key as make_external_key, revoke_external as revoke_external
from .config import AcmeConfig as AcmeConfig
from .listener import AcmeListener as AcmeListener, ServerCertificate as ServerCertificate
from .names import NamePolicy as NamePolicy, Pattern as Pattern, parse_patterns as parse_patterns
from .objects import Account as Account, Certificate as Certificate, ExternalKey as ExternalKey, Status as Status
from .server import AcmeServer as AcmeServer
from .store import AcmeStore as AcmeStore, acme_path as acme_path
from .urls import DIRECTORY_PATH as DIRECTORY_PATH
from .validation import DnsResolver as DnsResolver, Reach as Reach, challenge_check as challenge_check
