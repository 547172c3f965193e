"""One guarded call, anywhere: retries, circuits, timeouts and fallbacks around it. Knows no Prefect."""
