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


def test_a_repository_with_weights_of_another_framework_only_comes_as_it_is() -> None:
    for names in (["config.json", "tf_model.h5"], ["model-q4.gguf"], ["onnx/model.onnx"]):
        assert needed(names) == (names, [])


def test_bin_files_that_are_no_weights_stay() -> None:
    names = ["model.safetensors", "tokenizer.bin", "training_args.bin"]
    assert needed(names)[1] == []


def test_each_folder_has_its_own_weights() -> None:
    kept, skipped = needed(
        [
            "unet/diffusion_pytorch_model.safetensors",
            "unet/diffusion_pytorch_model.bin",
            "vae/diffusion_pytorch_model.bin",
        ]
    )
    assert "vae/diffusion_pytorch_model.bin" in kept
    assert skipped == ["unet/diffusion_pytorch_model.bin"]
