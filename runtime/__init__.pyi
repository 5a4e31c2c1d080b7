from .config import (
    ConnectConfig as ConnectConfig,
    HistoryConfig as HistoryConfig,
    JobManagerConfig as JobManagerConfig,
    JobsConfig as JobsConfig,
    LimitsConfig as LimitsConfig,
    PodsConfig as PodsConfig,
    Provider as Provider,
    ResourcesConfig as ResourcesConfig,
    RuntimeConfig as RuntimeConfig,
    SecretsConfig as SecretsConfig,
    SparkConfig as SparkConfig,
    TaskManagerConfig as TaskManagerConfig,
)
from .gateways import (
    DRAINED_EXIT_CODE as DRAINED_EXIT_CODE,
    RESOURCE_MANAGER as RESOURCE_MANAGER,
    TASK_EXECUTOR as TASK_EXECUTOR,
    JobMasterGateway as JobMasterGateway,
    ResourceManagerGateway as ResourceManagerGateway,
    jobmaster_endpoint as jobmaster_endpoint,
)
from .messages import (
    ExecutorLaunch as ExecutorLaunch,
    JobState as JobState,
    OutputLocation as OutputLocation,
    ShuffleAllocation as ShuffleAllocation,
    SlotCount as SlotCount,
    SlotOffer as SlotOffer,
    SlotProfile as SlotProfile,
    SlotReport as SlotReport,
    SlotRequest as SlotRequest,
    SlotState as SlotState,
    SlotStatus as SlotStatus,
    SparkRegistration as SparkRegistration,
    TaskManagerRegistration as TaskManagerRegistration,
    WorkerAddress as WorkerAddress,
)
from .restart_config import (
    RestartConfig as RestartConfig,
    RestartStrategy as RestartStrategy,
    RestartWish as RestartWish,
)
from .scheduling_config import SchedulingConfig as SchedulingConfig
