from .envelope import MAX_VALUE_BYTES as MAX_VALUE_BYTES
from .errors import (
    InvalidSecret as InvalidSecret,
    SecretError as SecretError,
    SecretKeyMissing as SecretKeyMissing,
    SecretRefused as SecretRefused,
    SecretsFull as SecretsFull,
    SecretUnknown as SecretUnknown,
    SecretUseless as SecretUseless,
)
from .key_ring import KeyRing as KeyRing, keys_directory as keys_directory
from .records import (
    ChosenSecret as ChosenSecret,
    Grant as Grant,
    GranteeKind as GranteeKind,
    SecretView as SecretView,
    Subject as Subject,
)
from .references import check_secret_references as check_secret_references
from .rotation import KeyRotation as KeyRotation
from .store import SecretStore as SecretStore, given_secret as given_secret
