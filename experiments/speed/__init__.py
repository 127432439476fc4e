"""Speed and memory of the methods, each as a ratio to vanilla, or to another implementation, in the same run."""
