"""INT8 inference on a GPU: a network read into layers, ranges from images, kernels that multiply bytes."""
