"""`rankup fetch`: bring what a job needs while there is a network, and prove that it suffices."""
