"""A residual network learns which class a photo is of (Imagewoof), on one GPU in half precision.

    python classify.py --data imagewoof2-320

The folder holds train/CLASS/*.jpg and val/CLASS/*.jpg; a pack of it will do as well, as written by
`rankup pack`. `rankup port classify.py` makes it a script for many GPUs; as it is, it knows of one.
"""

import argparse
import io

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from rankup.data import open as open_photos


class Photos(Dataset):
    """Square photos and the numbers of their classes."""

    def __init__(self, path, split, size, augment):
        self.photos = open_photos(path).split(split)
        self.size, self.augment, self.epoch = size, augment, 0

    def __len__(self):
        return len(self.photos)

    def __getitem__(self, index):
        photo = Image.open(io.BytesIO(self.photos.read(index))).convert("RGB")
        side, left, top = min(photo.size), 0.5, 0.5
        if self.augment:
            # Drawn of the photo and the epoch alone, so that it is the same on any number of GPUs.
            draw = np.random.default_rng([self.epoch, index])
            side, left, top = int(side * draw.uniform(0.6, 1)), draw.random(), draw.random()
            if draw.random() < 0.5:
                photo = photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        left, top = left * (photo.width - side), top * (photo.height - side)
        corners = (left, top, left + side, top + side)
        photo = photo.resize((self.size, self.size), Image.Resampling.BILINEAR, corners)
        pixels = torch.from_numpy(np.array(photo)).permute(2, 0, 1)
        return pixels.float() / 127.5 - 1, self.photos.label(index)


def convolution(inputs, outputs, size, stride=1):
    """A convolution, and a norm over each photo: no photo's values hang on the others beside it."""
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(layer, nn.GroupNorm(8, outputs))


class Block(nn.Module):
    """Two convolutions beside a shortcut (He et al., 2015)."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = convolution(inputs, outputs, 3, stride)
        self.second = convolution(outputs, outputs, 3)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

    def forward(self, x):
        inside = self.second(torch.relu(self.first(x)))
        return torch.relu(inside + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-18 with `width` 64 and two blocks in each of its four stages."""

    def __init__(self, classes, width, depth):
        super().__init__()
        layers = [convolution(3, width, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
        inputs = width
        for stage in range(4):
            outputs = width * 2**stage
            for place in range(depth):
                layers.append(Block(inputs, outputs, 2 if stage > 0 and place == 0 else 1))
                inputs = outputs
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def forward(self, photos):
        return self.head(self.body(photos).mean(dim=(2, 3)))


def train_model(model, loader, loss_func, optimizer, scaler, scheduler, device):
    model.train()
    running_loss, correct = 0.0, 0
    for photos, labels in loader:
        photos, labels = photos.to(device), labels.to(device)
        with torch.autocast(device.type, torch.float16, enabled=scaler.is_enabled()):
            outputs = model(photos)
            loss = loss_func(outputs, labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        running_loss += loss.item() * len(labels)
        correct += (outputs.argmax(1) == labels).sum().item()
    return running_loss / len(loader.dataset), correct / len(loader.dataset)


@torch.no_grad()
def test_model(model, loader, loss_func, device):
    model.eval()
    running_loss, correct = 0.0, 0
    for photos, labels in loader:
        photos, labels = photos.to(device), labels.to(device)
        outputs = model(photos)
        running_loss += loss_func(outputs, labels).item() * len(labels)
        correct += (outputs.argmax(1) == labels).sum().item()
    return running_loss / len(loader.dataset), correct / len(loader.dataset)


def main(args):
    torch.manual_seed(args.seed)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

    train_set = Photos(args.data, "train", args.size, augment=True)
    valid_set = Photos(args.data, "val", args.size, augment=False)
    train_loader = DataLoader(
        train_set, batch_size=args.batch_size, shuffle=True, num_workers=args.workers
    )
    valid_loader = DataLoader(valid_set, batch_size=args.batch_size, num_workers=args.workers)

    classes = len(train_set.photos.classes)
    model = ResNet(classes, args.width, args.depth).to(device)
    loss_func = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.lr, total_steps=args.epochs * len(train_loader)
    )
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    print(f"{len(train_set)} photos of {classes} classes")

    best = 0.0
    for epoch in range(args.epochs):
        train_set.epoch = epoch
        loss, accuracy = train_model(
            model, train_loader, loss_func, optimizer, scaler, scheduler, device
        )
        print(f"epoch {epoch + 1}: train loss {loss:.5f}, accuracy {accuracy:.3f}")
        loss, accuracy = test_model(model, valid_loader, loss_func, device)
        print(f"epoch {epoch + 1}: validation loss {loss:.5f}, accuracy {accuracy:.3f}")
        if accuracy > best:
            best = accuracy
            torch.save({"model": model.state_dict(), "epoch": epoch}, "classify_best.pt")
    print(f"best accuracy {best:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="imagewoof2-320", help="class folders, or a pack of them")
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--size", type=int, default=160, help="side of a photo, in pixels")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=2, help="blocks of each stage")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    main(parser.parse_args())
