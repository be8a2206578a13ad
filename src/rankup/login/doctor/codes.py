"""The codes of doctor's findings. They are stable; `docs/findings/CODE.md` explains each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

MACHINE = "RK501"
UNSURE = "RK502"
LOGIN_NODE = "RK503"
CONFIGURATION = "RK504"
SLURM = "RK505"
PARTITION = "RK506"
DIFFERENCE = "RK507"
ACCOUNT = "RK508"
INTERNET = "RK509"
NODE_NAMES = "RK510"
PROJECT_FOLDERS = "RK511"
SPACE = "RK512"
QUOTA = "RK513"
MOUNTED = "RK514"
CACHES = "RK515"
PURGE = "RK516"
SHARED_MEMORY = "RK517"
PYTHON = "RK518"
ENVIRONMENT = "RK519"
TORCH = "RK520"
TORCH_DEVICE = "RK521"
TORCH_ARCHITECTURE = "RK522"
TORCH_TWICE = "RK523"
SCRIPT = "RK524"
IMPORTS = "RK525"
DATA = "RK526"
NEEDS = "RK527"
PORTED = "RK528"
LATE = "RK538"
FAILED = "RK539"

TITLES: Mapping[str, str] = MappingProxyType(
    {
        MACHINE: "machine and profile",
        UNSURE: "facts of the profile that nobody has confirmed",
        LOGIN_NODE: "login node or not",
        CONFIGURATION: "rankup.toml",
        SLURM: "Slurm answers",
        PARTITION: "partitions: limits, and what is free",
        DIFFERENCE: "the profile and the live machine differ",
        ACCOUNT: "account",
        INTERNET: "internet of compute nodes",
        NODE_NAMES: "names of nodes resolve",
        PROJECT_FOLDERS: "folders of the project are known",
        SPACE: "space and files left on a file system",
        QUOTA: "quota",
        MOUNTED: "compute nodes see a folder",
        CACHES: "where caches lie",
        PURGE: "files near their deletion",
        SHARED_MEMORY: "shared memory",
        PYTHON: "Python and its environment",
        ENVIRONMENT: "the project's environment",
        TORCH: "torch is there, and new enough",
        TORCH_DEVICE: "torch is built for these GPUs",
        TORCH_ARCHITECTURE: "torch is built for these processors",
        TORCH_TWICE: "torch twice",
        SCRIPT: "the script can be read",
        IMPORTS: "what the script imports is there",
        DATA: "what the script fetches is there",
        NEEDS: "what rankup.toml lists is there",
        PORTED: "the script is ready for many ranks",
        LATE: "no answer in time",
        FAILED: "a check failed",
    }
)
