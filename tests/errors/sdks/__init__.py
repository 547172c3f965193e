"""What real SDKs raise, and what `classify` makes of it: `python -m tests.errors.sdks`."""
