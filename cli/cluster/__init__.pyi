from .identities import (
    JOBMANAGER_NAME as JOBMANAGER_NAME,
    prepare_authorities as prepare_authorities,
    renew_superseded as renew_superseded,
)
from .launcher import Launcher as Launcher, run_until_signal as run_until_signal
from .records import (
    launcher_lock as launcher_lock,
    never as never,
    read_record as read_record,
    record_path as record_path,
    watch_for_stop as watch_for_stop,
)
