"""`python -m tests.simulation --seed N --history K`: plays one history again, step by step. Without `--history`: many."""

from tests.simulation.run import main

main()
