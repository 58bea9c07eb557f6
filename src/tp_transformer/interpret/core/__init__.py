"""Code that several analyses share: samples, recorded activations, labels, clusters, results."""
