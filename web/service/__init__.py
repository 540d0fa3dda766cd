"""The results service as a process: application, TLS and proxies."""
