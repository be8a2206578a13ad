from fastai.vision.all import *
import rankup

rankup.setup()
rankup.quiet()

path = rankup.rank0_first(untar_data, URLs.PETS)
files = get_image_files(path / "images")
dls = ImageDataLoaders.from_name_func(path, files, lambda f: f[0].isupper(), item_tfms=Resize(224))
learn = vision_learner(dls, resnet34, metrics=error_rate)
with learn.distrib_ctx():
    learn.fine_tune(1)
if rankup.is_root_process(): learn.export("model.pkl")
