from .key import TOKEN_KEYS as TOKEN_KEYS, TokenKey as TokenKey, TokenKeys as TokenKeys
from .references import format_reference as format_reference, read_reference as read_reference
from .uri import TokenUri as TokenUri, is_token_uri as is_token_uri
