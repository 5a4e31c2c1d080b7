from .sqlite import SqliteStore as SqliteStore, shared_store_file as shared_store_file
from .store import (
    MAX_VALUE_BYTES as MAX_VALUE_BYTES,
    Entry as Entry,
    SharedStore as SharedStore,
    Transaction as Transaction,
)
