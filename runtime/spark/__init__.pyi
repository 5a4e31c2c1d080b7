from .causes import HEADING as HEADING, cause as cause
from .code_cache import checksum_file as checksum_file
from .errors import ForbiddenSparkConf as ForbiddenSparkConf, PackageRefused as PackageRefused, SparkError as SparkError
from .evidence import read_evidence as read_evidence
from .java import find_java as find_java, find_preferred_java as find_preferred_java, find_spark as find_spark
from .job_python import MAX_PYTHON_CHARACTERS as MAX_PYTHON_CHARACTERS, SETTING as SETTING, check_python as check_python
from .plugin_build import ensure_plugin as ensure_plugin
