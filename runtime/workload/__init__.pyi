from .place import MAX_TOKEN_FILES as MAX_TOKEN_FILES, TokenFile as TokenFile, WorkloadPlace as WorkloadPlace
from .server import WorkloadServer as WorkloadServer
from .tokens import (
    AskKeys as AskKeys,
    AskToken as AskToken,
    TokenUnavailable as TokenUnavailable,
    no_keys as no_keys,
    no_token as no_token,
)
