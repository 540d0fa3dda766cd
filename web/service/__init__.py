"""The results service as a process: application, middleware and uvicorn."""
