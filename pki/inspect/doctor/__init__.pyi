from .examine import Processes as Processes, judge as judge
from .scan import read_home as read_home
