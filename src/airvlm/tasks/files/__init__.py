"""Files of answers and annotations, as people have them."""
