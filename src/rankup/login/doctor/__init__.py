"""What this machine is, and what would keep a job from running: `rankup doctor`."""
