from .canaries import HERE as HERE, KEPT as KEPT, Canaries as Canaries, CanarySite as CanarySite, canaries as canaries
from .catalogue import CHECKS as CHECKS
from .container_targets import container_targets as container_targets, runners_of as runners_of
from .outlets import Outlets as Outlets, outlets as outlets
from .outside import Seen as Seen, judge as judge
from .package import Packed as Packed, packed as packed
from .payload.attempt import Place as Place
from .payload.world import Target as Target, World as World
from .report import report_of as report_of
from .results import Row as Row, read_rows as read_rows
from .targets import targets_of as targets_of
