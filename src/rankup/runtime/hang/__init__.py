"""A run that hangs ends within its timeout, and says in which collective and because of whom.

Each rank has a thread that looks once a second whether collectives still go on (`watch`). When one
has taken nearly all the time it is given, every rank leaves what it is doing in the store (`state`,
`recorder`), and the rank that waited first makes the verdict (`verdict`).
"""
