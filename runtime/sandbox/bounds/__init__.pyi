from .cgroups import BoxGroup as BoxGroup, ControlGroups as ControlGroups
from .excess import Subject as Subject, Usage as Usage, excess as excess
from .guard import Guard as Guard
from .hints import hint as hint
from .sizes import (
    driver_jvm_memory_mb as driver_jvm_memory_mb,
    executor_memory_mb as executor_memory_mb,
    jvm_memory_mb as jvm_memory_mb,
)
