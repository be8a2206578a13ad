"""What a job script is to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class JobScript:
    """Everything that a job script says.

    Attributes:
        words: TARGET and what belongs to it; a script by its absolute path.
        recipe: TARGET is a recipe, which rankup has to run.
        crew: the ends of its workers do not end the others, so that a crew starts them.
        nodes, ranks: nodes, and ranks on each.
        gpus, cpus: of a node, granted by Slurm; 0 GPUs for none; None leaves CPUs to Slurm.
        minutes: time limit; 0 inside an allocation, which has its own.
        stop_after: seconds after the start at which to stop with a checkpoint, where that comes
            before the limit.
        retries: times that Slurm may start the job again by itself (a node failed).
        lives: after so many the run stops, that a mistake does not go on for ever.
        options: further `#SBATCH` options by long name; an empty value is a flag.
        lines: what follows `#SBATCH ` literally, from the user.
        activate: file to source; `path` a folder to put on PATH instead.
        variables: exported for the ranks.
        offline: the nodes have no network, and the usual libraries are told so.
        fetched: the same for what was fetched; values are plain words.
        private: variables stand in the file `env` of the run directory, which only its owner reads.
        container: an Apptainer image, and the words that start a program in it.
        needs: paths that every node has to see.
        stage: files and folders that each node copies into its memory first.
        stage_options: words of `rankup stage` for that.
        stage_folder: on each node, where the copies go; None leaves it to `rankup stage`.
        mounts: SquashFS images that each node mounts.
        monitor: sample what each node does, and report it at the end.
        whole_nodes: all GPUs of the nodes are billed, also those that were not asked for.
    """

    run_dir: str
    work_dir: str
    words: tuple[str, ...]
    recipe: bool
    name: str
    nodes: int
    ranks: int
    gpus: int
    cpus: int | None
    minutes: int
    made_by: tuple[str, ...] = ()
    version: str = ""
    resume: bool = False
    stop_after: int | None = None
    retries: int = 0
    lives: int = 100
    options: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    srun_options: tuple[str, ...] = ()
    activate: str | None = None
    path: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    offline: bool = True
    fetched: Mapping[str, str] = field(default_factory=dict)
    threads: bool = True
    private: bool = False
    container: tuple[str, ...] = ()
    host_suffix: str = ""
    needs: tuple[str, ...] = ()
    stage: tuple[str, ...] = ()
    stage_options: tuple[str, ...] = ()
    stage_folder: str | None = None
    mounts: tuple[str, ...] = ()
    crew: bool = False
    monitor: bool = True
    whole_nodes: bool = False
