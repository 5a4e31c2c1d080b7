from .binding import (
    bind as bind,
    leave as leave,
    open_files as open_files,
    open_store as open_store,
    shared_files_in as shared_files_in,
    writers_lock as writers_lock,
)
from .cipher import new_key as new_key
from .shared_files import SharedFiles as SharedFiles
from .store import MAX_VALUE_BYTES as MAX_VALUE_BYTES, Entry as Entry, SharedStore as SharedStore
