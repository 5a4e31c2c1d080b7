from .files import network_files as network_files
from .names import Names as Names
from .resolver import Resolver as Resolver
