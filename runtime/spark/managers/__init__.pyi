from .job_pod import (
    job_pod_command as job_pod_command,
    job_pod_environment as job_pod_environment,
    run_in_pod as run_in_pod,
)
from .kubernetes import (
    KubernetesConfig as KubernetesConfig,
    KubernetesJob as KubernetesJob,
    render_kubernetes as render_kubernetes,
)
from .submission import ForeignJob as ForeignJob, Rendering as Rendering
from .yarn import YarnConfig as YarnConfig, hadoop_configuration as hadoop_configuration, render_yarn as render_yarn
