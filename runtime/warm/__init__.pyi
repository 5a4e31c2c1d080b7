from .config import WarmConfig as WarmConfig
from .machine import Machine as Machine, Resources as Resources
from .pool import PoolFigures as PoolFigures, Waiting as Waiting, WarmPool as WarmPool
from .sizing import MAX_AUTOMATIC as MAX_AUTOMATIC, Sizing as Sizing, WarmKind as WarmKind, WarmSize as WarmSize
