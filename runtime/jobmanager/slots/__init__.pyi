from .provision import ProvisionLimits as ProvisionLimits
from .resource_manager import ResourceManager as ResourceManager
