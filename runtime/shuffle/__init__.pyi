from .config import ShuffleConfig as ShuffleConfig, check_shuffle as check_shuffle
from .manager_finder import shuffle_manager_finder as shuffle_manager_finder
