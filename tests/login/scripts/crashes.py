"""Downloads, then has a bug of its own."""

import os
import urllib.request


def prepare(rows):
    return rows[len(rows)]


urllib.request.urlretrieve(os.environ["DATA_SERVER"] + "/train.bin", "train.bin")
prepare([1, 2, 3])
