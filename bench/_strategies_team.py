"""The processes of `strategies.py`: teams that take turns, and ranks that run to their end."""

from __future__ import annotations

import json
import tempfile
from typing import Any

from common import Team, start_ranks

_SECONDS = 900.0


class StrategyTeam(Team):
    """A `common.Team` of `_strategies_rank.py`, whose answers are JSON."""

    program = "_strategies_rank.py"

    def answers(self, contestant: str, steps: int) -> list[dict[str, Any]]:
        """What each rank found in a slice."""
        self.start(contestant, steps)
        return [json.loads(answer) for answer in self._answers()]

    def finish(self) -> float:
        return float(json.loads(self._answers()[0])["seconds"])


def run_ranks(program: str, world_size: int, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a program as ranks to its end; the JSON lines that rank 0 printed."""
    with tempfile.TemporaryFile("w+") as log:
        ranks = start_ranks(program, spec, world_size, log)
        try:
            printed, _ = ranks[0].communicate(timeout=_SECONDS)
            codes = [rank.wait(timeout=60) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        if any(codes):
            log.seek(0)
            raise SystemExit(f"{log.read()[-6000:]}\nbench: {program} failed, exit codes {codes}")
    return [json.loads(line) for line in printed.splitlines()]
