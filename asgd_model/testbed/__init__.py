"""Real TensorFlow jobs on one Linux machine that plays a cluster."""
