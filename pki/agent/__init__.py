"""The agent of a node: renews identities, and serves them over the SPIFFE Workload API and Envoy SDS."""
