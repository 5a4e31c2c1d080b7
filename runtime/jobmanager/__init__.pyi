from .errors import (
    ConnectSessionRuns as ConnectSessionRuns,
    JobAlreadyTerminal as JobAlreadyTerminal,
    JobNotFound as JobNotFound,
    LogNotFound as LogNotFound,
    QuotaExceeded as QuotaExceeded,
    SubmissionRejected as SubmissionRejected,
    TaskManagerLeaves as TaskManagerLeaves,
    TaskManagerNotFound as TaskManagerNotFound,
    TooManyJobs as TooManyJobs,
    UiNotFound as UiNotFound,
)
from .gateways import (
    DISPATCHER as DISPATCHER,
    DispatcherGateway as DispatcherGateway,
    EgressConnections as EgressConnections,
    EgressInternalGateway as EgressInternalGateway,
    ProvisionView as ProvisionView,
    ResourceManagerInternalGateway as ResourceManagerInternalGateway,
    ResourceProviderGateway as ResourceProviderGateway,
    ServiceCounts as ServiceCounts,
    SlotRequirement as SlotRequirement,
)
from .views import (
    ExceptionEntry as ExceptionEntry,
    JobBlob as JobBlob,
    JobDetail as JobDetail,
    JobRecord as JobRecord,
    JobSummary as JobSummary,
    Overview as Overview,
    SavepointRequest as SavepointRequest,
    TaskManagerView as TaskManagerView,
)
