"""Of a model's files, each weight comes in one format only."""

from __future__ import annotations

from rankup.login.fetch.weights import needed

TEXT = ["README.md", "config.json", "tokenizer.json", "vocab.txt"]


def test_safetensors_are_preferred_to_the_same_weights_in_other_formats() -> None:
    same = ["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "rust_model.ot"]
    kept, skipped = needed([*TEXT, "model.safetensors", *same, "onnx/model.onnx", "64.tflite"])
    assert kept == sorted([*TEXT, "model.safetensors"])
    assert skipped == sorted([*same, "onnx/model.onnx", "64.tflite"])


def test_shards_and_their_indexes_go_together() -> None:
    kept, skipped = needed(
        [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "pytorch_model-00001-of-00001.bin",
            "pytorch_model.bin.index.json",
            "consolidated.safetensors",
            "original/consolidated.00.pth",
            "original/params.json",
        ]
    )
    assert kept == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "original/params.json",
    ]
    assert len(skipped) == 4


def test_without_safetensors_the_pickled_weights_are_needed() -> None:
    kept, skipped = needed(["config.json", "pytorch_model.bin", "tf_model.h5"])
    assert (kept, skipped) == (["config.json", "pytorch_model.bin"], ["tf_model.h5"])
