from .attachment import NetworkAttachment as NetworkAttachment
from .bounds import Guard as Guard, Subject as Subject, hint as hint
from .box import Box as Box, Launch as Launch
from .config import IsolationConfig as IsolationConfig, IsolationLevel as IsolationLevel
from .errors import SandboxRefused as SandboxRefused, SandboxUnavailable as SandboxUnavailable
from .limits import Limits as Limits
from .network import new_network as new_network
from .sandbox import Sandbox as Sandbox
from .system_view import java_paths as java_paths
from .trial import Trial as Trial
from .uids import is_job_uid as is_job_uid, write_for as write_for
from .view import SecretFile as SecretFile, View as View
