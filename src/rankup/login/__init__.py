"""What makes a script ready for the queue, where there is a network: doctor, env, fetch."""
