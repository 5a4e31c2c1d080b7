from .evidence import EgressEvidence as EgressEvidence
from .local import egress_evidence_in as egress_evidence_in
