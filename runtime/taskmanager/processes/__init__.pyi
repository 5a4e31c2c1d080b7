from .agent import AGENT as AGENT, SpareAgent as SpareAgent
from .driver import DriverHome as DriverHome, clean_driver_directory as clean_driver_directory
from .drivers import Drivers as Drivers
from .executor import clean_executor_directory as clean_executor_directory
from .executors import ExecutorHome as ExecutorHome, Executors as Executors
