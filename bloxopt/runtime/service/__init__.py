"""The scheduler as a service: HTTP around the live cluster, and the thread that decides its rounds."""
