"""What is downloaded or made for all ranks: rank 0 goes first."""

from __future__ import annotations

import libcst as cst

from ..context import Context

_FETCHERS = {
    "torchvision.datasets.utils.download_url", "urllib.request.urlretrieve", "torch.hub.load",
    "torch.hub.load_state_dict_from_url", "torch.hub.download_url_to_file", "datasets.load_dataset",
    "huggingface_hub.hf_hub_download", "huggingface_hub.snapshot_download", "nltk.download",
    "wget.download", "gdown.download", "kagglehub.dataset_download", "tiktoken.get_encoding",
    "requests.get", "urllib.request.urlopen",
}  # fmt: skip
_FETCHED = "rank 0 fetches first, then the others (rankup.rank0_first)"
_MADE = "rank 0 makes this first, then the others look (rankup.rank0_first)"
_MAKERS = {
    "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output",
    "os.system", "shutil.unpack_archive", "shutil.copytree", "numpy.save", "numpy.savez",
    "pickle.dump", "json.dump",
}  # fmt: skip
_MAKING_METHODS = {"extractall", "write_bytes", "write_text", "to_csv", "to_parquet", "save"}


def fetch(context: Context) -> None:
    """`rankup.rank0_first(…)` around downloads."""
    script = context.script
    wrapped = _prepared(context)
    for call in script.all(cst.Call):
        if not _fetches(context, call):
            continue
        above = list(script.above(call))
        if any(one in above for one in wrapped) or isinstance(script.scope(call), cst.Lambda):
            continue
        if script.per_sample(call):
            context.leave(
                call,
                "each rank fetches its own samples here, and nodes have no network: fetch all of "
                "them before the job",
            )
            continue
        asks = next(
            (one for one in above if isinstance(one, cst.If) and _asks_files(context, one)), None
        )
        if asks is not None and not any(
            isinstance(p, cst.Else) for p in above[: above.index(asks)]
        ):
            if _alike(context, asks) and context.edits.first_on_line(script.span(asks).start):
                context.indented(asks, "with rankup.rank0_first():")
                wrapped.append(asks)
                context.done(call, _FETCHED)
                continue
            context.leave(
                call, "all ranks may fetch this at once: put it in `with rankup.rank0_first():`"
            )
            continue
        func, whole = script.span(call.func), script.span(call)
        inside = script.text[func.end : whole.end]
        opening = func.end + inside.index("(")
        empty = not call.args
        context.edits.insert(func.start, "rankup.rank0_first(")
        context.edits.replace(type(func)(opening, opening + 1), "" if empty else ", ")
        wrapped.append(call)
        context.done(call, _FETCHED)


def _fetches(context: Context, call: cst.Call) -> bool:
    script = context.script
    name = script.name(call.func)
    last = name.split(".")[-1]
    if name in _FETCHERS or last in ("from_pretrained", "untar_data"):
        return True
    arg = script.argument(call, "download")
    if arg is not None and script.code(arg.value) == "True":
        return True
    if name.startswith("torchvision.models."):
        weights = script.argument(call, "weights") or script.argument(call, "pretrained", 0)
        return weights is not None and script.code(weights.value) not in ("None", "False")
    return False


def _asks_files(context: Context, one: cst.If) -> bool:
    code = context.script.code(one.test)
    return any(word in code for word in ("exists(", "isfile(", "isdir(", "is_file(", "is_dir("))


def _alike(context: Context, node: cst.If) -> bool:
    """Whether rank 0 may do all of it first: it ends where it began, and trains nothing."""
    script = context.script
    leaves = any(
        True
        for kind in (cst.Return, cst.Break, cst.Continue, cst.Yield)
        for _ in script.inside(node, kind, deep=False)
    )
    saves = any(script.name(one.func) == "torch.save" for one in script.inside(node, cst.Call))
    return not leaves and not saves and not context.training.trains(node)


def _prepared(context: Context) -> list[cst.CSTNode]:
    """`with rankup.rank0_first():` around `if not exists(data): make(data)`; what was wrapped."""
    script, wrapped = context.script, list[cst.CSTNode]()
    for one in script.all(cst.If):
        maker = _maker(context, one)
        inside = any(isinstance(up, cst.For | cst.While) for up in script.above(one))
        if maker is None or inside or not _asks_files(context, one):
            continue
        if "not " not in script.code(one.test) or not _alike(context, one):
            continue
        if script.per_sample(one):
            continue
        if context.edits.first_on_line(script.span(one).start):
            context.indented(one, "with rankup.rank0_first():")
            context.done(maker, _MADE)
            wrapped.append(one)
    return wrapped


def _maker(context: Context, node: cst.CSTNode, depth: int = 0) -> cst.Call | None:
    """The first call that makes files, also in a function of the script."""
    script = context.script
    for call in script.inside(node, cst.Call):
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        name = script.name(call.func)
        if name in _MAKERS or (method in _MAKING_METHODS and name != "torch.save"):
            return call
        function = script.called(call)
        if function is not None and depth < 3 and _maker(context, function, depth + 1):
            return call
    return None
