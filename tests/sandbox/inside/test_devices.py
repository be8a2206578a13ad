"""What is meant for a GPU runs on the CPU, in every form in which scripts say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .running import Runner

# Each line is run by itself, so that a failure names it.
_FORMS = [
    "torch.zeros(2).cuda()",
    "torch.zeros(2).cuda(0, non_blocking=True)",
    "torch.zeros(2).to('cuda:0')",
    "torch.zeros(2).to(0)",
    "torch.zeros(2).to(torch.device('cuda'), torch.float16)",
    "torch.zeros(2).to(device='cuda', dtype=torch.float16)",
    "torch.zeros(2).to('mps').to('xpu')",
    "torch.zeros(2, device='cuda')",
    "torch.tensor([1.0], device=torch.device('cuda', 0))",
    "torch.randn(2, 2, device=torch.device(0), pin_memory=True)",
    "torch.arange(3, device='cuda:1') + torch.ones(3)",
    "torch.zeros(2).pin_memory().cuda()",
    "torch.zeros(2).type('torch.cuda.FloatTensor')",
    "torch.zeros(2).type(torch.cuda.FloatTensor)",
    "torch.cuda.FloatTensor(2, 3)",
    "torch.zeros(2).untyped_storage().cuda()",
    "torch.nn.Linear(2, 2).cuda()",
    "torch.nn.Linear(2, 2).to(0)",
    "torch.nn.Linear(2, 2).to('cuda')(torch.zeros(2, device='cuda'))",
    "torch.nn.Linear(2, 2, device='cuda')",
    "torch.nn.DataParallel(torch.nn.Linear(2, 2), device_ids=[0]).cuda()(torch.zeros(2))",
    "torch.Generator('cuda').manual_seed(1)",
    "torch.randperm(4, device='cuda', generator=torch.Generator(device='cuda'))",
    "isinstance(torch.default_generator, torch.Generator) or 1 / 0",
    "torch.cuda.set_device(0)",
    "torch.cuda.synchronize()",
    "torch.cuda.is_current_stream_capturing() | False",
    "torch.xpu.is_current_stream_capturing() | False",
    "torch.cuda.empty_cache()",
    "torch.cuda.manual_seed_all(1)",
    "torch.cuda.reset_peak_memory_stats()",
    "torch.cuda.max_memory_allocated() / 2**20",
    "torch.cuda.memory_summary().strip()",
    "torch.cuda.mem_get_info()[1] / 2**30",
    "torch.cuda.get_device_name(0).upper()",
    "torch.cuda.get_device_properties(0).total_memory / 2**30",
    "torch.cuda.get_device_capability()[0] >= 7",
    "torch.cuda.current_device() + 1",
    "torch.cuda.nvtx.range_push('step')",
    "torch.cuda.Event(enable_timing=True).record()",
    "torch.cuda.Stream().wait_stream(torch.cuda.current_stream())",
    "torch.zeros(2).cuda().record_stream(torch.cuda.current_stream())",
    "torch.cuda.stream(torch.cuda.Stream()).__enter__()",
    "torch.cuda.device(0).__enter__()",
    "torch.autocast('cuda', dtype=torch.bfloat16).__enter__()",
    "torch.cuda.amp.GradScaler().scale(torch.ones(1))",
    "torch.amp.GradScaler('cuda')",
    "torch.compile(torch.nn.Linear(2, 2))(torch.zeros(2))",
    "torch.compile(mode='max-autotune')(abs)(-1)",
    "torch.nn.Linear(2, 2).compile()",
    "setattr(torch.backends.cudnn, 'benchmark', True)",
    "setattr(torch.backends.cuda.matmul, 'allow_tf32', True)",
    "torch.set_float32_matmul_precision('high')",
    "torch.load('saved.pt', map_location='cuda')",
    "torch.load('saved.pt', map_location=lambda storage, place: storage.cuda(0))",
    "torch.load('saved.pt', map_location={'cuda:0': 'cuda:1'})",
    "torch.set_default_device('cuda') or torch.zeros(2)",
    "torch.device('cuda').__enter__() and torch.zeros(2)",
    "torch.utils.data.DataLoader([1.0], pin_memory=True, pin_memory_device='cuda')",
    "next(iter(torch.utils.data.DataLoader([1.0, 2.0], 2, pin_memory=True)))",
]

_TRY_ALL = """\
    import os, threading, torch, wandb
    import torch.distributed as dist
    from safetensors.torch import save_file
    print(torch.cuda.is_available(), torch.cuda.device_count(), torch.accelerator.is_available())
    print(torch.device("cuda:0").type, torch.device(0), torch.get_default_device())
    print(torch.get_num_threads())
    torch.set_num_threads(64)
    print(torch.get_num_threads())
    torch.hub.get_dir()
    torch.save(torch.zeros(2), "saved.pt")
    save_file({"a": torch.zeros(2)}, "model.safetensors")
    def attempt(form):
        try:
            made = eval(form)
            if isinstance(made, torch.Tensor) and made.device.type != "cpu":
                print(form, "is on", made.device)
        except Exception as error:
            print(form, "failed:", repr(error))
    for form in FORMS:
        thread = threading.Thread(target=attempt, args=(form,))
        thread.start()
        thread.join()
        attempt(form)
    print("RANK" in os.environ)
    dist.init_process_group("nccl", init_method="env://", device_id=torch.device("cuda:0"))
    print(dist.get_backend(), dist.get_rank(), dist.get_world_size(), os.environ["LOCAL_RANK"])
    value = torch.ones(1, device=int(os.environ["LOCAL_RANK"]))
    dist.all_reduce(value)
    dist.destroy_process_group()
    """


@pytest.mark.slow
def test_all_forms_run_on_the_cpu_in_any_thread_with_few_threads(
    run: Runner, tmp_path: Path
) -> None:
    """Also a process group, and files that torch and safetensors write in their own languages."""
    (tmp_path / "wandb.py").touch()
    done = run(
        _TRY_ALL.replace("FORMS", repr(_FORMS)),
        threads=1,
        environment={"PYTHONPATH": str(tmp_path)},
    )
    assert (done.code, done.out.splitlines()) == (
        0,
        ["False 0 False", "cuda cuda:0 cpu", "1", "1", "False", "gloo 0 1 0"],
    ), done.explain()
    assert not done.of("problem")
    asked = {one["what"] for one in done.of("gpu")}
    assert asked >= {".cuda()", "cuda:0", "mps", "torch.cuda.FloatTensor"}
    assert done.one("gpu", what="torch.cuda.is_available()")["where"] == "train.py:4"
    for name in ("saved.pt", "model.safetensors"):
        assert done.of("open", path=str(run.folder / name))[0]["existed"] is False
    assert {"torch", "wandb"} <= {*done.one("modules")["names"]}
    assert done.one("end")["code"] == 0
    assert not done.of("stop")


@pytest.mark.slow
@pytest.mark.parametrize("pretend", [False, True])
def test_a_process_group_is_a_world_of_one_with_gloo(run: Runner, pretend: bool) -> None:
    """And a GPU can be pretended to a script that refuses to start without one."""
    done = run(
        """\
        import os, torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

        print(torch.cuda.is_available(), torch.cuda.device_count(), "RANK" in os.environ)
        dist.init_process_group("nccl", init_method="env://", device_id=torch.device("cuda:0"))
        print(dist.get_backend(), dist.get_rank(), dist.get_world_size(), os.environ["LOCAL_RANK"])
        local = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local)
        value = torch.ones(1, device=local)
        dist.all_reduce(value)
        dist.barrier(device_ids=[local])
        dist.new_group([0], backend="nccl")
        mesh = dist.init_device_mesh("cuda", (1,))
        model = DistributedDataParallel(torch.nn.Linear(1, 1).to(local), device_ids=[local])
        data = TensorDataset(torch.zeros(4, 1))
        for (x,) in DataLoader(data, 2, sampler=DistributedSampler(data)):
            model(x.to(local))
        """,
        pretend=pretend,
    )
    assert done.out == f"{pretend} {int(pretend)} {pretend}\ngloo 0 1 0\n", done.explain()
    assert done.one("stop")["where"] == "train.py:19"
    assert done.one("forward")["model"] == "DistributedDataParallel"
    assert done.one("gpu", what="nccl")
