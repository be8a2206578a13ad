"""Calls of torch.hub, torchvision, torchaudio, torchtext and fastai that fetch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .found import Download
from .use import ABSENT, Use, texts
from .worth import Known, Unknown

# Where `download` stands among the positional arguments of the data sets that have it there.
_DOWNLOAD = {"MNIST": 4, "FashionMNIST": 4, "KMNIST": 4, "CIFAR10": 4, "CIFAR100": 4, "SVHN": 4}
_OLD_WEIGHTS = 0  # `resnet18(True)`


def dataset(use: Use) -> Iterator[Download]:
    """`torchvision.datasets.X(root, download=True)`, and torchaudio's."""
    name = use.dotted.rpartition(".")[2]
    if not name[:1].isupper():
        return
    downloads = use.true(_DOWNLOAD.get(name), "download")
    if downloads is None:
        yield from use.download("torchvision", name, why="whether it downloads")
    elif downloads:
        yield from use.download("torchvision", name)


def text_dataset(use: Use) -> Iterator[Download]:
    """`torchtext.datasets.X()`, which downloads unasked."""
    yield from use.download("other", use.dotted.rpartition(".")[2])


def model(use: Use) -> Iterator[Download]:
    """`torchvision.models.x(weights=)` or `(pretrained=True)`."""
    name = use.dotted.rpartition(".")[2]
    if name[:1].isupper() or name.startswith(("list_", "get_model_", "get_weight")):
        return
    if name == "get_model":
        name = use.text(0, "name") or "a model"
    for keyword in ("weights", "weights_backbone"):
        given = use.argument(None, keyword)
        if isinstance(given, Unknown) and not _names_weights(given):
            yield from use.download("torchvision", name, why=f"its {keyword}: {given.why}")
        elif isinstance(given, Unknown) or any(texts(given)):
            yield from use.download("torchvision", name)
    pretrained = use.true(None if use.dotted.endswith("get_model") else _OLD_WEIGHTS, "pretrained")
    if pretrained:
        yield from use.download("torchvision", name)


def hub_load(use: Use) -> Iterator[Download]:
    """`torch.hub.load(repository, model)`."""
    if use.text(None, "source") == "local":
        return
    repository = use.argument(0, "repo_or_dir")
    entry = use.text(1, "model")
    if isinstance(repository, Known) and entry:
        named = tuple(
            f"{one}:{entry}" if isinstance(one, str) else one for one in texts(repository)
        )
        repository = Known(named)
    yield from use.download("torch.hub", repository)


def state_dict(use: Use) -> Iterator[Download]:
    """`torch.hub.load_state_dict_from_url(url)`, which looks into its own cache."""
    yield from use.download("url", use.argument(0, "url"))


def untar(use: Use) -> Iterator[Download]:
    """`fastai.data.external.untar_data(URLs.X)`."""
    given = use.constant_name(0, "url")
    if given:
        yield from use.download("fastai", given)
    else:
        url = use.argument(0, "url")
        yield from use.download("url" if url != ABSENT else "fastai", url)


def learner(use: Use) -> Iterator[Download]:
    """fastai's `vision_learner(dls, arch)`: with torchvision's weights unless told not to."""
    if use.true(None, "pretrained") is not False or not use.given("pretrained"):
        yield from use.download("fastai", use.constant_name(1, "arch") or "weights of its model")


def _names_weights(given: Unknown) -> bool:
    """`ResNet18_Weights.DEFAULT` is not evaluated, and is known all the same."""
    return re.search(r"\w+_Weights\.\w+ ", given.why + " ") is not None
