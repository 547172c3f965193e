"""The summary of a flow run: retries, rejections, fallbacks, replays, and how to continue."""
