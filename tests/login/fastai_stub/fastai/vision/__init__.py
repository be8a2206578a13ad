"""See `fastai`."""
