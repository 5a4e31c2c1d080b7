from .announced_maps import ShareCursor as ShareCursor
from .budget import (
    CONNECTION_BYTES as CONNECTION_BYTES,
    PUSHED_ROW_BYTES as PUSHED_ROW_BYTES,
    REQUEST_BYTES as REQUEST_BYTES,
    Holding as Holding,
    RetryableQuotaExceeded as RetryableQuotaExceeded,
    unlimited as unlimited,
)
from .located import Located as Located
from .reading import ReadPlan as ReadPlan, cost_of as cost_of, windows as windows
from .shuffle_data import ShuffleData as ShuffleData
from .slab_pool import Lease as Lease
from .store import Job as Job, ShuffleStore as ShuffleStore
from .volume import Committed as Committed
