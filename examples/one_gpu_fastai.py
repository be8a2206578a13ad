"""An image classifier with fastai on one GPU; its port is beside it.

    rankup port examples/one_gpu_fastai.py
"""

import argparse

from fastai.vision.all import *


def main(args):
    path = untar_data(URLs.IMAGEWOOF_160)
    dls = ImageDataLoaders.from_folder(
        path, train="train", valid="val", item_tfms=Resize(args.size), bs=args.bs, seed=1
    )
    learn = Learner(dls, xresnet18(n_out=dls.c), metrics=accuracy)
    for epochs in (1, args.epochs):
        learn.fine_tune(epochs, base_lr=args.lr)
        loss, correct = learn.validate()
        print(f"validation {loss:.6f}, accuracy {correct:.3f}")
    learn.export("woof.pkl")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--bs", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.002)
    args = parser.parse_args()
    set_seed(1)
    main(args)
