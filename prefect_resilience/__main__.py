"""`python -m prefect_resilience`: the command line, for when the console script is not on the path."""

from prefect_resilience.operations.cli.app import main

main()
