"""As in the first lesson of fastai's course; `fastai` is a stub beside the tests."""

# ruff: noqa: F403, F405
from fastai.vision.all import *

path = untar_data(URLs.PETS) / "images"
files = get_image_files(path)
dls = ImageDataLoaders.from_name_func(path, files, lambda name: name[0].isupper(), bs=2)
learn = vision_learner(dls, resnet18, metrics=error_rate)
learn.fine_tune(3)
learn.export("export.pkl")
