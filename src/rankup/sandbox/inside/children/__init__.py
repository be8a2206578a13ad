"""The folder that is first on PYTHONPATH of the processes that a script starts."""
