"""The words of an answer: tokens, base forms, objects, yes and no, options."""
