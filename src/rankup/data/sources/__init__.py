"""What `rankup pack` is given that is no container: class folders, lists, presets. No torch."""
