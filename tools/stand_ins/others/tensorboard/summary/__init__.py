"""Where torch.utils.tensorboard looks."""
