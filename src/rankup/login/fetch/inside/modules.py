"""Which of the known libraries the script has used: it decides what is set in the job."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

_KNOWN = (
    *("huggingface_hub", "datasets", "transformers", "diffusers", "accelerate", "evaluate", "peft"),
    *("sentence_transformers", "timm", "open_clip", "tokenizers", "safetensors", "tiktoken"),
    *("torchvision", "torchaudio", "torchtext", "lightning", "pytorch_lightning", "fastai"),
    *("wandb", "comet_ml", "clearml", "neptune", "mlflow", "swanlab", "aim", "tensorboard"),
    *("nltk", "spacy", "gensim", "sklearn", "kagglehub", "gdown", "wget", "webdataset"),
    *("albumentations", "ultralytics", "modelscope", "monai", "tensorflow_datasets"),
)


class Used:
    """What was imported; of torch.hub, which torch imports itself, whether it was called."""

    def __init__(self) -> None:
        self._hub = False

    def watch_hub(self, module: Any) -> None:
        """`torch.hub`: all that it does begins with its folder."""
        original = module.get_dir

        @wraps(original)
        def get_dir() -> Any:
            self._hub = True
            return original()

        module.get_dir = get_dir

    def names(self) -> list[str]:
        """Names of modules, sorted."""
        found = {name for name in _KNOWN if name in sys.modules}
        return sorted(found | ({"torch.hub"} if self._hub else set()))
