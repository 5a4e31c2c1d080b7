"""The agent of a node: keeps identities fresh, and hands them out over the SPIFFE Workload API and Envoy SDS."""
