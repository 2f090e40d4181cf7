"""`python -m tests.long.simulation --seed N --history K`: plays one history again, step by step. Without `--history`: many."""

from tests.long.simulation.run import main

main()
