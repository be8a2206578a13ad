"""Which calls fetch, and what: by their full names, whatever the script calls them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from rankup.script.downloads import Download, fetches, read


def found(folder: Path, text: str, *args: str) -> list[Download]:
    """What reading finds in a script of that text, started in `folder`."""
    path = folder / "train.py"
    path.write_text(textwrap.dedent(text))
    return list(read(path, args, folder).downloads)


def names(folder: Path, text: str, *args: str) -> list[str]:
    """The names alone; `?` and the reason where one is not known."""
    return [
        one.wanted if one.known else f"{one.wanted}?{one.why}" for one in found(folder, text, *args)
    ]


@pytest.mark.parametrize(
    ("text", "what", "wanted", "by_name"),
    [
        ("import datasets\ndatasets.load_dataset('xsum')", "dataset", "xsum", True),
        ("from datasets import load_dataset as ld\nld('a/b', 'c')", "dataset", "a/b:c", True),
        (
            "from datasets import load_dataset\nload_dataset('a', name='c', revision='r')",
            "dataset",
            "a:c@r",
            True,
        ),
        (
            "from datasets import load_dataset\n"
            "load_dataset('json', data_files='https://e.org/x.json')",
            "dataset",
            "https://e.org/x.json",
            False,
        ),
        (
            "from transformers import AutoModel\nAutoModel.from_pretrained('gpt2', revision='v1')",
            "model",
            "gpt2@v1",
            True,
        ),
        (
            "from peft import PeftModel\nPeftModel.from_pretrained(model, 'me/lora')",
            "model",
            "me/lora",
            True,
        ),
        ("import transformers\ntransformers.pipeline('x', model='a/b')", "model", "a/b", True),
        (
            "from sentence_transformers import SentenceTransformer\n"
            "SentenceTransformer('all-MiniLM-L6-v2')",
            "model",
            "sentence-transformers/all-MiniLM-L6-v2",
            True,
        ),
        (
            "from huggingface_hub import snapshot_download\nsnapshot_download('a/b')",
            "model",
            "a/b",
            False,
        ),
        ("import torch\ntorch.hub.load('o/r:v1', 'net')", "torch.hub", "o/r:v1:net", False),
        (
            "from torch.hub import download_url_to_file as d\nd('https://e.org/w.pt', 'w.pt')",
            "url",
            "https://e.org/w.pt",
            True,
        ),
        (
            "from torchvision import datasets, transforms\ndatasets.MNIST('d', download=True)",
            "torchvision",
            "MNIST",
            False,
        ),
        (
            "from torchvision.models import resnet18, ResNet18_Weights\n"
            "resnet18(weights=ResNet18_Weights.DEFAULT)",
            "torchvision",
            "resnet18",
            False,
        ),
        (
            "from fastai.vision.all import *\nuntar_data(URLs.PETS)",
            "fastai",
            "URLs.PETS",
            False,
        ),
        (
            "from urllib.request import urlretrieve\nurlretrieve('https://e.org/a', 'a.bin')",
            "url",
            "https://e.org/a",
            True,
        ),
        (
            "import requests\ns = requests.Session()\ns.get('https://e.org/a', stream=True)",
            "url",
            "https://e.org/a",
            False,
        ),
        ("import os\nos.system('wget https://e.org/a.tgz')", "url", "https://e.org/a.tgz", False),
        (
            "import subprocess as s\ns.run(['curl', '-L', 'https://e.org/a.tgz'])",
            "url",
            "https://e.org/a.tgz",
            False,
        ),
        ("import nltk\nnltk.download('punkt')", "other", "punkt", False),
        ("import tiktoken\ntiktoken.get_encoding('gpt2')", "other", "gpt2", False),
        ("from medmnist import PathMNIST\nPathMNIST(download=True)", "other", "PathMNIST", False),
        (
            "import rankup\nfrom datasets import load_dataset\n"
            "rankup.rank0_first(load_dataset, 'xsum', split='test')",
            "dataset",
            "xsum",
            True,
        ),
        ("import pandas as p\np.read_csv('http://e.org/a')", "url", "http://e.org/a", False),
        (
            "from functools import partial\nfrom datasets import load_dataset\n"
            "partial(load_dataset, 'xsum')()",
            "dataset",
            "xsum",
            True,
        ),
    ],
)  # fmt: skip
def test_a_call_that_fetches_is_found(
    tmp_path: Path, text: str, what: str, wanted: str, by_name: bool
) -> None:
    [one] = found(tmp_path, text)
    assert (one.what, one.wanted, one.by_name, one.known) == (what, wanted, by_name, True), one


@pytest.mark.parametrize(
    "text",
    [
        "def load_dataset(name): ...\nload_dataset('xsum')",
        "class GPT:\n    def from_pretrained(name): ...\nGPT.from_pretrained('gpt2')",
        "from datasets import load_dataset\nload_dataset('json', data_files='x.json')",
        "from transformers import AutoModel\nAutoModel.from_pretrained('/p/models/gpt2')",
        "from transformers import AutoModel\nAutoModel.from_pretrained('x', local_files_only=True)",
        "import torchvision\ntorchvision.datasets.MNIST('d', download=False)",
        "import torchvision\ntorchvision.models.resnet18(weights=None)",
        "import torch\ntorch.hub.load('.', 'net', source='local')",
        "import pandas as pd\npd.read_csv('a.csv')",
        "import os\nos.system('nproc')",
        "import torch\ntorch.nn.Embedding.from_pretrained(torch.zeros(2, 2))",
        "# load_dataset('xsum')\n'''load_dataset(\"xsum\")'''",
        "from transformers import AutoModel\nm.save_pretrained('out')\n"
        "AutoModel.from_pretrained('out')",
    ],
)
def test_what_fetches_nothing_is_not_listed(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text) == []


def test_a_folder_that_is_here_is_no_download(tmp_path: Path) -> None:
    text = """
        from datasets import load_dataset
        from transformers import AutoModel
        load_dataset("corpus")
        AutoModel.from_pretrained("gpt2")
    """
    assert names(tmp_path, text) == ["corpus", "gpt2"]
    (tmp_path / "corpus").mkdir()
    (tmp_path / "gpt2").mkdir()
    assert names(tmp_path, text) == []


def test_a_download_if_missing_is_none_once_the_file_is_there(tmp_path: Path) -> None:
    text = """
        import os, urllib.request
        class Data:
            url = "https://e.org/data.bin"
            def __init__(self, root):
                self.path = os.path.join(root, "data.bin")
                if not os.path.exists(self.path):
                    urllib.request.urlretrieve(self.url, self.path)
        Data("raw")
    """
    [one] = found(tmp_path, text)
    assert (one.name, one.to) == ("https://e.org/data.bin", "raw/data.bin")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "data.bin").touch()
    assert found(tmp_path, text) == []


def test_user_password_and_query_of_a_url_are_not_kept(tmp_path: Path) -> None:
    [one] = found(
        tmp_path,
        """
        import urllib.request
        urllib.request.urlretrieve("https://me:s3cret@e.org/a.zip?token=s3cret#s3cret", "a.zip")
        """,
    )
    assert one.name == "https://e.org/a.zip"
    assert "s3cret" not in repr(one)
    assert not one.by_name, "what is left of the URL would not fetch it"


def test_what_cannot_be_known_says_why(tmp_path: Path) -> None:
    text = """
        import os, sys, torchvision
        from datasets import load_dataset
        from transformers import AutoModel, pipeline
        name = input()
        load_dataset(name)
        if len(sys.argv) > 3:
            model = "a"
        else:
            model = "b"
        AutoModel.from_pretrained(model)
        AutoModel.from_pretrained(os.environ["MODEL"])
        load_dataset("a", "x" if name else "y")
        torchvision.datasets.MNIST("d", download=bool(name))
        pipeline("summarization")
    """
    assert names(tmp_path, text) == [
        "?name is computed in line 5",
        "?model is set in lines 8, 10",
        "?it depends on $MODEL",
        "a?its configuration: it depends on a condition",
        "MNIST?whether it downloads",
        "?no model is named: the model that it takes for summarization may change",
    ]


def test_each_place_is_named_once_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("import nltk\ndef get():\n    nltk.download('punkt')\n")
    one, two = found(
        tmp_path,
        """\
        from datasets import load_dataset
        import data
        for split in ("train", "test"):
            load_dataset("xsum", split=split)
        data.get()
        """,
    )
    assert (one.file, one.line, one.how) == (tmp_path / "train.py", 4, "load_dataset")
    assert (two.file, two.line, two.how) == (tmp_path / "data.py", 3, "nltk.download")


def test_some_calls_fetch_whatever_their_arguments_are() -> None:
    assert fetches("torch.hub.load")
    assert fetches("sklearn.datasets.fetch_openml")
    assert not fetches("datasets.load_dataset"), "it reads local files, too"
    assert not fetches("subprocess.run")
    assert not fetches("torch.load")
