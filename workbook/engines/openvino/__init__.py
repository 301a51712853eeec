"""Networks that OpenVINO runs on a CPU."""
