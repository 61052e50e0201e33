"""What the training loop is made of: the open run and its parts, updates of the weights, evaluations, metrics, warnings."""
