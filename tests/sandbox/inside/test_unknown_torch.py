"""A torch that cannot be watched: the script ends before it would train to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from .running import Runner

# As of a version that has given these names up.
FAKES = {
    "torch/__init__.py": "",
    "torch/utils/__init__.py": "",
    "torch/utils/data/__init__.py": "",
    "torch/utils/data/dataloader.py": "class DataLoader:\n    pass\n",
    "torch/nn/__init__.py": "",
    "torch/nn/modules/__init__.py": "",
    "torch/nn/modules/module.py": "class Module:\n    pass\n",
}


def _fake(run: Runner) -> None:
    for name, text in FAKES.items():
        path = run.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("module", ["torch.utils.data.dataloader", "torch.nn.modules.module"])
def test_the_script_does_not_go_on(run: Runner, module: str) -> None:
    _fake(run)
    done = run(f"import {module}\nopen('final.pt', 'w').close()\nprint('TRAINED')\n")
    assert "TRAINED" not in done.out, done.explain()
    assert not Path(run.folder, "final.pt").exists()
    assert done.code != 0
    end = done.one("end")
    assert end["unknown"].startswith(f"{module}, change "), end
    assert done.one("stop")["reached"] == ""


def test_a_name_less_is_only_told_where_the_script_can_do_without(run: Runner) -> None:
    _fake(run)
    done = run("import torch\nprint('WENT ON')\n")
    assert "WENT ON" in done.out, done.explain()
    assert done.of("problem"), "torch.load is not there"
