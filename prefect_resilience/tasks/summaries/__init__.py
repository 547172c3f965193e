"""The summary of a flow run: what was retried, refused, replaced, replayed, and how to go on."""
