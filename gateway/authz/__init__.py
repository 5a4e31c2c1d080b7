"""Authorization: operations, the policy, and the published routes."""
