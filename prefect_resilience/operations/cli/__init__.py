"""The operator's command line, `prefect-resilience`. Its commands show and change a whole fleet."""
