"""What a training script calls inside a job. Needs torch and the standard library, nothing else.

Nothing here imports another part of rankup, so that this folder can be copied beside a script and
used without the rest.
"""
