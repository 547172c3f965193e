"""What all rooms use: policies, sync and async drivers, names, durations, plain data."""
