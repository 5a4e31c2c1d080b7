from .dedication import Dedication as Dedication
from .provision import ProvisionLimits as ProvisionLimits
from .resource_manager import ResourceManager as ResourceManager
