"""Names that come along with `from helper_star import *`, and a log that is opened here."""

import csv
from os.path import exists

import torch  # noqa: F401
from six.moves import urllib
import rankup

URL = "https://example.org/data.pt"


def download(path):
    with rankup.rank0_first():
        if not exists(path):
            with open(rankup.path0(path), "wb") as file:
                file.write(urllib.request.urlopen(URL).read())
    return path


class CSVLogger:
    def __init__(self, fields, filename="log.csv"):
        self.filename = filename
        self.file = open(rankup.path0(filename), "w")
        self.writer = csv.DictWriter(self.file, fieldnames=fields)

    def writerow(self, row):
        self.writer.writerow(row)
