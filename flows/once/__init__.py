"""A tool that transfers money once, in four agent frameworks and a plain loop."""
