"""A small image classifier on one GPU, out of a pack; its port is beside it.

    rankup port examples/one_gpu_images.py

`--data` names a pack of yours (`rankup pack photos photos.h5`). What is not there is made up, and
packed.
"""

import argparse
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from rankup.data import open as open_pack
import rankup

COLOURS = {"blue": (110, 120, 140), "green": (110, 140, 120), "red": (140, 110, 120)}


def make_pack(path):
    """Small noisy pictures in class folders, as one file."""
    draw = np.random.default_rng(1)
    folder = path.with_suffix("")
    for split, pictures in (("train", 19), ("val", 7)):
        for name, colour in COLOURS.items():
            place = folder / split / name
            place.mkdir(parents=True, exist_ok=True)
            for number in range(pictures):
                pixels = np.clip(draw.normal(colour, 90, (20, 24, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    alone = {**os.environ, "SLURM_STEP_NUM_TASKS": "1"}  # also where srun has started several
    subprocess.run(
        [sys.executable, "-m", "rankup", "pack", folder, path],
        check=True, env=alone, stdout=subprocess.DEVNULL,
    )  # fmt: skip


class Pictures(Dataset):
    def __init__(self, path, split, size):
        self.samples = open_pack(path).split(split)
        self.size = size

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(self.samples.read(index))).convert("RGB")
        image = image.resize((self.size, self.size))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return pixels.float() / 127.5 - 1, self.samples.label(index)


class Classifier(nn.Module):
    def __init__(self, classes, width=8):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(2, width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.head = nn.Linear(2 * width, classes)

    def forward(self, pixels):
        return self.head(self.body(pixels).flatten(1))


def train(model, loader, criterion, optimizer, scheduler, device):
    model.train()
    running_loss = 0.0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        outputs = model(images)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        running_loss += rankup.batch_mean(loss.item()) * rankup.batch_sum(images.size(0))
    return running_loss / len(loader.dataset)


@torch.no_grad()
def evaluate(model, loader, criterion, device):
    model.eval()
    running_loss, correct = 0.0, 0
    for images, labels in rankup.shard(loader, train=False):
        images, labels = images.to(device), labels.to(device)
        outputs = model(images)
        running_loss += criterion(outputs, labels).item() * images.size(0)
        correct += (outputs.argmax(1) == labels).sum().item()
    running_loss, correct = rankup.total(running_loss, correct)
    return running_loss / len(loader.dataset), correct / len(loader.dataset)


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with rankup.rank0_first():
        if not args.data.exists():
            make_pack(args.data)
    train_set = Pictures(args.data, "train", args.size)
    val_set = Pictures(args.data, "val", args.size)
    train_loader = rankup.shard(DataLoader(
        train_set, batch_size=args.batch_size, shuffle=True, num_workers=args.workers
    ))
    val_loader = DataLoader(val_set, batch_size=args.batch_size, num_workers=args.workers)

    model = Classifier(len(train_set.samples.classes)).to(device)
    model = rankup.wrap(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.lr, total_steps=args.epochs * len(train_loader)
    )

    best_accuracy = 0.0
    for epoch in range(args.epochs):
        train_loss = train(model, train_loader, criterion, optimizer, scheduler, device)
        loss, accuracy = evaluate(model, val_loader, criterion, device)
        print(f"epoch {epoch + 1}: {train_loss:.6f}, {loss:.6f}, accuracy {accuracy:.3f}")
        if accuracy > best_accuracy:
            best_accuracy = accuracy
            rankup.save0(model.state_dict(), "images_best.pt")


if __name__ == "__main__":
    rankup.setup()
    rankup.quiet()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("pictures.h5"))
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(1)
    main(args)
