"""A process of the cluster: how it runs, logs, reports readiness, detects stalls and exports traces."""
