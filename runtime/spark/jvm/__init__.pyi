from .class_archive import (
    AOT_SUFFIX as AOT_SUFFIX,
    CDS_SUFFIX as CDS_SUFFIX,
    PREFIX as PREFIX,
    archive_file as archive_file,
    find_class_archive as find_class_archive,
    find_spark_java as find_spark_java,
    has_aot_caches as has_aot_caches,
    has_class_archive as has_class_archive,
)
from .command import (
    MINIMUM_EXECUTOR_MEMORY_MB as MINIMUM_EXECUTOR_MEMORY_MB,
    Command as Command,
    JvmProgram as JvmProgram,
    SparkRuntime as SparkRuntime,
    TlsEngine as TlsEngine,
    driver_jvm_command as driver_jvm_command,
    executor_command as executor_command,
    find_spark_runtime as find_spark_runtime,
    history_ui_command as history_ui_command,
    jvm_environment as jvm_environment,
    jvm_options as jvm_options,
)
from .conf import (
    DRIVER_LISTENS as DRIVER_LISTENS,
    EXECUTOR_LISTENS as EXECUTOR_LISTENS,
    DriverShape as DriverShape,
    begin_conf as begin_conf,
    connect_conf as connect_conf,
    default_conf as default_conf,
    launcher_conf as launcher_conf,
    security_conf as security_conf,
    shuffle_conf as shuffle_conf,
    streaming_conf as streaming_conf,
)
from .gateway_port import Gateway as Gateway, read_gateway as read_gateway
from .job_conf import (
    ALLOWED_PROPERTY as ALLOWED_PROPERTY,
    RESERVED_PROPERTY as RESERVED_PROPERTY,
    check_allow_conf as check_allow_conf,
    check_job_conf as check_job_conf,
    check_unreserved as check_unreserved,
)
from .options import MODULE_OPTIONS as MODULE_OPTIONS, argument_file as argument_file
from .packages import (
    NO_PACKAGES as NO_PACKAGES,
    Packages as Packages,
    check_importable as check_importable,
    check_packages as check_packages,
    directory_name as directory_name,
    importable_name as importable_name,
)
from .place import JvmPlace as JvmPlace
from .sealing import seals as seals
from .tempdir import make_temp_dir as make_temp_dir, remove_temp_dir as remove_temp_dir
from .waiting import (
    READY as READY,
    WAITING_ROOM as WAITING_ROOM,
    can_become as can_become,
    job_line as job_line,
    waiting_command as waiting_command,
)
