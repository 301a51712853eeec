"""Exchange of gradients between the devices of a trial."""
