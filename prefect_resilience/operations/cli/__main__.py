"""`python -m prefect_resilience.cli`, where the console script is not on the path."""

from prefect_resilience.cli.app import main

main()
