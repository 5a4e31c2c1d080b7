from .kubernetes import (
    KubernetesConfig as KubernetesConfig,
    KubernetesJob as KubernetesJob,
    render_kubernetes as render_kubernetes,
    secret_manifests as secret_manifests,
)
from .submission import ForeignJob as ForeignJob, Rendering as Rendering
from .yarn import YarnConfig as YarnConfig, hadoop_configuration as hadoop_configuration, render_yarn as render_yarn
