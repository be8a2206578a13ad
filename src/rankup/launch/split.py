"""How a recipe's model will be split over the ranks, checked before anything starts. No torch."""

from __future__ import annotations

from .. import recipes
from ..base.errors import UserError
from ..parallel.layout import crossing
from ..parallel.lowcomm.gossip.names import patience
from ..site.rundir import Job


def by_crew(job: Job) -> bool:
    """Whether a crew starts the ranks of a job: workers whose ends do not end the others."""
    return job.kind == "recipe" and recipes.find(job.target).parse(job.args).strategy == "gossip"


def same_result(job: Job) -> bool:
    """Whether the number of ranks changes the time a job takes alone."""
    if job.kind != "recipe":
        return True
    options = recipes.find(job.target).parse(job.args)
    return not options.apart and options.strategy != "gossip"


def notes(job: Job, nodes: int, per_node: int) -> list[str]:
    """What to say about a job's split over `nodes` of `per_node` ranks; nothing of scripts.

    Raises:
        UserError: the sizes that were asked for do not make up the number of ranks.
    """
    if job.kind != "recipe":
        return []
    options = recipes.find(job.target).parse(job.args)
    if by_crew(job):
        patience()  # what it cannot be is said before anything starts
    if by_crew(job) and nodes * per_node == 1:
        raise UserError(
            "--strategy gossip on one worker has nobody to talk to; give --nproc 2 or more, or "
            "another strategy"
        )
    layout = options.layout(nodes * per_node, per_node)
    said = options.notes(layout)
    if warning := crossing(layout, per_node):
        said.append(warning)
    found = [f"warning: {text}" for text in said]
    if idle := options.idle_ranks(layout):
        ranks = layout.world_size
        found.append(
            f"warning: a global batch of {options.global_batch} in micro-batches of "
            f"{options.micro_batch} feeds {ranks - idle} of {ranks} ranks; {idle} will idle. "
            + ("The result is the same; " if same_result(job) else "")
            + "a smaller --micro-batch or fewer ranks wastes nothing"
        )
    return found
