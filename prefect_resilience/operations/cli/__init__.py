"""The operator's command line, `prefect-resilience`: what it shows and what it sets is a whole fleet's."""
