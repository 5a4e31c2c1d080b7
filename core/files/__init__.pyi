from .append_log import ChainState as ChainState, Disk as Disk, NotAppended as NotAppended, append_whole as append_whole
from .changing_folders import files_below as files_below, paths_matching as paths_matching
from .file_changes import CachedFile as CachedFile, FileStamp as FileStamp, file_stamp as file_stamp
from .locks import (
    LOCK_PATIENCE_SECONDS as LOCK_PATIENCE_SECONDS,
    LockHeld as LockHeld,
    held_alone as held_alone,
    is_locked as is_locked,
    lock_within as lock_within,
    locked as locked,
    locked_file as locked_file,
)
from .private_database import (
    DatabaseKind as DatabaseKind,
    check_database as check_database,
    make_database as make_database,
)
from .trusted_files import (
    MAX_MATERIAL_BYTES as MAX_MATERIAL_BYTES,
    PUBLIC_MODE as PUBLIC_MODE,
    SECRET_MODE as SECRET_MODE,
    check_space as check_space,
    exchange as exchange,
    make_private_directory as make_private_directory,
    may_pass as may_pass,
    read_bounded as read_bounded,
    read_deployed_secret as read_deployed_secret,
    read_secret as read_secret,
    remove_leftovers as remove_leftovers,
    replace_set as replace_set,
    staged_name as staged_name,
    sync_directory as sync_directory,
    write_atomic as write_atomic,
    write_public as write_public,
    write_secret as write_secret,
)
from .untrusted_files import (
    UnsafeFile as UnsafeFile,
    clear_untrusted as clear_untrusted,
    create_untrusted as create_untrusted,
    is_regular_file as is_regular_file,
    list_untrusted as list_untrusted,
    open_untrusted as open_untrusted,
    read_untrusted as read_untrusted,
    remove_untrusted as remove_untrusted,
    untrusted_socket as untrusted_socket,
    walk_untrusted as walk_untrusted,
)
