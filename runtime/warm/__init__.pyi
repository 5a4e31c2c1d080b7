from .config import WarmConfig as WarmConfig
from .machine import Machine as Machine, Resources as Resources
from .pool import WarmPool as WarmPool
from .sizing import MAX_AUTOMATIC as MAX_AUTOMATIC, Sizing as Sizing, WarmKind as WarmKind, WarmSize as WarmSize
