"""What monitoring programs ask a server over HTTP: /metrics, /healthz, /readyz."""
