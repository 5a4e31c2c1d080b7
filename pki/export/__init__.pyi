from .formats import (
    Export as Export,
    Format as Format,
    export_anchors as export_anchors,
    export_identity as export_identity,
)
