from .anchor_files import push_trust as push_trust, sides_of as sides_of
from .distribution import (
    TrustBundle as TrustBundle,
    TrustPusher as TrustPusher,
    install_trust as install_trust,
)
from .reporter import Reporter as Reporter, in_memory as in_memory, reporting as reporting
from .reports import (
    DIRECTORY as DIRECTORY,
    PLACED_REPORT as PLACED_REPORT,
    Alive as Alive,
    TrustReport as TrustReport,
    is_running as is_running,
    place_reports as place_reports,
    read_reports as read_reports,
    remove_report as remove_report,
    write_report as write_report,
)
from .system_store import (
    Step as Step,
    StoreKind as StoreKind,
    TrustPlace as TrustPlace,
    find_places as find_places,
    installed as installed,
    name_of as name_of,
    plan_install as plan_install,
    plan_removal as plan_removal,
    this_machine as this_machine,
)
