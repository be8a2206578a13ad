"""`rankup doctor`: this machine, and what would keep a job from running."""
